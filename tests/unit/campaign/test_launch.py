"""What a command does before its runs begin: signs of life, signals, and what is known of the data in the end."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
from tiny_runs import image_spec

from comt_cli.campaign import launch, scout, server, table
from comt_cli.campaign.display import Display
from comt_cli.campaign.outcomes import TrainingFailed
from comt_cli.campaign.queue import RunQueue
from comt_cli.campaign.scout import Scout
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.shared import shared_runs
from comt_cli.tasks import Task
from comt_cli.training.processes import StopSignal


@pytest.fixture
def without_torch(monkeypatch):
    """As in a process that has not imported it."""
    monkeypatch.setattr(launch, "sys", SimpleNamespace(modules={}, stderr=sys.stderr))


@pytest.fixture
def trained(monkeypatch) -> list[object]:
    """The stop signals that `train_queue` was handed."""
    heard: list[object] = []
    monkeypatch.setattr(table, "train_queue", lambda queue, device, display, stop, datasets: heard.append(stop))
    return heard


def test_one_process_says_that_it_starts_pytorch(without_torch, trained, tmp_path, capsys):
    launch._train_here(RunQueue([], tmp_path), "cpu")
    assert capsys.readouterr().err.splitlines()[0] == "starting PyTorch ..."
    assert len(trained) == 1


def test_a_signal_while_it_starts_is_an_interruption(without_torch, trained, tmp_path, monkeypatch):
    class Impatient(Display):
        def preparing(self, stage, done, total):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(launch, "make_display", lambda is_main: Impatient())
    with pytest.raises(RunInterrupted) as stopped:
        launch._train_here(RunQueue([], tmp_path), "cpu")
    assert stopped.value.exit_status == 143
    assert trained == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("known", [("another", "content"), ("tiny-pictures", None), None])
def test_what_ended_the_processes_is_told_whatever_became_of_the_data(tmp_path, monkeypatch, known):
    """Data that changed meanwhile, or is gone, says nothing of the runs that were planned."""
    spec = image_spec().with_content(None)

    def identify(self, settings):
        if known is None:
            raise UserError("no file matches")
        return known

    def interrupted(*_):
        raise RunInterrupted("stopped", None, signal.SIGTERM)

    monkeypatch.setattr(Task, "identify", identify)
    monkeypatch.setattr(launch, "_train_together", interrupted)
    with pytest.raises(RunInterrupted):
        launch.train_on(2, [spec], tmp_path, "cpu")
    assert launch._prepared_contents(RunQueue([spec], tmp_path)) == {}


def test_what_is_prepared_by_the_processes_is_known_in_the_end(tmp_path, monkeypatch):
    spec = image_spec()

    def train(*_):
        RunDirectory.of(tmp_path, spec).create(spec)
        RunDirectory.of(tmp_path, spec).result_file.write_text('{"state": "done"}')

    monkeypatch.setattr(Task, "identify", lambda self, settings: (spec.data_fingerprint, spec.data_content))
    monkeypatch.setattr(launch, "_train_together", train)
    summary = launch.train_on(2, [spec.with_content(None)], tmp_path, "cpu")
    assert [outcome.ended for outcome in summary.outcomes] == [True]


# ---- the scout


class Ended:
    """A process that a signal has ended at once."""

    pid, exitcode = 12, -signal.SIGTERM

    def start(self) -> None:
        pass

    def join(self, timeout: float | None = None) -> None:
        pass


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, RunInterrupted), (None, TrainingFailed)])
def test_a_scout_that_a_signal_to_all_ended_first_is_no_failure(number, error):
    ended = Scout(*Pipe(), Ended())  # type: ignore[arg-type]
    ended._starter.join()
    stop = StopSignal()
    stop.number = number
    with pytest.raises(error):
        ended.workers(stop)


def test_a_scout_is_ended_by_its_parent_alone(monkeypatch, tmp_path):
    """Slurm warns every process of a job; what the kernel does with SIGUSR2 by default is to end it."""
    heard = []

    def plan(*_):
        heard.extend(signal.getsignal(number) for number in StopSignal.SIGNALS if number != signal.SIGTERM)
        raise UserError("enough")

    monkeypatch.setattr(server, "die_with_parent", lambda: None)
    monkeypatch.setattr(scout, "plan_workers", plan)
    checked: list = []
    monkeypatch.setattr(scout, "check_methods", checked.extend)
    begun, fresh = image_spec(seed=1), image_spec(seed=2)
    directory = RunDirectory.of(tmp_path, begun)
    directory.create(begun)
    directory.checkpoint_file.touch()
    before = {number: signal.getsignal(number) for number in StopSignal.SIGNALS}
    ours, theirs = Pipe()
    try:
        ours.send(shared_runs([begun, fresh]))
        scout._look_ahead(theirs, "cpu", None, tmp_path)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert heard == [signal.SIG_IGN] * 4
    assert str(ours.recv()) == "enough"
    assert checked == [fresh], "a run that has begun goes on, whatever is wrong with its method's file"
