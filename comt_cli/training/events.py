"""Events of a run while it trains: plain values that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from comt_cli.tasks.base import Unit


@dataclass(frozen=True)
class RunStarted:
    """A run begins to train; `step` is not 0 if it resumes from a checkpoint."""

    step: int


@dataclass(frozen=True)
class StepReport:
    """A logged step: loss in nats per target, speed in units per second over all devices, and MFU as a share."""

    step: int
    loss: float
    per_second: float
    mfu: float | None
    memory_bytes: int | None
    unit: Unit

    @property
    def details(self) -> tuple[str, ...]:
        """Its numbers as text, the most important first."""
        share = f"MFU {self.mfu:.1%}" if self.mfu is not None else ""
        memory = f"{self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes is not None else ""
        parts = (f"loss {self.loss:.3f}", f"{self.per_second:,.0f} {self.unit.short}/s", share, memory)
        return tuple(filter(None, parts))


@dataclass(frozen=True)
class Evaluating:
    """`done` of an evaluation's `total` batches are evaluated; 0 when it begins."""

    done: int
    total: int


@dataclass(frozen=True)
class Note:
    """A message about the run for the user."""

    text: str


Event = RunStarted | StepReport | Evaluating | Note
Listener = Callable[[Event], None]


def ignore(_: Event) -> None:
    """A listener that does nothing."""
