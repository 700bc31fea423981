"""Dropout (Srivastava et al. 2014) whose masks are a pure function of (seed, sample, site, element).

    y = x m / (1 - p),  m = 0 with probability p, else 1

Every element hashes its own coordinates. A mask therefore does not depend on how a batch is divided, on resuming, on
the device or on checkpointing. A sample is identified by its position in the order of training, step * batch_size +
index in the global batch, and a site by its module's path. Adding a gate changes no other mask, so runs with one seed
are paired.

The hash: (seed, position, path) gives two words of 32 bits per sample (on the host, in NumPy). Each dimension but the
last mixes its coordinate into both; the last costs two multiplications per element. Coordinates count from 0 in every
dimension, independent of the memory layout, so padding a batch to another width changes no mask.

Shapes: B samples of a micro-batch, S sites of a model. Words are int32: torch's unsigned types lack operations, and a
product has the same lower 32 bits in either.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from comt_cli.data.order import mix

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, Knuth's multiplier for consecutive numbers
_GOLDEN_32 = 0x9E3779B9 - (1 << 32)
# Multipliers of a 32-bit finaliser with low bias (C. Wellons, hash-prospector, "lowbias32"), the second as an int32.
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - (1 << 32)


class Dropout(nn.Module):
    """x [B, ...], two dimensions or more -> the same shape and type. The identity in evaluation and for p = 0. Two
    calls in one pass draw the same mask."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        # The samples' words, int32 [2, B], set by `Masks`. Not a buffer, which is copied between processes. A tensor
        # of each module, so that otherwise equal blocks are compiled once.
        self.words: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Raises `RuntimeError` in training without a position, or at a position of another number of samples."""
        if not self.training or self.p == 0:
            return x
        words = self.words
        if x.is_meta:  # counting shapes and costs has no position
            words = x.new_empty((2, len(x)), dtype=torch.int32)
        if words is None:
            raise RuntimeError("dropout has no position: call `Masks(model).move_to` before training passes")
        if words.shape[1] != len(x):
            raise RuntimeError(f"dropout has the position of {words.shape[1]} samples but got {len(x)}")
        # Bits as a signed number are uniform over [-2^31, 2^31).
        is_kept = hashed(words, x.shape) >= round(self.p * 2**32) - 2**31
        return x * is_kept * (1 / (1 - self.p))


class Masks:
    """Sets the position in training of all `Dropout` modules of a model. Created once, with the model. `move_to` is
    called before the forward pass of every micro-batch and not again before its backward pass ends, because
    checkpointed blocks read the position again there."""

    def __init__(self, model: nn.Module) -> None:
        self._sites = {path: module for path, module in model.named_modules() if isinstance(module, Dropout)}
        digests = [hashlib.sha256(path.encode()).digest() for path in self._sites]
        self._keys_S = np.array([int.from_bytes(digest[:8], "big") for digest in digests], dtype=np.uint64)

    def move_to(self, seed: int, positions_B: NDArray[np.int64], device: torch.device) -> None:
        """Set the position for the next passes on `device`: one position in the order of `seed` for each sample."""
        # New tensors, not new values in the old ones, which a backward pass may still need. Compiled code takes
        # them as inputs and is not compiled again.
        words_S2B = torch.from_numpy(sample_words(seed, positions_B, self._keys_S))
        if device.type == "cuda":
            words_S2B = words_S2B.pin_memory()
        words_S2B = words_S2B.to(device, non_blocking=device.type == "cuda")
        for module, words_2B in zip(self._sites.values(), words_S2B, strict=True):
            module.words = words_2B


def sample_words(seed: int, positions_B: NDArray[np.int64], keys_S: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Two random words per site (by its key) and sample (by its position): int32 [S, 2, B]."""
    seed_key = mix(np.array([seed % (1 << 64)], dtype=np.uint64) + np.uint64(_GOLDEN))
    positions = np.asarray(positions_B, dtype=np.int64).astype(np.uint64)
    keys_B = mix(mix(positions * np.uint64(_GOLDEN)) ^ seed_key)
    keys_SB = mix(keys_B ^ keys_S[:, None])
    halves = [keys_SB & np.uint64(0xFFFFFFFF), keys_SB >> np.uint64(32)]
    return np.stack(halves, axis=1).astype(np.uint32).view(np.int32)


def hashed(words_2B: Tensor, shape: torch.Size) -> Tensor:
    """32 random bits per element of `shape` [B, ...], int32, from two words per sample. The upper bits are the best."""
    low, high = words_2B.view(2, -1, *[1] * (len(shape) - 1)).unbind()
    for dimension in range(1, len(shape) - 1):
        # A round of a Feistel network: states stay distinct.
        low = low ^ _mixed(high + _coordinates(shape, dimension, low))
        high = high ^ _mixed(low)
    # In place, as large as x: the finaliser again, with the other word between its multiplications.
    bits = low ^ _mixed(_coordinates(shape, len(shape) - 1, low))
    bits *= _FIRST
    bits ^= (bits >> 15).bitwise_and_(0x1FFFF)
    bits += high
    bits *= _SECOND
    return bits


def _coordinates(shape: torch.Size, dimension: int, like: Tensor) -> Tensor:
    numbers = torch.arange(shape[dimension], device=like.device, dtype=torch.int32) * _GOLDEN_32
    return numbers.view(-1, *[1] * (len(shape) - 1 - dimension))


def _mixed(word: Tensor) -> Tensor:
    """Every input bit flips every output bit with probability near 1/2. The sign that an int32 shifts in is masked."""
    word = (word ^ ((word >> 16) & 0xFFFF)) * _FIRST
    word = (word ^ ((word >> 15) & 0x1FFFF)) * _SECOND
    return word ^ ((word >> 16) & 0xFFFF)
