"""The display of a command's runs: bars on a terminal (`rich.progress`); in a file or a pipe lines, one when something
starts or ends and one every half minute in between."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from comt_cli.campaign.outcomes import RunOutcome, run_name
from comt_cli.campaign.queue import RunQueue
from comt_cli.campaign.time_left import RunProgress, TimeLeft
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.training.events import Event, Note, RunStarted
from comt_cli.words import duration, plural

SILENT_SECONDS = 30.0
"""After so long without a line, one shows the state of all workers."""


@dataclass(frozen=True)
class Workload:
    """The runs of a command, and where they are trained.

    Attributes:
        every: its runs, each once; `waiting` those that have no result yet, in their order.
        before: the other runs, with their results.
        runs: the folder of the run directories.
        workers: the names of the workers: `cuda:0`, `cpu 1`.
        device: the device's name for people, with each worker's threads.
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
    def of(cls, queue: RunQueue, workers: Sequence[str], device: str, processes: int = 1) -> Workload:
        """The workload of a queue from which nothing was taken yet."""
        before = [(each.spec, each.result) for each in queue.summary().outcomes if each.result is not None]
        every, waiting = ([shared.spec for shared in runs] for runs in (queue.every, queue.open))
        return cls(every, waiting, before, queue.runs, workers, device, processes)

    @property
    def timed(self) -> list[tuple[RunSpec, float]]:
        """Those of `before` that were trained to their end as these will be, and the seconds of their steps."""
        as_here = {"state": "done", "device": self.device, "processes": self.processes}
        alike = [
            (spec, result.get("train_seconds")) for spec, result in self.before if as_here.items() <= result.items()
        ]
        return [(spec, took) for spec, took in alike if isinstance(took, int | float) and 0 < took < math.inf]

    def lines(self, seconds: float | None) -> list[str]:
        """What is about to be trained, where, for how long (`seconds`, None without an estimate), and how it stops."""
        done, steps = len(self.every) - len(self.waiting), [spec.settings.train.steps for spec in self.waiting]
        each = f"{min(steps):,}" if len(set(steps)) == 1 else f"{min(steps):,} to {max(steps):,}"
        finished = f", {done} of {len(self.every)} are finished" if done else ""
        at_once = min(len(self.workers), len(self.waiting))
        device = f"{self.processes} x {self.device}" if self.processes > 1 else self.device
        together = f"{at_once} at a time " if at_once > 1 else ""
        folders = {str(self.runs / Path(*spec.relative_path.parts[:2])) for spec in self.every}
        took = (
            f"about {duration(seconds)}, by {plural(len(self.timed), 'finished run')}" if seconds is not None else None
        )
        return [
            f"runs:  {len(self.waiting)} to train of {each} steps{finished} ({self._tables()})",
            f"where: {together}on {device}; files in {os.path.commonpath(folders)}",
            f"time:  {took}",
            "stop:  Ctrl-C saves what runs; the same command resumes from there",
        ]

    def _tables(self) -> str:
        """`comt/table3: 3 rows, 1 column, 2 seeds`."""
        tables = {f"{spec.paper}/{spec.table}" for spec in self.every}
        sizes = [plural(len({getattr(spec, key) for spec in self.every}), key) for key in ("row", "column", "seed")]
        points = {point_in_words(spec.point) for spec in self.every}
        sizes += [f"a grid of {len(points)}"] if len(points) > 1 else []
        return f"{tables.pop()}: {', '.join(sizes)}" if len(tables) == 1 else f"{len(tables)} tables"


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


