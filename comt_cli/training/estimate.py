"""How fast a device is likely to train: measured where that takes a moment, never guessed from another's."""

from __future__ import annotations

import functools
import time

import torch

from comt_cli.training.devices import peak_flops, synchronise

TYPICAL_SHARE = 0.4
"""Of a matrix product's speed, the part that a training step usually reaches."""
CONVOLUTIONAL_SHARE = 0.1
"""The same of a ResNet's step: memory binds its batch norms, and on a CPU its narrow convolutions."""


@functools.lru_cache(maxsize=8)
def estimated_flops_per_second(device: torch.device, precision: str, share: float = TYPICAL_SHARE) -> float:
    """FLOP/s that a training step is expected to reach: this share of the device's peak where it is known, else of the
    speed of a matrix product measured here and now (a fifth of a second)."""
    return share * (peak_flops(device, precision) or measured_matmul_flops(device, precision))


def measured_matmul_flops(device: torch.device, precision: str) -> float:
    """FLOP/s of a 1024 x 1024 x 1024 product in the precision that does the work; the best of a few."""
    size = 1024
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    a = torch.ones(size, size, device=device, dtype=dtype)
    best = float("inf")
    deadline = time.perf_counter() + 0.2
    while True:
        start = time.perf_counter()
        a @ a
        synchronise(device)
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() > deadline:
            return 2 * size**3 / best
