"""What a person is told while a command's runs train, by one worker or many: the events, and the state they add up to.

`plain_display` writes lines, for files and pipes; `live_display` draws bars on a terminal. Both are told the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from comt_cli.campaign.outcomes import Ending, RunOutcome
from comt_cli.campaign.queue import RunQueue
from comt_cli.campaign.time_left import TimeLeft
from comt_cli.runs.plan import RunSpec
from comt_cli.training.progress import Listener, StepReport, outcome


def in_words(ended: RunOutcome) -> str:
    """What became of a run."""
    if ended.result is not None:
        return outcome(ended.spec.task, ended.result) + (", finished by another process" if ended.already else "")
    if ended.ending is Ending.left:
        return ended.reason or ended.ending
    return f"{ended.ending}: {ended.reason}"


@dataclass(frozen=True)
class Start:
    """What a command is about to train.

    Attributes:
        every: its runs, each once; `waiting` those that have no result yet, in their order.
        before: those that have one, with it.
        runs: the folder of the run directories.
        workers: what trains them, by name: `cuda:0`, `cpu 1`.
        device: what people call the device, with each worker's threads.
        processes: how many share every run, each on such a device.
    """

    every: Sequence[RunSpec]
    waiting: Sequence[RunSpec]
    before: Sequence[tuple[RunSpec, dict[str, Any]]]
    runs: Path
    workers: Sequence[str]
    device: str
    processes: int = 1

    @classmethod
    def of(cls, queue: RunQueue, workers: Sequence[str], device: str, processes: int = 1) -> Start:
        """Of a queue from which nothing was taken yet."""
        before = [(each.spec, each.result) for each in queue.summary().outcomes if each.result is not None]
        every, waiting = ([shared.spec for shared in runs] for runs in (queue.every, queue.open))
        return cls(every, waiting, before, queue.runs, workers, device, processes)

    @property
    def timed(self) -> list[tuple[RunSpec, float]]:
        """Those of `before` that were trained to their end as these will be, and the seconds of their steps."""
        as_here = {"state": "done", "device": self.device, "processes": self.processes}
        alike = [(spec, result) for spec, result in self.before if as_here.items() <= result.items()]
        return [(spec, result["train_seconds"]) for spec, result in alike if _is_time(result.get("train_seconds"))]


def _is_time(seconds: object) -> bool:
    """Whether this is a time that something took: `result.json` may come from anywhere."""
    return isinstance(seconds, int | float) and 0 < seconds < math.inf


class Stage(StrEnum):
    """What a worker is doing."""

    idle = "idle"
    starting = "starting"
    training = "training"
    evaluating = "evaluating"


@dataclass
class WorkerState:
    """What a worker is at; `since` is when its stage began."""

    name: str
    stage: Stage = Stage.idle
    since: float = 0.0
    spec: RunSpec | None = None
    step: int = 0
    report: StepReport | None = None
    evaluated: tuple[int, int] | None = None


class Display:
    """Hears what happens to a command's runs. By itself it says nothing: what all processes but the main one use.

    A worker is named by its position among `Start.workers`.
    """

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        """Something that all runs need is being prepared."""

    def queue_started(self, start: Start) -> None:
        """All is prepared, and the first runs are about to begin."""

    def run_taken(self, worker: int, spec: RunSpec) -> None:
        """A worker has a run, and sets it up."""

    def run_started(self, worker: int, spec: RunSpec, step: int) -> None:
        """A worker begins a run at `step`; not 0 when it resumes from a checkpoint."""

    def step_done(self, worker: int, report: StepReport) -> None:
        """A step was logged; not every one is told."""

    def evaluating(self, worker: int) -> None:
        """A worker's run is at its validation split."""

    def evaluated(self, worker: int, done: int, total: int) -> None:
        """`done` of `total` batches are evaluated; not every one is told."""

    def warn(self, worker: int, text: str) -> None:
        """Something about a worker's run that its reader must know."""

    def run_given_back(self, worker: int, spec: RunSpec) -> None:
        """A worker's run has not ended; another will resume it."""

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        """A worker is done with a run, however it ended."""

    def waiting(self, text: str) -> None:
        """No run can begin before one that another process trains has ended; told again and again meanwhile."""

    def stopping(self, again: bool) -> None:
        """A signal came; called by its handler. `again`: it is the second, which ends workers at once."""

    def tick(self) -> None:
        """Time goes by. Called every second or sooner where there are workers, else after a logged step or a batch."""

    def close(self) -> None:
        """Nothing more will come."""


