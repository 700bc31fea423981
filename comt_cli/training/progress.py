"""What a run tells while it trains, in numbers and in words. Who shows it to people is `campaign.progress`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task
from comt_cli.tasks.base import Unit


@dataclass(frozen=True)
class StepReport:
    """A logged step. Loss in nats per target; speed in units per second over all devices; MFU a share."""

    step: int
    loss: float
    per_second: float
    mfu: float | None
    memory_bytes: int | None
    unit: Unit

    @property
    def details(self) -> tuple[str, ...]:
        """Its numbers in words, those first that are missed most."""
        parts = [f"loss {self.loss:.3f}", f"{self.per_second:,.0f} {self.unit.short}/s"]
        if self.mfu is not None:
            parts.append(f"MFU {self.mfu:.1%}")
        if self.memory_bytes is not None:
            parts.append(f"{self.memory_bytes / 2**30:.1f} GiB")
        return tuple(parts)

    def __str__(self) -> str:
        return ", ".join(self.details)


class Listener:
    """Hears what the loop does, and by itself says nothing: what all processes but the main one use."""

    def run_started(self, spec: RunSpec, step: int) -> None:
        """A run starts at `step`; not 0 when it resumes from a checkpoint."""

    def step_done(self, report: StepReport) -> None:
        """A step was logged."""

    def evaluating(self) -> None:
        """An evaluation begins."""

    def evaluated(self, done: int, total: int) -> None:
        """`done` of the evaluation's `total` batches are evaluated."""

    def warn(self, text: str) -> None:
        """Something about the run at hand that its reader must know."""


def outcome(task: Task[Any], result: dict[str, Any]) -> str:
    """The result of a task's run in a few words."""
    if result["state"] == "diverged":
        return f"diverged at step {result.get('diverged_at', '?')}"
    metric, unit = task.metrics[task.metric], task.unit
    value, seconds, rate = (_number(result, key) for key in (task.metric, "train_seconds", unit.per_second))
    words = [f"{metric.brief} beyond range" if value is None else f"{metric.brief} {value:.2f}{metric.sign}"]
    if seconds is not None:
        words.append(f"{seconds:.0f} s")
    if rate is not None:
        words.append(f"{rate:,.0f} {unit.short}/s")
    return ", ".join(words)


def _number(result: dict[str, Any], key: str) -> float | None:
    """A number of `result.json`, None where it has none: the file may come from anywhere."""
    found = result.get(key)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None