class ProgressDisplay(Display):
    """Lines on standard error; on a terminal (`console`) above bars, one for all runs and one for each worker."""

    def __init__(self, console: Console | None = None) -> None:
        self.workload = Workload((), (), (), Path(), (), "")
        self.time_left = TimeLeft(())
        self._done = 0
        self._stage, self._stage_began, self._counted = "", 0.0, 0
        self._waiting, self._printed = "", 0.0
        self._bars = _Bars(console) if console is not None else None
        if self._bars is not None:
            self._bars.start()

    # ---- before the first run

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        count = f"{done:,} of {total:,}" if total else f"{done:,}" if done else ""
        if stage != self._stage:
            self._end_stage()
            self._stage, self._stage_began = stage, time.monotonic()
            self._print_line(f"{stage} ...")
        elif self._is_silent():
            self._print_line(f"{stage}: {count or 'at work'}, {_took(time.monotonic() - self._stage_began)}")
        self._counted = max(done, total or 0)
        if self._bars is not None:
            self._bars.show("stage", stage, done, total, count)

    def _end_stage(self) -> None:
        if self._stage:
            count = f"{self._counted:,} " if self._counted else ""
            self._print_line(f"{self._stage}: {count}done in {_took(time.monotonic() - self._stage_began)}")
        if self._bars is not None:
            self._bars.hide("stage")
        self._stage = ""

    def queue_started(self, workload: Workload) -> None:
        self._end_stage()
        self.workload, self._done = workload, len(workload.every) - len(workload.waiting)
        self.time_left = TimeLeft(workload.waiting, workload.timed, time.monotonic)
        if workload.waiting:
            self._print(*workload.lines(self.all_left()))
        self._draw()

    # ---- runs

    def run_taken(self, worker: int, spec: RunSpec) -> None:
        self.time_left.take(worker, spec)
        if len(self.workload.workers) > 1:
            self._print_line(f"{self._name(worker, spec)}: starting ...")
        self._draw()

    def run_event(self, worker: int, event: Event) -> None:
        run = self.time_left.running.get(worker)
        if isinstance(event, Note):
            self._print(f"{self._worker(worker)}note: {event.text}")
        elif isinstance(event, RunStarted) and run is not None:
            resumed = f", resumed after step {event.step:,}" if event.step else ""
            took = _took(time.monotonic() - run.since)
            self._print_line(f"{self._name(worker, run.spec)}: {run.total:,} steps{resumed}, started in {took}")
        self.time_left.receive(worker, event)

    def run_given_back(self, worker: int, spec: RunSpec) -> None:
        self.time_left.give_back(worker)
        self._draw()

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        self.time_left.end(worker, completed=ended.ended and not ended.already)
        self._done += ended.ended
        self._print(f"{self._count} {self._run(ended.spec)}: {ended}")
        self._draw()

    def waiting(self, text: str) -> None:
        if text != self._waiting:
            self._waiting = text
            self._print(f"{text} ...")

    def tick(self) -> None:
        if self._is_silent() and self.time_left.running:
            runs = "; ".join(
                f"{self._name(worker, run.spec)}: {self._progress(worker, run)}"
                for worker, run in sorted(self.time_left.running.items())
            )
            self._print_line(f"{self._count} {runs}{self._all_left('; all runs: about ')}")
        self._draw()

    def stopping(self, again: bool) -> None:
        text = _stop_text(self.time_left.running.values(), self._stage, again=again)
        if self._bars is not None:
            self._bars.stop_text = text
            return
        # In a signal's handler, which may have interrupted a line: written past the buffer, which it would damage.
        try:
            os.write(sys.stderr.fileno(), f"{text}\n".encode())
        except (OSError, ValueError, AttributeError):
            self._print(text)

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()

    def all_left(self) -> float | None:
        """Seconds until all runs of the command have ended; None while that is not known."""
        return self.time_left.of_all(max(1, len(self.workload.workers)))

    # ---- texts

    def _all_left(self, before: str) -> str:
        left = self.all_left()
        return "" if left is None else f"{before}{duration(left)} left"

    def _progress(self, worker: int, run: RunProgress) -> str:
        if not run.began:
            return f"starting, {_took(time.monotonic() - run.since)}"
        left, found = self.time_left.of_run(worker), run.evaluating
        parts = [f"step {run.step:,} of {run.total:,}"]
        if found is not None:
            parts.append("evaluating" + (f" {found.done:,} of {found.total:,} batches" if found.done else ""))
        parts += [f"{duration(left)} left"] if left is not None else []
        return ", ".join([*parts, *(run.report.details if run.report is not None else ())])

    @property
    def _count(self) -> str:
        return f"[{self._done}/{len(self.workload.every)}]"

    def _run(self, spec: RunSpec) -> str:
        return run_name(spec, with_table=len({(each.paper, each.table) for each in self.workload.every}) > 1)

    def _worker(self, worker: int) -> str:
        return f"{self.workload.workers[worker]}: " if len(self.workload.workers) > 1 else ""

    def _name(self, worker: int, spec: RunSpec) -> str:
        return f"{self._worker(worker)}{self._run(spec)}"

    def _draw(self) -> None:
        if self._bars is None:
            return
        total, running = len(self.workload.every), self.time_left.running
        done = self._done + sum(run.step / run.total for run in running.values())
        self._bars.show("all", f"{self._done} of {plural(total, 'run')}", done, total, self._all_left(""))
        for worker in range(len(self.workload.workers)):
            if (run := running.get(worker)) is None:
                self._bars.hide(worker)
            else:
                name, text = self._name(worker, run.spec), self._progress(worker, run)
                self._bars.show(worker, name, run.step, run.total if run.began else None, text)

    def _is_silent(self) -> bool:
        return time.monotonic() - self._printed > SILENT_SECONDS

    def _print_line(self, text: str) -> None:
        """Print what a terminal shows by its bars."""
        if self._bars is None:
            self._print(text)

    def _print(self, *lines: str) -> None:
        self._printed = time.monotonic()
        for line in lines:
            if self._bars is not None:
                self._bars.console.print(Text(line))
            else:
                print(line, file=sys.stderr, flush=True)


