"""What a person sees while several workers train: a bar for the queue and one for each worker, or plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from comt_cli.recipe.plan import RunSpec
from comt_cli.training.many.outcomes import RunOutcome, run_name
from comt_cli.training.progress import StepReport, outcome

PLAIN_SECONDS = 60.0
"""How long plain lines may be silent; then one says where every worker is."""


def in_words(ended: RunOutcome) -> str:
    """What became of a run."""
    if ended.result is not None:
        return outcome(ended.result) + (", finished by another process" if ended.already else "")
    return f"{ended.ending}: {ended.reason}"


class Display:
    """Hears what the workers do. By itself it says nothing.

    `workers` are their names, in order: later calls name a worker by its position among them.
    """

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        """A data set is being prepared."""

    def queue_started(self, runs: int, done: int, workers: Sequence[str], *, with_table: bool) -> None:
        """`runs` are in the queue, `done` of which need nothing more; `with_table`: they are of several tables."""

    def run_started(self, worker: int, spec: RunSpec, step: int) -> None:
        """A worker begins a run at `step`; not 0 when it goes on from a checkpoint."""

    def step_done(self, worker: int, report: StepReport) -> None:
        """A step was logged; not every one is told."""

    def evaluating(self, worker: int) -> None:
        """A worker's run is at its validation set."""

    def warn(self, worker: int, text: str) -> None:
        """Something about a worker's run that its reader must know."""

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        """A worker is done with a run, however it ended."""

    def tick(self) -> None:
        """Called about every second."""

    def close(self) -> None:
        """Nothing more will come."""


@dataclass
class _Place:
    """Where a worker is."""

    name: str
    spec: RunSpec | None = None
    step: int = 0
    report: StepReport | None = None


class PlainDisplay(Display):
    """Plain lines on standard error: when a run starts and ends, and where all are when nothing else was to be said."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._runs = self._ended = 0
        self._spoke = 0.0
        self._stage = ""
        self._with_table = False

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        if stage != self._stage or time.monotonic() - self._spoke > PLAIN_SECONDS / 6:
            self._stage = stage
            self._say(f"{stage}: {done:,}" + (f" of {total:,}" if total else ""))

    def queue_started(self, runs: int, done: int, workers: Sequence[str], *, with_table: bool) -> None:
        self._runs, self._ended, self._with_table = runs, done, with_table
        self._places = [_Place(name) for name in workers]
        if done:
            self._say(f"{done} of {runs} runs are finished already")
        self._say(f"{runs - done} to do, {len(workers)} at a time: {', '.join(workers)}")

    def run_started(self, worker: int, spec: RunSpec, step: int) -> None:
        place = self._places[worker]
        place.spec, place.step, place.report = spec, step, None
        going_on = f", going on after step {step}" if step else ""
        self._say(f"{place.name}: {self._name(spec)}: {spec.settings.train.steps} steps{going_on}")

    def step_done(self, worker: int, report: StepReport) -> None:
        self._places[worker].step, self._places[worker].report = report.step, report

    def warn(self, worker: int, text: str) -> None:
        self._say(f"{self._places[worker].name}: note: {text}")

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        self._places[worker].spec = None
        self._ended += ended.ended
        self._say(f"[{self._ended}/{self._runs}] {self._name(ended.spec)}: {in_words(ended)}")

    def tick(self) -> None:
        if time.monotonic() - self._spoke > PLAIN_SECONDS:
            running = [self._where(place, place.spec) for place in self._places if place.spec is not None]
            if running:
                self._say(f"[{self._ended}/{self._runs}] {'; '.join(running)}")

    def _where(self, place: _Place, spec: RunSpec) -> str:
        said = f", {place.report}" if place.report is not None else ""
        return f"{place.name}: {self._name(spec)}: step {place.step}/{spec.settings.train.steps}{said}"

    def _name(self, spec: RunSpec) -> str:
        return run_name(spec, with_table=self._with_table)

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        print(text, file=sys.stderr, flush=True)


class RichDisplay(Display):
    """Bars: one for the queue, one for each worker with its run, its loss and its speed."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(stderr=True),
        )
        self._progress.start()
        self._data = self._progress.add_task("data", total=None, visible=False, note="")
        self._queue = self._progress.add_task("all runs", total=None, visible=False, note="")
        self._bars: list[TaskID] = []
        self._names: Sequence[str] = ()
        self._with_table = False

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        self._progress.update(self._data, description=stage, completed=done, total=total, visible=True)

    def queue_started(self, runs: int, done: int, workers: Sequence[str], *, with_table: bool) -> None:
        self._names, self._with_table = workers, with_table
        self._progress.update(self._data, visible=False)
        self._progress.update(self._queue, total=runs, completed=done, visible=True)
        self._bars = [self._progress.add_task(name, total=None, note="starting") for name in workers]

    def run_started(self, worker: int, spec: RunSpec, step: int) -> None:
        description = f"{self._names[worker]}: {run_name(spec, with_table=self._with_table)}"
        steps = spec.settings.train.steps
        self._progress.reset(self._bars[worker], total=steps, completed=step, description=description, note="")

    def step_done(self, worker: int, report: StepReport) -> None:
        self._progress.update(self._bars[worker], completed=report.step, note=str(report))

    def evaluating(self, worker: int) -> None:
        self._progress.update(self._bars[worker], note="evaluating")

    def warn(self, worker: int, text: str) -> None:
        self._print(f"{self._names[worker]}: note: {text}")

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        self._print(f"{run_name(ended.spec, with_table=self._with_table)}: {in_words(ended)}")
        if ended.ended:
            self._progress.advance(self._queue)
        self._progress.reset(self._bars[worker], total=None, description=self._names[worker], note="")

    def close(self) -> None:
        self._progress.stop()

    def _print(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)


def make_display() -> Display:
    """Bars on a terminal, plain lines elsewhere."""
    return RichDisplay() if sys.stderr.isatty() else PlainDisplay()
