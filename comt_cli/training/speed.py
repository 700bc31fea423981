"""The speed of training steps, compilation, evaluation and saving left out: timed while a run trains, and estimated
before it does."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comt_cli.layers.dropout import Masks
from comt_cli.models.accounting import cost_of
from comt_cli.models.base import VocabularyModel
from comt_cli.models.build import materialise, model_of
from comt_cli.runs.plan import RunSpec
from comt_cli.training.checkpoint import Counters
from comt_cli.training.devices import compute_context, parameter_dtype, peak_flops, synchronise
from comt_cli.training.objective import SummedLoss
from comt_cli.training.parallel import World
from comt_cli.training.tasks import run_class

_SMALL = 1e10  # FLOPs of a step that a CPU is asked to do for an estimate: less than a second
_STEPS_SECONDS = 0.8


class Clock:
    """Adds the time of steps to a run's counters. `rate` is what the task counts (`Task.counts_targets`) per second
    over all devices in the steps before the last lap, `waiting_share` the part of that spent waiting for data."""

    def __init__(self, device: torch.device, counters: Counters, spec: RunSpec) -> None:
        self.rate = self.waiting_share = 0.0
        self._device, self._counters, self._spec = device, counters, spec

    def start(self, waited: float) -> None:
        """From here on steps are timed; `waited` are the seconds that the loader has cost so far."""
        self._time, self._waited = time.perf_counter(), waited
        self._step, self._tokens = self._counters.step, self._counters.tokens

    def lap(self, waited: float) -> None:
        """Wait for the device, add what went by since the last `start` or `lap`, and time the next steps."""
        synchronise(self._device)
        counters = self._counters
        seconds, waiting, steps = time.perf_counter() - self._time, waited - self._waited, counters.step - self._step
        counters.seconds += seconds
        counters.waiting_seconds += waiting
        counters.timed_steps += steps
        self.rate = counted(self._spec, steps, counters.tokens - self._tokens) / max(seconds, 1e-9)
        self.waiting_share = waiting / max(seconds, 1e-9)
        self.start(waited)


def counted(spec: RunSpec, steps: int, targets: int) -> int:
    """Number of units that speeds count in so many steps of a run, which had so many targets, on all devices."""
    if spec.task.counts_targets:
        return targets
    return steps * spec.settings.train.batch_size * spec.task.positions(spec.settings)


def mfu(spec: RunSpec, world: World, per_second: float) -> float | None:
    """Model FLOP/s, at a speed as `Clock` counts it, over the peak of all devices, None where the peak is not known."""
    peak = peak_flops(world.device, spec.settings.train.precision)
    if peak is None:
        return None
    return per_second * cost_of(spec).flops_per_row / spec.task.positions(spec.settings) / (peak * world.size)


def measured_step_flops(spec: RunSpec, device: torch.device, threads: int) -> float | None:
    """FLOP/s of a training step of the run's model on random batches of its size, with the reference's operations,
    measured here and now: the best of a few within a second. None where a step would take longer than an estimate may,
    or FLOPs do not tell its time."""
    train, model = spec.settings.train, model_of(spec)
    rows = min(train.micro_batch_size or train.batch_size, train.batch_size)
    flops = float(cost_of(spec).flops_per_row) * rows
    if device.type != "cpu" or flops > _SMALL or getattr(train, "samples", None):
        return None  # most of a self-critical step is drawing and rewards
    # oneDNN's convolutions of very narrow networks were seen to corrupt memory (four channels, PyTorch 2.13, AMD EPYC).
    if not isinstance(model, VocabularyModel):
        return None
    before, random = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(threads)
    # Of one thread its processor time: other programs are busy now, and may not be when the runs are trained.
    clock = time.process_time if threads == 1 else time.perf_counter
    try:
        inputs = _random_inputs(model, rows)
        Masks(model).move_to(0, np.arange(rows, dtype=np.int64), device)
        materialise(model, device, 0)
        model.to(parameter_dtype(train.precision))
        objective = SummedLoss(model, "reference")
        optimizer = run_class(spec.task).optimizer(model, spec.settings)
        taken: list[float] = []
        deadline = float("inf")
        while len(taken) < 2 or time.perf_counter() < deadline:
            start = clock()
            with compute_context(train.precision, device):
                loss = objective(*inputs)
            torch.autograd.backward(loss / inputs[-1].numel())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            taken.append(clock() - start)
            if len(taken) == 1:
                deadline = time.perf_counter() + _STEPS_SECONDS
        return flops / max(min(taken[1:]), 1e-9)  # a coarse clock may not have moved
    finally:
        torch.set_num_threads(before)
        torch.set_rng_state(random)


def _random_inputs(model: Any, rows: int) -> tuple[Tensor, ...]:
    """Inputs like `Model.example`, and as many targets as the last of them has tokens."""
    inputs = []
    for number, like in enumerate(model.example(rows)):
        most = model.places.get(number, model.vocabulary)
        kinds = {torch.float32: torch.randn(like.shape), torch.bool: torch.ones(like.shape, dtype=torch.bool)}
        inputs.append(kinds.get(like.dtype, torch.randint(min(1, most - 1), most, like.shape)))
    return *inputs, torch.randint(1, model.vocabulary, inputs[-1].shape)


@functools.lru_cache(maxsize=8)
def estimated_flops_per_second(device: torch.device, precision: str, share: float) -> float:
    """FLOP/s that a training step is expected to reach: this share of the device's peak where it is known, else of the
    speed of a matrix product measured here and now."""
    return share * (peak_flops(device, precision) or measured_matmul_flops(device, precision))


def measured_matmul_flops(device: torch.device, precision: str) -> float:
    """FLOP/s of a 1024 x 1024 x 1024 product in the precision that does the work; the best of a few."""
    size = 1024
    a = torch.ones(size, size, device=device, dtype=torch.float32 if precision == "fp32" else torch.bfloat16)
    taken: list[float] = []
    deadline = time.perf_counter() + 0.2
    while not taken or time.perf_counter() <= deadline:
        start = time.perf_counter()
        a @ a
        synchronise(device)
        taken.append(time.perf_counter() - start)
    return 2 * size**3 / min(taken)
