"""Where a run stands in plain numbers, and the losses that nobody has looked at yet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Self

from torch import Tensor, stack


@dataclass
class Counters:
    """Saved with every checkpoint. Seconds are of `timed_steps` steps and nothing else, over all starts of the run.

    `tokens` counts the targets seen: an image classifier's are images.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    timed_steps: int = 0
    waiting_seconds: float = 0.0
    metrics_bytes: int = 0
    timings_bytes: int = 0
    gradients_bytes: int = 0
    last_finite_loss: float | None = None

    @classmethod
    def restored(cls, progress: object, steps: int) -> Self:
        """The counters of a checkpoint of a run of `steps` steps. Raises `ValueError` where they are not such."""
        if not isinstance(progress, dict):
            raise ValueError(f"is {progress!r}, not a group of counters")
        known = {field.name: field for field in fields(cls)}
        if missing := [name for name in ("step", "tokens", "metrics_bytes", "timings_bytes") if name not in progress]:
            raise ValueError(f"has no {missing[0]}")
        for name, value in progress.items():
            if name not in known:
                raise ValueError(f"has a {name!r}, which is no counter")
            optional = name == "last_finite_loss"  # which may also be negative
            kinds = (int,) if known[name].type == "int" else (int, float)
            if value is None and optional:
                continue
            if type(value) not in kinds or not (optional or 0 <= value < 2**63):
                raise ValueError(f"has a {name} of {value!r}")
        if progress["step"] > steps:
            raise ValueError(f"is of step {progress['step']:,}, and the run has {steps:,}")
        return cls(**progress)


@dataclass
class UnseenLosses:
    """Losses of the steps after `first_step`, and the targets seen up to each. Looking at them waits for the device."""

    first_step: int
    losses: list[Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add(self, loss: Tensor, tokens: int) -> None:
        """The next step's loss, on the device, and the targets seen up to its end."""
        self.losses.append(loss)
        self.tokens.append(tokens)

    def all_finite(self, counters: Counters) -> bool:
        """Look at all. At one that is not finite `counters` go back to its step: the result must not depend on when
        it was looked for."""
        for offset, loss in enumerate(stack(self.losses).tolist() if self.losses else []):
            if not math.isfinite(loss):
                counters.step = self.first_step + offset + 1
                counters.tokens = self.tokens[offset]
                return False
            counters.last_finite_loss = loss
        self.losses.clear()
        self.tokens.clear()
        self.first_step = counters.step
        return True
