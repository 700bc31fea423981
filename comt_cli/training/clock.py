"""How long training steps take, and nothing else: neither compilation, nor evaluation, nor saving is on this clock."""

from __future__ import annotations

import time

import torch

from comt_cli.models.accounting import cost_of
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.settings import Settings
from comt_cli.training.counters import Counters
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


def positions_per_row(spec: RunSpec) -> int:
    """What speeds count: token positions, padding included, of a row of text; an image is one."""
    return spec.settings.data.sequence_length if isinstance(spec.settings, Settings) else 1


def positions_per_step(spec: RunSpec) -> int:
    """Positions that one step of a run goes through on all devices."""
    return spec.settings.train.batch_size * positions_per_row(spec)


def mfu(spec: RunSpec, world: World, positions_per_second: float) -> float | None:
    """Model FLOP/s over the peak of all devices, None where the peak is not known."""
    peak = peak_flops(world.device, spec.settings.train.precision)
    if peak is None:
        return None
    per_position = cost_of(spec).flops_per_row / positions_per_row(spec)
    return positions_per_second * per_position / (peak * world.size)
