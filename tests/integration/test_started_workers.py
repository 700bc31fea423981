"""Runs that start from others, trained by workers, in one process, and beside other processes of the same folder."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dying import wait_until
from test_workers import Crew, Notes, no_worker_is_left, quick_workers
from tiny_runs import assert_same_run, tiny_spec, train
from worlds import run_together, train_table

from comt_cli.campaign import inline
from comt_cli.campaign.display import Display, make_display
from comt_cli.campaign.inline import train_queue
from comt_cli.campaign.outcomes import Ending
from comt_cli.campaign.queue import RunQueue
from comt_cli.campaign.slurm import TrainJob
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.files import write_json
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec, RunStart
from comt_cli.training.processes import StopSignal

__all__ = ["no_worker_is_left", "quick_workers"]

STEPS = {"steps": 8, "log_every": 1, "save_every": 2}


@pytest.fixture
def source(tiny_corpus: str) -> RunSpec:
    return tiny_spec(tiny_corpus, **STEPS)


def started(source: RunSpec, *seeds: int) -> list[RunSpec]:
    return [source.model_copy(update={"seed": seed, "start": RunStart(run=source)}) for seed in seeds]


def test_workers_train_the_source_first(source, tmp_path):
    specs = started(source, 2, 3)
    crew = Crew(specs, tmp_path / "runs")
    assert crew.run() == [Ending.done] * 3
    begun = [event[2] for event in crew.display.heard if event[0] == "started"]
    assert (begun[0], set(begun[1:])) == (1, {2, 3})
    assert crew.queue.summary().lines() == ["3 runs: 3 done"]
    assert train_table(specs, tmp_path / "alone", "cpu").lines() == ["3 runs: 3 done"]
    for spec in (source, *specs):
        assert_same_run(*(RunDirectory.of(tmp_path / folder, spec) for folder in ("runs", "alone")))


def test_a_source_that_diverges_is_told(source, tiny_corpus, tmp_path):
    diverging = tiny_spec(tiny_corpus, **STEPS | {"warmup_steps": 0}, learning_rate=1e30)
    crew = Crew(started(diverging, 2), tmp_path)
    assert crew.run() == [Ending.diverged, Ending.failed]
    assert "starts from comt/tiny a-row, tiny, seed 1, which diverged at step" in crew.queue.summary().lines()[1]


@contextlib.contextmanager
def trained_elsewhere(source: RunSpec, folder: Path, awaited: Callable[[], bool]) -> Iterator[Path]:
    """A folder of runs where another machine has the source; it leaves its result once that is `awaited`."""
    runs = folder / "runs"
    directory, made = RunDirectory.of(runs, source), train(source, folder / "elsewhere")
    held = threading.Event()

    def elsewhere() -> None:
        with directory.lock():
            held.set()
            wait_until(awaited)
            directory.checkpoint_file.write_bytes(made.checkpoint_file.read_bytes())
            write_json(directory.result_file, json.loads(made.result_file.read_text(encoding="utf-8")))

    other = threading.Thread(target=elsewhere)
    other.start()
    held.wait()
    yield runs
    other.join()


class Waits(Notes):
    def waiting(self, text):
        self.note("waiting", 0, text)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_that_another_machine_trains_is_awaited(workers, source, tmp_path):
    specs, display = started(source, 2), Waits()
    with trained_elsewhere(source, tmp_path, lambda: display.count("waiting") > 0) as runs:
        if workers > 1:
            found = Crew(specs, runs, display=display).run()
        else:
            found = [each.ending for each in train_queue(RunQueue(specs, runs), "cpu", display, StopSignal()).outcomes]
    assert found == [Ending.done] * 2
    assert "which is being trained by process" in next(event[2] for event in display.heard if event[0] == "waiting")


def test_waiting_hears_a_signal(source, tmp_path):
    queue, stop = RunQueue(started(source, 2), tmp_path), StopSignal()

    class Impatient(Waits):
        def waiting(self, text):
            stop.number = 15

    with RunDirectory.of(tmp_path, source).lock(), pytest.raises(RunInterrupted, match="stopped while waiting for"):
        train_queue(queue, "cpu", Impatient(), stop)


def together(rank: int, specs: list[RunSpec], runs: Path, heard: Path) -> None:
    class Writes(Display):
        def waiting(self, text: str) -> None:
            heard.write_text(text, encoding="utf-8")

    inline.WAIT_SECONDS = 0.05
    display = Writes() if rank == 0 else Display()
    train_queue(RunQueue(specs, runs), "cpu", display, StopSignal())


def test_processes_that_share_a_run_wait_together(source, nursery, tmp_path):
    specs, heard = started(source, 2), tmp_path / "heard"
    with trained_elsewhere(source, tmp_path, heard.exists) as runs:
        run_together(nursery, 2, together, specs, runs, heard)
    result = RunDirectory.of(tmp_path / "runs", specs[0]).result()
    assert result is not None
    assert (result["state"], result["processes"], result["start"]) == ("done", 2, source.id)
    assert heard.read_text().startswith("waiting for comt/tiny a-row, tiny, seed 1")


def test_a_job_whose_source_nobody_trained_does_so(source, tmp_path):
    """Slurm begins it when its source's job has ended, however that was."""
    (spec,) = started(source, 2)
    TrainJob()(spec.model_dump(mode="json"), str(tmp_path), "cpu", 1, [])
    assert [RunDirectory.of(tmp_path, each).state() for each in (source, spec)] == [RunState.done] * 2


def test_models_that_do_not_fit_are_refused_before_the_source_is_trained(source, tiny_corpus, tmp_path):
    wider = tiny_spec(tiny_corpus, model={"ffn_width": 64}, **STEPS)
    specs = [wider.model_copy(update={"start": RunStart(run=source)})]
    with pytest.raises(UserError, match="in the source, and"):
        train_queue(RunQueue(specs, tmp_path), "cpu", make_display(False), StopSignal())
    assert not (tmp_path / "by-id").exists()