class _Bars(Progress):
    """Bars at the bottom of a terminal, by name, and below them the answer to a signal; gone when all is done."""

    def __init__(self, console: Console) -> None:
        self.stop_text = ""
        self._ids: dict[str | int, TaskID] = {}
        super().__init__(
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(12),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(overflow="fold")),
            console=console, transient=True, redirect_stdout=False, refresh_per_second=2,
        )  # fmt: skip

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars and the answer."""
        yield from super().get_renderables()
        if self.stop_text:
            yield Text(self.stop_text)

    def show(self, name: str | int, description: str, done: float, total: float | None, text: str) -> None:
        """Show a bar, or move it."""
        if name not in self._ids:
            self._ids[name] = self.add_task(description, total=total, text=text)
        self.update(self._ids[name], description=description, completed=done, total=total, text=text)

    def hide(self, name: str | int) -> None:
        """Remove a bar; its time begins anew when it comes back."""
        if (found := self._ids.pop(name, None)) is not None:
            self.remove_task(found)


def make_display(is_main: bool = True) -> Display:
    """Bars on a terminal, lines elsewhere, silence in all processes but the main one."""
    if not is_main:
        return Display()
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return ProgressDisplay(Console(stderr=True) if on_terminal else None)


def _stop_text(runs: Iterable[RunProgress], stage: str, *, again: bool) -> str:
    every = list(runs)
    begun = [run for run in every if run.began]
    lost = max((run.spec.settings.train.save_every for run in begun), default=0)
    if again:
        return f"ending at once: up to {lost} steps of each run are lost" if begun else "ending at once"
    if begun:
        return (
            f"stopping: saving {plural(len(begun), 'run')} after the step at hand ... "
            f"(a second signal ends at once, and loses up to {lost} steps of each)"
        )
    if every:
        return "stopping: no run has begun, there is nothing to save ..."
    return f"stopping: {stage} is broken off, what is ready is kept ..." if stage else "stopping ..."


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
