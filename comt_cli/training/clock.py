"""Where a run stands: its counters, the losses that nobody has looked at yet, and how long training steps take.

Neither compilation, nor evaluation, nor saving is on this clock.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, fields
from typing import Self

import torch
from torch import Tensor, stack

from comt_cli.models.accounting import cost_of
from comt_cli.runs.plan import RunSpec
from comt_cli.training.devices import peak_flops, synchronise
from comt_cli.training.world import World


class Clock:
    """Adds the time of steps to a run's counters.

    Attributes:
        rate: positions per second over all devices, in the stretch of steps before the last `stop`.
        waiting_share: the part of that stretch spent waiting for data.
    """

    def __init__(self, device: torch.device, counters: Counters, positions_per_step: int) -> None:
        self.rate = self.waiting_share = 0.0
        self._device, self._counters, self._positions = device, counters, positions_per_step
        self._time = self._waited = 0.0
        self._step = 0

    def start(self, waited: float) -> None:
        """From here on steps are timed; `waited` are the seconds that the loader has cost so far."""
        self._time, self._waited, self._step = time.perf_counter(), waited, self._counters.step

    def lap(self, waited: float) -> None:
        """Wait for the device, add what went by since the last `start` or `lap`, and time the next steps."""
        synchronise(self._device)
        counters = self._counters
        seconds, waiting, steps = time.perf_counter() - self._time, waited - self._waited, counters.step - self._step
        counters.seconds += seconds
        counters.waiting_seconds += waiting
        counters.timed_steps += steps
        self.rate = steps * self._positions / max(seconds, 1e-9)
        self.waiting_share = waiting / max(seconds, 1e-9)
        self.start(waited)


def positions_per_step(spec: RunSpec) -> int:
    """Positions that one step of a run goes through on all devices."""
    return spec.settings.train.batch_size * spec.task.positions(spec.settings)


def mfu(spec: RunSpec, world: World, positions_per_second: float) -> float | None:
    """Model FLOP/s over the peak of all devices, None where the peak is not known."""
    peak = peak_flops(world.device, spec.settings.train.precision)
    if peak is None:
        return None
    per_position = cost_of(spec).flops_per_row / spec.task.positions(spec.settings)
    return positions_per_second * per_position / (peak * world.size)


@dataclass
class Counters:
    """Saved with every checkpoint. Seconds are of `timed_steps` steps and nothing else, over all starts of the run.

    `tokens` counts the targets seen: an image classifier's are images. `best_value` is that of the task's first metric
    at `best_step` (`train.select`); `chosen` is 1 once the weights are those that the run ends with.
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
    best_value: float | None = None
    best_step: int | None = None
    chosen: int = 0

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
            optional = name in ("last_finite_loss", "best_value", "best_step")  # which may also be negative
            kinds = (int,) if str(known[name].type).startswith("int") else (int, float)
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