class Telling(Display):
    """A display that knows how all stands; what it says, and how, is its subclasses' affair."""

    def __init__(self) -> None:
        self.start: Start | None = None
        self.places: list[WorkerState] = []
        self.time_left = TimeLeft(())
        self.began = time.monotonic()
        self.done = 0
        self.stage = ""
        self.stage_began = self.began
        self.stop_text: str | None = None
        self.waiting_text: str | None = None

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        if stage != self.stage:
            self.stage, self.stage_began = stage, time.monotonic()

    def queue_started(self, start: Start) -> None:
        self.start, self.stage = start, ""
        self.began, self.done = time.monotonic(), len(start.every) - len(start.waiting)
        self.places = [WorkerState(name) for name in start.workers]
        self.time_left = TimeLeft(start.waiting, time.monotonic)
        for spec, seconds in start.timed:
            self.time_left.finished_before(spec, seconds)

    def run_taken(self, worker: int, spec: RunSpec) -> None:
        self.places[worker] = WorkerState(self.places[worker].name, Stage.starting, time.monotonic(), spec)
        self.time_left.taken(worker, spec)

    def run_started(self, worker: int, spec: RunSpec, step: int) -> None:
        self.places[worker] = WorkerState(self.places[worker].name, Stage.training, time.monotonic(), spec, step)
        self.time_left.started(worker, spec, step)

    def step_done(self, worker: int, report: StepReport) -> None:
        place = self.places[worker]
        place.step, place.report = report.step, report
        if place.stage is not Stage.training:
            place.stage, place.since, place.evaluated = Stage.training, time.monotonic(), None
        self.time_left.stepped(worker, report.step)

    def evaluating(self, worker: int) -> None:
        place = self.places[worker]
        place.stage, place.since, place.evaluated = Stage.evaluating, time.monotonic(), None

    def evaluated(self, worker: int, done: int, total: int) -> None:
        self.places[worker].evaluated = (done, total)
        self.time_left.evaluated(worker, done, total)

    def run_given_back(self, worker: int, spec: RunSpec) -> None:
        self.places[worker] = WorkerState(self.places[worker].name)
        self.time_left.given_back(worker, spec)

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        self.places[worker] = WorkerState(self.places[worker].name)
        self.time_left.ended(worker, completed=ended.ended and not ended.already)
        self.done += ended.ended

    def waiting(self, text: str) -> None:
        if text != self.waiting_text:
            self.waiting_text = text
            self.waits(text)

    def waits(self, text: str) -> None:
        """It is something else by now that is waited for, or nothing was waited for before."""

    def stopping(self, again: bool) -> None:
        self.stop_text = _stop_text(self.places, self.stage, again=again)

    def all_left(self) -> float | None:
        """Seconds until all runs of the command have ended; None while that is not known."""
        return self.time_left.of_all(max(1, len(self.places)))


def _stop_text(places: Sequence[WorkerState], stage: str, *, again: bool) -> str:
    running = [place.spec for place in places if place.spec is not None and place.stage is not Stage.starting]
    starting = sum(place.stage is Stage.starting for place in places)
    lost = max((spec.settings.train.save_every for spec in running), default=0)
    if again:
        return f"ending at once: up to {lost} steps of each run are lost" if running else "ending at once"
    if running:
        what = "1 run" if len(running) == 1 else f"{len(running)} runs"
        return (
            f"stopping: saving {what} after the step at hand ... "
            f"(a second signal ends at once, and loses up to {lost} steps of each)"
        )
    if starting:
        return "stopping: no run has begun, there is nothing to save ..."
    return f"stopping: {stage} is broken off, what is ready is kept ..." if stage else "stopping ..."


class Teller(Listener):
    """Tells a display what this process's own run does: it is the display's only worker."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def run_started(self, spec: RunSpec, step: int) -> None:
        self._display.run_started(0, spec, step)

    def step_done(self, report: StepReport) -> None:
        self._display.step_done(0, report)
        self._display.tick()

    def evaluating(self) -> None:
        self._display.evaluating(0)

    def evaluated(self, done: int, total: int) -> None:
        self._display.evaluated(0, done, total)
        self._display.tick()

    def warn(self, text: str) -> None:
        self._display.warn(0, text)


def names_of(specs: Sequence[RunSpec]) -> Callable[[RunSpec], str]:
    """The shortest names that tell these runs apart: `pre-ln` where they differ in their rows alone."""
    tables = len({(spec.paper, spec.table) for spec in specs}) > 1
    columns = len({spec.column for spec in specs}) > 1
    seeds = len({spec.seed for spec in specs}) > 1

    def name(spec: RunSpec) -> str:
        table = f"{spec.paper}/{spec.table} " if tables else ""
        column = f", {spec.column}" if columns else ""
        return f"{table}{spec.row}{column}" + (f", seed {spec.seed}" if seeds else "")

    return name
