"""What a person sees while a table trains: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from comt_cli.recipe.plan import RunSpec
from comt_cli.training.many.outcomes import RunOutcome, run_name

SHORT = {"tokens": "tok", "images": "img"}
"""What speeds count, as a line of progress has room for it."""
PLAIN_SECONDS = 10.0
"""How often a plain line says where a run is."""


@dataclass(frozen=True)
class StepReport:
    """A logged step. Loss in nats per target; speed in token positions or images per second over all devices, which
    `unit` says; MFU a share."""

    step: int
    loss: float
    per_second: float
    mfu: float | None
    memory_bytes: int | None
    unit: str = "tokens"

    def __str__(self) -> str:
        parts = [f"loss {self.loss:.3f}", f"{self.per_second:,.0f} {SHORT[self.unit]}/s"]
        if self.mfu is not None:
            parts.append(f"MFU {self.mfu:.1%}")
        if self.memory_bytes is not None:
            parts.append(f"{self.memory_bytes / 2**30:.1f} GiB")
        return ", ".join(parts)


class Listener:
    """Hears what the loop does, and by itself says nothing: what all processes but the main one use."""

    def table_started(self, runs: int, done: int) -> None:
        """`runs` will be gone through, `done` of which need nothing more."""

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        """A data set is being prepared."""

    def run_started(self, spec: RunSpec, step: int) -> None:
        """A run starts at `step`; not 0 when it goes on from a checkpoint."""

    def step_done(self, report: StepReport) -> None:
        """A step was logged."""

    def evaluating(self) -> None:
        """The validation set is being gone through."""

    def run_finished(self, spec: RunSpec, result: dict[str, Any]) -> None:
        """A run has its result."""

    def gave_up(self, outcome: RunOutcome) -> None:
        """A run was tried and has no result: it failed, or another process is training it."""

    def warn(self, text: str) -> None:
        """Something about the run at hand that its reader must know."""

    def close(self) -> None:
        """Nothing more will come."""


def without_result(outcome: RunOutcome) -> str:
    """A run that was tried and has no result, in words."""
    return f"{run_name(outcome.spec)}: {outcome.ending}: {outcome.reason}"


def outcome(result: dict[str, Any]) -> str:
    """One run's result in a few words."""
    if result["state"] == "diverged":
        return f"diverged at step {result.get('diverged_at', '?')}"
    unit = "images" if "accuracy" in result else "tokens"
    name = "accuracy" if unit == "images" else "perplexity"
    value, seconds, rate = (_number(result, key) for key in (name, "train_seconds", f"{unit}_per_second"))
    words = [f"{name} beyond range" if value is None else f"{name} {value:.2f}" + (" %" if unit == "images" else "")]
    if seconds is not None:
        words.append(f"{seconds:.0f} s")
    if rate is not None:
        words.append(f"{rate:,.0f} {SHORT[unit]}/s")
    return ", ".join(words)


def _number(result: dict[str, Any], key: str) -> float | None:
    """A number of `result.json`, None where it has none: the file may come from anywhere."""
    found = result.get(key)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


class PlainListener(Listener):
    """Plain lines on standard error: when a run starts and ends, and every few seconds in between."""

    def __init__(self) -> None:
        self._runs = self._position = 0
        self._spoke = 0.0
        self._stage = ""
        self._steps = 0
        self._started_at: tuple[float, int] = (0.0, 0)

    def table_started(self, runs: int, done: int) -> None:
        self._runs, self._position = runs, done
        if done:
            self._say(f"{done} of {runs} runs are finished already")

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        if stage != self._stage or self._is_time():
            self._stage = stage
            self._say(f"{stage}: {done:,}" + (f" of {total:,}" if total else ""))

    def run_started(self, spec: RunSpec, step: int) -> None:
        self._position += 1
        self._steps = spec.settings.train.steps
        self._started_at = (time.monotonic(), step)
        going_on = f", going on after step {step}" if step else ""
        place = f"[{self._position}/{self._runs}] " if self._runs else ""
        self._say(f"{place}{run_name(spec)}: {self._steps} steps{going_on}")

    def step_done(self, report: StepReport) -> None:
        if self._is_time():
            began, first = self._started_at
            remaining = (time.monotonic() - began) / max(1, report.step - first) * (self._steps - report.step)
            self._say(f"  step {report.step}/{self._steps}, {report}, {remaining:.0f} s left")

    def run_finished(self, spec: RunSpec, result: dict[str, Any]) -> None:
        self._say(f"  {outcome(result)}")

    def gave_up(self, outcome: RunOutcome) -> None:
        self._say(without_result(outcome))

    def warn(self, text: str) -> None:
        self._say(f"  note: {text}")

    def _is_time(self) -> bool:
        return time.monotonic() - self._spoke > PLAIN_SECONDS

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        print(text, file=sys.stderr, flush=True)


class RichListener(Listener):
    """Bars: one for the table, one for the run at hand with its loss, speed, MFU, memory and remaining time."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
        )
        self._progress.start()
        self._table = self._progress.add_task("table", total=None, visible=False, note="")
        self._run = self._progress.add_task("run", total=None, visible=False, note="")
        self._data = self._progress.add_task("data", total=None, visible=False, note="")

    def table_started(self, runs: int, done: int) -> None:
        self._progress.update(self._data, visible=False)
        self._progress.update(self._table, total=runs, completed=done, visible=True)

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        self._progress.update(self._data, description=stage, completed=done, total=total, visible=True)

    def run_started(self, spec: RunSpec, step: int) -> None:
        description = f"{spec.row} {spec.column} seed {spec.seed}"
        self._progress.reset(self._run, total=spec.settings.train.steps, completed=step, description=description)
        self._progress.update(self._run, visible=True, note="")

    def step_done(self, report: StepReport) -> None:
        self._progress.update(self._run, completed=report.step, note=str(report))

    def evaluating(self) -> None:
        self._progress.update(self._run, note="evaluating")

    def run_finished(self, spec: RunSpec, result: dict[str, Any]) -> None:
        self._progress.console.print(f"{run_name(spec)}: {outcome(result)}", highlight=False)
        self._progress.advance(self._table)
        self._progress.update(self._run, visible=False)

    def gave_up(self, outcome: RunOutcome) -> None:
        self._progress.console.print(without_result(outcome), highlight=False, markup=False)
        self._progress.update(self._run, visible=False)

    def warn(self, text: str) -> None:
        self._progress.console.print(f"note: {text}", highlight=False)

    def close(self) -> None:
        self._progress.stop()


def make_listener(is_main: bool) -> Listener:
    """Bars on a terminal, plain lines elsewhere, silence in all processes but the main one."""
    if not is_main:
        return Listener()
    return RichListener() if sys.stderr.isatty() else PlainListener()
