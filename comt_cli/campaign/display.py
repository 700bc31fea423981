"""The display of a command's runs: progress bars on a terminal; elsewhere lines for starts, ends and progress."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from comt_cli.campaign.estimate import RunProgress, TimeLeft
from comt_cli.campaign.queue import RunOutcome, RunQueue, run_name
from comt_cli.runs.plan import RunSpec
from comt_cli.training.events import Event, Note, RunStarted
from comt_cli.words import duration, plural

SILENT_SECONDS = 30.0
"""After this time without a line, a line shows the state of all workers."""


class Display:
    """Shows the events of a command's runs. Workers are numbered. Lines go to standard error; on a terminal (`console`)
    there are also bars for all runs and each worker. Nothing is shown if `is_silent`."""

    def __init__(self, console: Console | None = None, *, is_silent: bool = False) -> None:
        self.time_left = TimeLeft(())
        self._every: Sequence[RunSpec] = ()
        self._workers: Sequence[str] = ()
        self._done = 0
        self._stage, self._printed, self._is_silent = "", 0.0, is_silent
        self._bars = _Bars(console) if console is not None else None
        if self._bars is not None:
            self._bars.start()

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        """Show the preparation of something that all runs need."""
        count = f"{done:,} of {total:,}" if total else f"{done:,}" if done else ""
        if stage != self._stage:
            self._stage = stage
            self._print_line(f"{stage} ...")
        elif time.monotonic() - self._printed > SILENT_SECONDS:
            self._print_line(f"{stage}: {count or 'working'}")
        if self._bars is not None:
            self._bars.show("stage", stage, done, total, count)

    def queue_started(self, queue: RunQueue, workers: Sequence[str], device: str, processes: int = 1) -> None:
        """Show the start of the queue. `device` is a display name; `processes` of them share every run."""
        if self._bars is not None:
            self._bars.hide("stage")
        self._stage, self._workers = "", workers
        self._every, waiting = ([shared.spec for shared in runs] for runs in (queue.every, queue.open))
        self._done = len(self._every) - len(waiting)
        self.time_left = TimeLeft(waiting)
        if waiting:
            finished = f", {self._done} of {len(self._every)} are finished" if self._done else ""
            where = f"{processes} x {device}" if processes > 1 else device
            self._print(f"runs:  {len(waiting)} to train{finished}; files in {queue.runs}")
            self._print(f"where: {min(len(workers), len(waiting))} at a time on {where}")
            self._print("stop:  Ctrl-C saves the runs; the same command resumes from there")
        self._draw()

    def run_taken(self, worker: int, spec: RunSpec) -> None:
        """Show that a worker sets up a run."""
        self.time_left.take(worker, spec)
        self._draw()

    def run_event(self, worker: int, event: Event) -> None:
        """Show an event of a worker's run."""
        run = self.time_left.running.get(worker)
        if isinstance(event, Note):
            name = "" if len(self._workers) < 2 else f"{self._workers[worker]}: "
            self._print(f"{name}note: {event.text}")
        elif isinstance(event, RunStarted) and run is not None:
            resumed = f", resumed after step {event.step:,}" if event.step else ""
            self._print_line(f"{self._name(worker, run.spec)}: {run.total:,} steps{resumed}")
        self.time_left.receive(worker, event)

    def run_ended(self, worker: int, ended: RunOutcome | None) -> None:
        """Show the outcome of a worker's run; None if another worker will resume it."""
        self.time_left.end(worker, is_left=ended is None)
        if ended is not None:
            self._done += ended.ended
            self._print(f"{self._count} {self._name(worker, ended.spec)}: {ended}")
        self._draw()

    def tick(self) -> None:
        """Update the display. Called at least every second with workers, else after every event."""
        if time.monotonic() - self._printed > SILENT_SECONDS and self.time_left.running:
            running = sorted(self.time_left.running.items())
            runs = "; ".join(f"{self._name(worker, run.spec)}: {self._progress(run)}" for worker, run in running)
            left = self._all_left()
            self._print_line(f"{self._count} {runs}{left and f'; all runs: about {left}'}")
        self._draw()

    def stopping(self, again: bool) -> None:
        """Show that a signal came; called by its handler. `again`: it is the second, which ends workers at once."""
        begun = sum(run.began for run in self.time_left.running.values())
        saving = f": saving {plural(begun, 'run')} after the current step" if begun else ""
        text = "stopping at once" if again else f"stopping{saving} ... (a second signal stops at once)"
        if self._bars is not None:
            self._bars.stop_text = text
            return
        if self._is_silent:
            return
        # The handler may have interrupted a line: bypass the buffer, which could be damaged.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.write(sys.stderr.fileno(), f"{text}\n".encode())

    def close(self) -> None:
        """Remove the bars."""
        if self._bars is not None:
            self._bars.stop()

    def _all_left(self) -> str:
        left = self.time_left.of_all(max(1, len(self._workers)))
        return "" if left is None else f"{duration(left)} left"

    def _progress(self, run: RunProgress) -> str:
        if not run.began:
            return "starting"
        left, found = self.time_left.of_run(run), run.evaluating
        parts = [f"step {run.step:,} of {run.total:,}"]
        if found is not None:
            parts.append("evaluating" + (f" {found.done:,} of {found.total:,} batches" if found.done else ""))
        parts += [f"{duration(left)} left"] if left is not None else []
        return ", ".join([*parts, *(run.report.details if run.report is not None else ())])

    @property
    def _count(self) -> str:
        return f"[{self._done}/{len(self._every)}]"

    def _name(self, worker: int, spec: RunSpec) -> str:
        name = run_name(spec, with_table=len({(each.paper, each.table) for each in self._every}) > 1)
        return f"{self._workers[worker]}: {name}" if len(self._workers) > 1 else name

    def _draw(self) -> None:
        if self._bars is None:
            return
        total, running = len(self._every), self.time_left.running
        done = self._done + sum(run.step / run.total for run in running.values())
        self._bars.show("all", f"{self._done} of {plural(total, 'run')}", done, total, self._all_left())
        for worker in range(len(self._workers)):
            if (run := running.get(worker)) is None:
                self._bars.hide(worker)
            else:
                name, text = self._name(worker, run.spec), self._progress(run)
                self._bars.show(worker, name, run.step, run.total if run.began else None, text)

    def _print_line(self, text: str) -> None:
        """Print a line, unless bars on a terminal show it."""
        if self._bars is None:
            self._print(text)

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        if self._bars is not None:
            self._bars.console.print(Text(line))
        elif not self._is_silent:
            print(line, file=sys.stderr, flush=True)


class _Bars(Progress):
    """Named bars at the bottom of a terminal, with the reaction to a signal below them; removed at the end."""

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
        """The bars and the reaction to a signal."""
        yield from super().get_renderables()
        if self.stop_text:
            yield Text(self.stop_text)

    def show(self, name: str | int, description: str, done: float, total: float | None, text: str) -> None:
        """Show or update a bar."""
        if name not in self._ids:
            self._ids[name] = self.add_task(description, total=total, text=text)
        if total is not None:
            done = min(done, 0.999 * total)  # the clock of a full bar would stop
        self.update(self._ids[name], description=description, completed=done, total=total, text=text)

    def hide(self, name: str | int) -> None:
        """Remove a bar; its clock starts again if it is shown again."""
        if (found := self._ids.pop(name, None)) is not None:
            self.remove_task(found)


def make_display(is_main: bool = True) -> Display:
    """A display with bars on a terminal and lines elsewhere; silent in all processes but the main one."""
    on_terminal = is_main and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return Display(Console(stderr=True) if on_terminal else None, is_silent=not is_main)
