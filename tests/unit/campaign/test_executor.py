"""Before the runs of a command begin: signs of life, signals, refusals."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from tiny_runs import image_spec, train

from comt_cli.campaign import executor, inline
from comt_cli.campaign.display import Display
from comt_cli.campaign.queue import RunQueue
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.training.events import RunStarted
from comt_cli.training.processes import StopSignal


class Reached(Exception):
    """Raised in place of the work."""


@pytest.fixture
def trained(monkeypatch) -> list[object]:
    """The stop signals that `train_queue` was handed, in a process that has not imported torch."""
    heard: list[object] = []
    monkeypatch.setattr(executor, "sys", SimpleNamespace(modules={}, stderr=sys.stderr))
    monkeypatch.setattr(inline, "train_queue", lambda queue, device, display, stop, datasets: heard.append(stop))
    return heard


def test_a_signal_while_it_starts_is_an_interruption(trained, tmp_path, monkeypatch):
    class Impatient(Display):
        def preparing(self, stage, done, total):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(executor, "make_display", lambda is_main: Impatient(is_silent=True))
    with pytest.raises(RunInterrupted) as stopped:
        executor.train_here(RunQueue([], tmp_path), "cpu")
    assert stopped.value.exit_status == 143
    assert trained == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("began", "status"), [(False, 2), (True, 1)])
def test_bad_input_that_processes_find_says_by_its_status_whether_training_began(began, status, tmp_path, monkeypatch):
    def run(shared, runs, dataset, world, listener, stop):
        if began:
            listener(RunStarted(0))
        raise UserError("a wrong setting")

    spec = image_spec()
    monkeypatch.setattr(inline, "guarded_run", run)
    monkeypatch.setattr(inline, "check_models", lambda queue: None)
    with pytest.raises(UserError, match="a wrong setting") as refused:
        inline.train_queue(
            RunQueue([spec], tmp_path), "cpu", Display(is_silent=True), StopSignal(), {spec.data_fingerprint: object()}
        )
    assert refused.value.exit_status == status


def test_gpus_that_do_not_divide_the_batch_are_refused_before_any_process_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "train_in_group", lambda *_: pytest.fail("processes are started"))
    with pytest.raises(UserError, match="cannot be divided evenly among 3 processes") as refused:
        executor.train_on(3, [image_spec(batch_size=8)], tmp_path / "runs", "cpu")
    assert refused.value.exit_status == 2


def test_what_is_done_already_does_not_change_the_threads(tmp_path, monkeypatch):
    """Else a run that goes on would compute with another number of threads, and end on other bits."""
    asked = []

    def plan(device, said, every):
        asked.append(len(every))
        raise Reached

    monkeypatch.setattr(executor, "plan_workers", plan)
    monkeypatch.setattr(executor, "start_server", lambda specs: None)
    specs = [image_spec(seed=seed) for seed in (1, 2, 3)]
    train(specs[0], tmp_path)
    with pytest.raises(Reached):
        executor.train_on(1, specs, tmp_path, "cpu")
    assert asked == [3]


@pytest.mark.parametrize("has_console", [False, True])
def test_a_display_shows_runs_and_answers_signals(has_console, tmp_path, capfd):
    console = Console(file=io.StringIO(), force_terminal=True) if has_console else None
    spec, display = image_spec(save_every=20), Display(console)
    with contextlib.closing(display):
        display.queue_started(RunQueue([spec], tmp_path), ["cpu"], "cpu")
        display.run_taken(0, spec)
        display.run_event(0, RunStarted(0))
        display.tick()
        for again in (False, True):
            display.stopping(again)
    shown = console.file.getvalue() if console is not None else capfd.readouterr().err
    assert "1 to train" in shown
    assert has_console or "a second signal stops at once" in shown
