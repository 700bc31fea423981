"""The order of training samples, and their random draws: pure functions of (seed, position).

Epoch e visits every row once, in the order of a permutation P_e of range(rows): a Feistel network keyed by (seed, e).
Each entry is computed independently, and resuming needs only the step. The network acts on pairs (l, r) with l < a, r <
b and a * b slightly above `rows`. A round adds a hash of one half to the other half, modulo its size, which is
invertible. Pairs that represent a number >= rows pass through the network again until the number is below (cycle
walking).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_DRAWS = 0xD1B54A32D192ED03  # an arbitrary constant that separates draws from the keys of the order


def sample_indices(seed: int, start: int, count: int, rows: int) -> NDArray[np.int64]:
    """Row numbers at positions [start, start + count) of the infinite training order of `seed`, any integer: int64
    [count] in [0, rows), 1 <= rows < 2**62. Positions [e * rows, (e + 1) * rows) contain every row exactly once."""
    if rows < 1 or start < 0 or count < 0:
        raise ValueError(f"no order for start={start}, count={count}, rows={rows}")
    epochs, offsets = np.divmod(np.arange(start, start + count, dtype=np.int64), rows)
    keys = mix(epochs.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(_seed_key(seed)))
    values = _permute(offsets.astype(np.uint64), keys, rows)
    outside = np.flatnonzero(values >= rows)
    while outside.size:
        values[outside] = _permute(values[outside], keys[outside], rows)
        outside = outside[values[outside] >= rows]
    return values.astype(np.int64)


def uniform_draws(seed: int, start: int, count: int, numbers: int) -> NDArray[np.float64]:
    """Random numbers for the samples at positions [start, start + count) of the training order of `seed`: float64
    [count, numbers], uniform in [0, 1), with 53 random bits. Each is a hash of (seed, position, its number)."""
    positions = np.arange(start, start + count, dtype=np.int64).astype(np.uint64)
    samples = mix(positions * np.uint64(_GOLDEN) + np.uint64(_seed_key(seed) ^ _DRAWS))
    steps = np.arange(1, numbers + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return (mix(samples[:, None] + steps) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _permute(values: NDArray[np.uint64], keys: NDArray[np.uint64], rows: int) -> NDArray[np.uint64]:
    """One pass of the network over range(a * b), the smallest near-square rectangle that contains range(rows)."""
    a = math.isqrt(rows - 1) + 1
    size_left, size_right = np.uint64(a), np.uint64(-(-rows // a))
    left, right = np.divmod(values, size_right)
    for number in range(ROUNDS):
        round_keys = keys + np.uint64((number + 1) * _GOLDEN & _MASK)
        if number % 2 == 0:
            left = (left + mix(right + round_keys) % size_left) % size_left
        else:
            right = (right + mix(left + round_keys) % size_right) % size_right
    return left * size_right + right


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser, element-wise: every input bit changes every output bit with probability 1/2."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _seed_key(seed: int) -> int:
    """Map neighbouring seeds (0, 1, 2 ...) to well-separated 64-bit keys."""
    return int(mix(np.array([(seed + 1) * _GOLDEN & _MASK], dtype=np.uint64))[0])
