"""Several runs at once: workers that fail, die, are stopped, and share a list with other processes.

The workers are forked from the server of `dying`, which has imported torch: starting each anew costs seconds.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dying import is_training, wait_until
from test_many_processes import is_alive
from tiny_runs import assert_same_run, tiny_spec, train
from worlds import train_table

from comt_cli.campaign import workers
from comt_cli.campaign.display import Display
from comt_cli.campaign.processes import Workers
from comt_cli.campaign.queue import Ending, RunQueue
from comt_cli.campaign.workers import WorkerPool
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.training.events import Note, RunStarted, StepReport
from comt_cli.training.processes import StopSignal

pytestmark = pytest.mark.usefixtures("quick_workers")


class Notes(Display):
    """Keeps what it hears, and does something at a worker's n-th event."""

    def __init__(self, at: tuple[str, int] = ("", 0), action: Callable[[int], object] = lambda worker: None) -> None:
        super().__init__(is_silent=True)
        self.heard: list[tuple] = []
        self.at, self.action = at, action
        self.seeds: dict[int, int] = {}
        self.told: list[bool] = []

    def stopping(self, again):
        self.told.append(again)

    def note(self, event: str, worker: int, *more: object) -> None:
        self.heard.append((event, worker, *more))
        if (event, self.count(event)) == self.at:
            self.action(worker)

    def count(self, event: str) -> int:
        return sum(each[0] == event for each in self.heard)

    def run_taken(self, worker, spec):
        self.seeds[worker] = spec.seed

    def run_event(self, worker, event):
        match event:
            case RunStarted(step):
                self.note("started", worker, self.seeds[worker], step)
            case StepReport():
                self.note("step", worker)
            case Note(text):
                self.note("warned", worker, text)

    def run_ended(self, worker, ended):
        if ended is not None:
            self.note("ended", worker, ended.spec.seed, ended.ending)


def seeds(corpus: str, *numbers: int, **train):
    settings = {"steps": 8, "log_every": 1, "save_every": 2} | train
    return [tiny_spec(corpus, seed=number, **settings) for number in numbers]


LONG = {"steps": 3000, "save_every": 5}


class Crew:
    """Workers for a list of runs, ready to go."""

    def __init__(self, specs: list[RunSpec], runs: Path, count: int = 2, display: Display | None = None) -> None:
        self.queue = RunQueue(specs, runs)
        self.display = display or Notes()
        devices = Workers(("cpu",) * count, 1)
        self.pool = WorkerPool(self.queue, devices, self.display)

    def run(self) -> list[Ending]:
        self.queue.prepare_data(self.display.preparing, StopSignal())
        self.pool.run()
        return self.endings()

    def endings(self) -> list[Ending]:
        return [outcome.ending for outcome in self.queue.summary().outcomes]

    def process(self, worker: int) -> int:
        pid = self.pool._workers[worker].process.pid
        assert pid is not None
        return pid


def test_workers_train_what_one_process_would(tiny_corpus, tmp_path):
    specs = seeds(tiny_corpus, 1, 2, 3, 4, 5)
    train(specs[0], tmp_path / "runs")
    crew = Crew(specs, tmp_path / "runs")
    assert crew.run() == [Ending.done] * 5
    started = [event[1:] for event in crew.display.heard if event[0] == "started"]
    assert {worker for worker, _, _ in started} == {0, 1}
    assert sorted(event[1:] for event in started) == [(seed, 0) for seed in (2, 3, 4, 5)]
    assert crew.queue.summary().lines() == ["5 runs: 5 done (1 before)"]
    for spec in specs:
        assert_same_run(RunDirectory.of(tmp_path / "runs", spec), train(spec, tmp_path / "alone"))


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_what_a_worker_was_ended_in_goes_on_to_the_same_bits(tiny_corpus, tmp_path, number):
    """If it is killed, as the system does where memory runs out, its run has failed until the next call. Where it
    alone is told to stop, by an administrator, say, it saves and another goes on: nothing failed."""
    specs = seeds(tiny_corpus, 1, 2, steps=40)
    ended: list[int] = []

    def end(worker: int) -> None:
        (event,) = [event for event in display.heard if event[:2] == ("started", worker)]
        ended.append(event[2])
        if number == signal.SIGKILL:
            wait_until(RunDirectory.of(tmp_path, specs[event[2] - 1]).checkpoint_file.exists)
        os.kill(crew.process(worker), number)

    display = Notes(("step", 1), end)
    crew = Crew(specs, tmp_path, display=display)
    endings, place = crew.run(), ended[0] - 1
    directory = RunDirectory.of(tmp_path, specs[place])
    if number == signal.SIGKILL:
        assert (endings[place], endings[1 - place]) == (Ending.failed, Ending.done)
        assert directory.error() == "its process was killed by SIGKILL (perhaps out of memory)"
        assert directory.state() is RunState.unfinished
        endings = Crew(specs, tmp_path).run()
    assert endings == [Ending.done] * 2
    assert starts(directory) == 2
    assert_same_run(directory, train(specs[place], tmp_path / "alone"))


