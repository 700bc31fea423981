"""What a run tells while it trains, in numbers and in words. Who shows it to people is `many.progress`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from comt_cli.runs.plan import RunSpec

SHORT = {"tokens": "tok", "images": "img"}
"""What speeds count, as a line of progress has room for it."""


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

    @property
    def details(self) -> tuple[str, ...]:
        """Its numbers in words, those first that are missed most."""
        parts = [f"loss {self.loss:.3f}", f"{self.per_second:,.0f} {SHORT[self.unit]}/s"]
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
