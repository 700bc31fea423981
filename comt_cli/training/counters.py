"""Where a run stands in plain numbers, and the losses that nobody has looked at yet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
