"""What is shown while a command's runs train, by one worker or many: `Display` receives what happens, `StatefulDisplay`
keeps the state that this adds up to. `plain_display` writes lines, `live_display` draws bars on a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from comt_cli.campaign.opening import Workload
from comt_cli.campaign.outcomes import RunOutcome, run_name
from comt_cli.campaign.time_left import TimeLeft
from comt_cli.runs.plan import RunSpec
from comt_cli.training.events import Evaluating, Event, RunStarted, StepReport
from comt_cli.words import plural


class Display:
    """Receives what happens to a command's runs. This one shows nothing: all processes but the main one have it.

    A worker is named by its position among `Workload.workers`.
    """

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        """Something that all runs need is being prepared."""

    def queue_started(self, workload: Workload) -> None:
        """All is prepared, and the first runs are about to begin."""

    def run_taken(self, worker: int, spec: RunSpec) -> None:
        """A worker has received a run, and sets it up."""

    def run_event(self, worker: int, event: Event) -> None:
        """Something happened to a worker's run. Not every logged step and evaluated batch is passed on."""

    def run_given_back(self, worker: int, spec: RunSpec) -> None:
        """A worker's run has not ended; another will resume it."""

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        """A worker is done with a run, however it ended."""

    def waiting(self, text: str) -> None:
        """No run can begin before one that another process trains has ended; called again and again meanwhile."""

    def stopping(self, again: bool) -> None:
        """A signal came; called by its handler. `again`: it is the second, which ends workers at once."""

    def tick(self) -> None:
        """Time passes. Called every second or sooner where there are workers, else after every event."""

    def close(self) -> None:
        """Nothing more will come."""


class Stage(StrEnum):
    """What a worker is doing."""

    idle = "idle"
    starting = "starting"
    training = "training"
    evaluating = "evaluating"


@dataclass
class WorkerState:
    """A worker's stage, which began at `since`, and how far its run is."""

    name: str
    stage: Stage = Stage.idle
    since: float = 0.0
    spec: RunSpec | None = None
    step: int = 0
    report: StepReport | None = None
    evaluated: Evaluating | None = None

    def enter(self, stage: Stage) -> None:
        """Begin a stage now."""
        self.stage, self.since, self.evaluated = stage, time.monotonic(), None


class StatefulDisplay(Display):
    """A display that knows the state of all runs and workers. How it is shown is up to its subclasses."""

    def __init__(self) -> None:
        self.workload: Workload | None = None
        self.workers: list[WorkerState] = []
        self.time_left = TimeLeft(())
        self.began = time.monotonic()
        self.done = 0
        self.stage = ""
        self.stage_began = self.began
        self.counted: tuple[int, int | None] = (0, None)
        self.several_tables = False
        self.stop_text: str | None = None
        self.waiting_text: str | None = None

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        if stage != self.stage:
            self.stage, self.stage_began = stage, time.monotonic()
        self.counted = (done, total)

    def queue_started(self, workload: Workload) -> None:
        self.workload, self.stage = workload, ""
        self.several_tables = len({(spec.paper, spec.table) for spec in workload.every}) > 1
        self.began, self.done = time.monotonic(), len(workload.every) - len(workload.waiting)
        self.workers = [WorkerState(name) for name in workload.workers]
        self.time_left = TimeLeft(workload.waiting, time.monotonic)
        for spec, seconds in workload.timed:
            self.time_left.finished_before(spec, seconds)

    def run_taken(self, worker: int, spec: RunSpec) -> None:
        self.workers[worker] = WorkerState(self.workers[worker].name, Stage.starting, time.monotonic(), spec)
        self.time_left.taken(worker, spec)

    def run_event(self, worker: int, event: Event) -> None:
        state = self.workers[worker]
        match event:
            case RunStarted(step) if state.spec is not None:
                state.step = step
                state.enter(Stage.training)
                self.time_left.started(worker, state.spec, step)
            case StepReport():
                state.step, state.report = event.step, event
                if state.stage is not Stage.training:
                    state.enter(Stage.training)
                self.time_left.stepped(worker, event.step)
            case Evaluating(done, total):
                if not done:
                    state.enter(Stage.evaluating)
                    return
                state.evaluated = event
                self.time_left.evaluated(worker, done, total)

    def run_given_back(self, worker: int, spec: RunSpec) -> None:
        self.workers[worker] = WorkerState(self.workers[worker].name)
        self.time_left.given_back(worker, spec)

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        self.workers[worker] = WorkerState(self.workers[worker].name)
        self.time_left.ended(worker, completed=ended.ended and not ended.already)
        self.done += ended.ended

    def waiting(self, text: str) -> None:
        if text != self.waiting_text:
            self.waiting_text = text
            self.show_waiting(text)

    def show_waiting(self, text: str) -> None:
        """Show what is waited for, which has changed."""

    def stopping(self, again: bool) -> None:
        self.stop_text = _stop_text(self.workers, self.stage, again=again)

    @property
    def count(self) -> str:
        """How many runs have ended, of how many: `[3/8]`."""
        return f"[{self.done}/{len(self.workload.every) if self.workload is not None else 0}]"

    def name(self, spec: RunSpec) -> str:
        """A run in words, with its table where there are several."""
        return run_name(spec, with_table=self.several_tables)

    def all_left(self) -> float | None:
        """Seconds until all runs of the command have ended; None while that is not known."""
        return self.time_left.of_all(max(1, len(self.workers)))

    def prefix(self, worker: int) -> str:
        """What a line about a worker begins with: its name, where there are several."""
        return f"{self.workers[worker].name}: " if len(self.workers) > 1 else ""


def _stop_text(workers: Sequence[WorkerState], stage: str, *, again: bool) -> str:
    running = [worker.spec for worker in workers if worker.spec is not None and worker.stage is not Stage.starting]
    starting = sum(worker.stage is Stage.starting for worker in workers)
    lost = max((spec.settings.train.save_every for spec in running), default=0)
    if again:
        return f"ending at once: up to {lost} steps of each run are lost" if running else "ending at once"
    if running:
        return (
            f"stopping: saving {plural(len(running), 'run')} after the step at hand ... "
            f"(a second signal ends at once, and loses up to {lost} steps of each)"
        )
    if starting:
        return "stopping: no run has begun, there is nothing to save ..."
    return f"stopping: {stage} is broken off, what is ready is kept ..." if stage else "stopping ..."