def test_a_run_is_not_trained_on_other_text_than_it_was_planned_with(tiny_corpus, tmp_path):
    spec = tiny_spec(tiny_corpus).model_copy(update={"data_content": "0123456789abcdef"})
    crew = Crew([spec], tmp_path, count=4)
    assert crew.pool._size == 1
    crew.pool.run()  # what was prepared before is read by the worker, and is other text by then
    assert crew.endings() == [Ending.failed]
    assert "has changed since" in str(RunDirectory.of(tmp_path, spec).error())


def test_a_worker_without_work_does_not_hold_up_the_end(tiny_corpus, tmp_path, monkeypatch):
    """Were it waited for, this would take an hour. What goes wrong in the pool costs the other worker's run no step."""
    monkeypatch.setattr(workers, "SAVING_SECONDS", 3600.0)

    def fail(worker: int) -> None:
        raise OSError("no terminal")  # and with it what is shown

    specs = [*seeds(tiny_corpus, 1, steps=5), *seeds(tiny_corpus, 2, **LONG)]
    crew = Crew(specs, tmp_path, display=Notes(("ended", 1), fail))
    with pytest.raises(OSError, match="no terminal"):
        crew.run()
    assert crew.endings() == [Ending.done, Ending.left]
    assert RunDirectory.of(tmp_path, specs[1]).checkpoint_file.exists()


def test_a_full_disk_stops_the_queue(tiny_corpus, tmp_path):
    """Runs that have begun go on; nothing new is begun."""
    specs = seeds(tiny_corpus, 1, 2, 3, 4)
    RunDirectory.of(tmp_path, specs[1]).metrics_file.mkdir(parents=True)  # no line can be written here
    crew = Crew(specs, tmp_path, count=1)
    with pytest.raises(StorageError, match=r"cannot write .*metrics\.jsonl"):
        crew.run()
    assert crew.endings() == [Ending.done, Ending.failed, Ending.left, Ending.left]


def test_a_signal_stops_all_workers_after_their_step(tiny_corpus, tmp_path):
    specs = seeds(tiny_corpus, 1, 2, 3, **LONG)
    crew = Crew(specs, tmp_path, display=Notes(("started", 2), lambda _: os.kill(os.getpid(), signal.SIGTERM)))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RunInterrupted, match="3 of 3 runs are left to do") as stopped:
        crew.run()
    assert stopped.value.exit_status == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert crew.endings() == [Ending.left] * 3
    reasons = [outcome.reason for outcome in crew.queue.summary().outcomes if outcome.reason is not None]
    assert len(reasons) == 2
    assert crew.display.told == [False]
    for spec in specs[:2]:
        assert RunDirectory.of(tmp_path, spec).checkpoint_file.exists()
    assert not RunDirectory.of(tmp_path, specs[2]).path.exists()


