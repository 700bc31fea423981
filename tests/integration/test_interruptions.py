"""Interruptions of a run from outside: signals, a full disk, a folder that is gone. Nothing is lost."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
import torch
from tiny_runs import assert_same_run, stopped_at, tiny_spec, train, training

from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.exchange import checkpoint
from comt_cli.exchange.checkpoint import read_state
from comt_cli.files import atomic_file
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.training import processes
from comt_cli.training.events import Event, StepReport
from comt_cli.training.processes import StopSignal


class After:
    """A listener that does something once, after a logged step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepReport) and event.step == self.step:
            self.action()


@pytest.fixture(scope="module")
def spec(tiny_corpus: str) -> RunSpec:
    return tiny_spec(tiny_corpus, steps=12, log_every=1, save_every=3)


@pytest.fixture(scope="module")
def expected(spec: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    torch.set_num_threads(1)
    return train(spec, tmp_path_factory.mktemp("undisturbed"))


def test_a_signal_finishes_the_step_and_saves(spec, expected, tmp_path):
    with StopSignal() as stop:
        listener = After(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(RunInterrupted) as stopped:
            train(spec, tmp_path / "runs", listener=listener, stop=stop)
    directory = RunDirectory.of(tmp_path / "runs", spec)
    assert stopped.value.exit_status == 128 + signal.SIGTERM
    # It arrived when step 4 was over, and so step 5 was done too, though nothing was due to be saved there.
    assert read_state(directory.checkpoint_file)["progress"]["step"] == 5
    assert directory.state() is RunState.unfinished
    assert_same_run(train(spec, tmp_path / "runs"), expected)


def test_a_signal_at_every_step(spec, expected, tmp_path):
    """In the last one the training is over, but not the evaluation, with which the run then goes on."""
    for step in range(1, 13):
        stop = StopSignal()
        stop.number = signal.SIGTERM  # it came before the step
        with pytest.raises(RunInterrupted, match=f"stopped after step {step} of 12"):
            train(spec, tmp_path / "runs", stop=stop)
        state = read_state(RunDirectory.of(tmp_path / "runs", spec).checkpoint_file)
        assert state["progress"]["step"] == step
    assert_same_run(train(spec, tmp_path / "runs"), expected)


class Interrupted:
    """A file whose fifth writing a second Ctrl-C comes into."""

    def __init__(self, handle: IO[bytes]) -> None:
        self.handle, self.left = handle, 5

    def write(self, content: bytes) -> int:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.handle.write(content)

    def flush(self) -> None:
        self.handle.flush()


def test_a_second_signal_while_a_checkpoint_is_written(spec, tmp_path, monkeypatch):
    """torch makes an error of its own of it, by which the run would seem to have failed, with status 1."""

    @contextlib.contextmanager
    def interrupted(path: Path) -> Iterator[Interrupted]:
        with atomic_file(path) as handle:
            yield Interrupted(handle)

    monkeypatch.setattr(checkpoint, "atomic_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(spec, tmp_path)
    directory = RunDirectory.of(tmp_path, spec)
    assert not directory.checkpoint_file.exists()
    assert not list(directory.path.glob(".*.tmp"))


@pytest.fixture
def largest_file():
    """`largest_file(bytes)`: the system itself refuses to write further than that into any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("share", [0.01, 0.999])
def test_a_checkpoint_that_the_system_cuts_short(spec, expected, tmp_path, largest_file, share):
    """Not a made-up error: the write really fails there in the file, also in the table at the archive's end."""
    directory = RunDirectory.of(tmp_path / "runs", spec)

    def leave_a_share() -> None:
        largest_file(int(share * directory.checkpoint_file.stat().st_size))

    with pytest.raises(StorageError, match=r"cannot write .*checkpoint\.pt: File too large"):
        train(spec, tmp_path / "runs", listener=After(4, leave_a_share))
    largest_file(resource.RLIM_INFINITY)
    assert read_state(directory.checkpoint_file)["progress"]["step"] == 3
    assert not list(directory.path.glob(".*.tmp"))
    assert_same_run(train(spec, tmp_path / "runs"), expected)


def test_a_folder_of_all_runs_that_was_removed(spec, tmp_path):
    """The next run would fare no better: a queue ends."""
    with pytest.raises(StorageError, match="by-id, the folder of the runs, was removed during training"):
        train(spec, tmp_path / "runs", listener=After(4, lambda: shutil.rmtree(tmp_path / "runs")))
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_comes_back(spec, expected, tmp_path):
    directory, away = RunDirectory.of(tmp_path / "runs", spec), tmp_path / "away"
    with pytest.raises(UserError, match=r"metrics\.jsonl was deleted or replaced") as lost:
        train(spec, tmp_path / "runs", listener=After(5, lambda: directory.path.rename(away)))
    assert not isinstance(lost.value, StorageError), "other runs go on"
    assert not directory.path.exists(), "nothing is saved where nobody kept the run"
    away.rename(directory.path)
    assert read_state(directory.checkpoint_file)["progress"]["step"] == 3
    assert_same_run(train(spec, tmp_path / "runs"), expected)


def test_files_are_closed_after_every_end(spec, tmp_path):
    """Else the operating system's limit is reached in a long table."""
    gc.collect()  # what earlier tests left may be closed at any time, and would hide a file that stays open
    count = len(list(Path("/proc/self/fd").iterdir()))
    torch.save({}, stopped_at((1, 3), spec, tmp_path).checkpoint_file)
    with pytest.raises(UserError):
        training(spec, tmp_path).run()
    assert len(list(Path("/proc/self/fd").iterdir())) == count


def test_handlers_are_put_back_and_left_alone_in_threads():
    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in StopSignal.SIGNALS]

    before, seen = handlers(), []
    with contextlib.suppress(RuntimeError), StopSignal():
        assert handlers() != before
        raise RuntimeError("some error")
    assert handlers() == before

    def enter() -> None:
        with StopSignal() as stop:  # a thread may not set handlers: it is left as it is
            seen.append((stop.number, handlers() == before))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(None, True)]


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    return now


def test_the_first_signal_and_the_second_are_announced_and_echoes_are_not(clock):
    heard: list[object] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("as before"))
    try:
        with StopSignal(heard.append) as stop:
            signal.raise_signal(signal.SIGTERM)
            assert heard == [False]
            assert stop.number == signal.SIGTERM
            signal.raise_signal(signal.SIGINT)  # a terminal's, passed on by a launcher
            assert heard == [False]
            clock[0] += 1.5
            signal.raise_signal(signal.SIGTERM)
            assert heard == [False, True, "as before"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_closed_terminal_stops_a_run_but_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.number is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.number == signal.SIGHUP