def test_a_second_signal_ends_workers_at_once_and_the_summary_still_comes(tiny_corpus, tmp_path, monkeypatch):
    """A worker that hangs keeps nobody waiting. It is halted here, and hears no signal but the last."""
    specs = seeds(tiny_corpus, 1, **LONG)
    monkeypatch.setattr(StopSignal, "ECHO_SECONDS", -1.0)

    def stop_twice(worker: int) -> None:
        os.kill(crew.process(worker), signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    crew = Crew(specs, tmp_path, count=1, display=Notes(("step", 1), stop_twice))
    with pytest.raises(RunInterrupted) as stopped:
        crew.run()
    assert stopped.value.exit_status == 130
    assert crew.endings() == [Ending.left]
    assert crew.display.told == [False, True]


def test_a_device_that_is_lost_leaves_its_work_to_the_others(tiny_corpus, tmp_path):
    crew = Crew(seeds(tiny_corpus, 1, 2, 3), tmp_path)
    crew.pool._devices = ("cuda:77", "cpu")
    assert crew.run() == [Ending.done] * 3


# ---- a command that is killed


def train_in_workers(specs: list[str], runs: str, cache: str) -> None:
    """A command of its own, whose workers are its children."""
    os.environ["COMT_CACHE"] = cache
    torch.set_num_threads(1)
    workers.context_for = lambda devices: multiprocessing.get_context("forkserver")  # type: ignore[assignment,return-value]

    def note(worker: int) -> None:
        (Path(runs) / f"worker{worker}").write_text(str(crew.process(worker)))

    display = Notes()
    display.run_event = lambda worker, event: isinstance(event, RunStarted) and note(worker)  # type: ignore[method-assign]
    crew = Crew([RunSpec.model_validate_json(spec) for spec in specs], Path(runs), display=display)
    crew.run()


def test_no_worker_outlives_a_killed_command(tiny_corpus, tmp_path, nursery):
    """Not even those that a server has forked, which lives as long as any of them does."""
    specs = seeds(tiny_corpus, 1, 2, **LONG)
    arguments = ([spec.model_dump_json() for spec in specs], str(tmp_path), os.environ["COMT_CACHE"])
    command = nursery.start(train_in_workers, *arguments)
    files = [tmp_path / "worker0", tmp_path / "worker1"]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    processes = [int(file.read_text()) for file in files]
    assert all(is_alive(process) for process in processes)
    command.kill()
    command.join()
    wait_until(lambda: not any(is_alive(process) for process in processes), 20)
    wait_until(lambda: all(RunDirectory.of(tmp_path, spec).owner() is None for spec in specs), 20)  # their locks too


# ---- several commands on one list


def train_list(specs: list[str], runs: str, cache: str, name: str) -> None:
    """One of several commands; writes down how its runs stand."""
    os.environ["COMT_CACHE"] = cache
    torch.set_num_threads(1)
    try:
        summary = train_table([RunSpec.model_validate_json(spec) for spec in specs], Path(runs), "cpu")
    except UserError as error:
        (Path(runs) / name).write_text(f"raised {error}")
        return
    (Path(runs) / name).write_text(" ".join(outcome.ending.name for outcome in summary.outcomes))


def starts(directory: RunDirectory) -> int:
    return len(json.loads(directory.environment_file.read_text()))


def test_two_commands_on_one_list_train_every_run_once(tiny_corpus, tmp_path, nursery):
    specs = seeds(tiny_corpus, *range(1, 9), steps=25, save_every=25)
    arguments = ([spec.model_dump_json() for spec in specs], str(tmp_path), os.environ["COMT_CACHE"])
    commands = [nursery.start(train_list, *arguments, name) for name in ("first", "second")]
    for command in commands:
        command.join()
        assert command.exitcode == 0
    ended = [(tmp_path / name).read_text().split() for name in ("first", "second")]
    assert all(set(pair) <= {"done", "elsewhere"} and "done" in pair for pair in zip(*ended, strict=True)), ended
    directories = [RunDirectory.of(tmp_path, spec) for spec in specs]
    assert [directory.state() for directory in directories] == [RunState.done] * 8
    assert [starts(directory) for directory in directories] == [1] * 8
    owners = {directory.lock_file.read_text() for directory in directories}
    assert len(owners) == 2, "one did it all"


def test_what_a_killed_command_had_is_taken_up_by_the_other(tiny_corpus, tmp_path, nursery):
    specs = seeds(tiny_corpus, 1, 2, 3, steps=40, save_every=5, log_every=5)
    arguments = ([spec.model_dump_json() for spec in specs], str(tmp_path), os.environ["COMT_CACHE"])
    first = nursery.start(train_list, *arguments, "first")
    directories = [RunDirectory.of(tmp_path, spec) for spec in specs]
    wait_until(directories[0].checkpoint_file.exists)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)  # so that it cannot end its run meanwhile
    second = nursery.start(train_list, *arguments, "second")
    wait_until(lambda: is_training(directories[1]))
    first.kill()
    first.join()
    second.join()
    assert (tmp_path / "second").read_text() == "done done done"
    assert [starts(directory) for directory in directories] == [2, 1, 1]
    assert_same_run(directories[0], train(specs[0], tmp_path / "alone"))


def test_a_run_that_fails_does_not_stop_the_others(tiny_corpus, tmp_path):
    """Neither what we expect to go wrong, nor what we do not; each worker starts afresh after it."""
    specs = seeds(tiny_corpus, 1, 2, 3, 4)
    specs[0] = specs[0].model_copy(update={"method": {"name": "no-such-method"}})
    broken = RunDirectory.of(tmp_path, specs[1])
    broken.create(specs[1])
    broken.checkpoint_file.write_bytes(b"")
    crew = Crew(specs, tmp_path)
    assert crew.run() == [Ending.failed, Ending.failed, Ending.done, Ending.done]
    assert "no-such-method" in str(RunDirectory.of(tmp_path, specs[0]).error())
    assert "is not a checkpoint" in str(broken.error())
