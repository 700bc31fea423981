"""Splits of numbered samples that are read in batches, for every kind of data; and token sequences as padded arrays.

Shapes: B samples of a batch, P lists, W columns, T one more than the longest list of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.tokenizer import SpecialTokens

Unsigned: TypeAlias = np.unsignedinteger[Any]
Ints: TypeAlias = NDArray[np.int64]

IGNORE = -100  # a target that is not predicted


class AnyBatch:
    """Samples for one forward pass: the base class of batches, whose field `counted` has the targets."""

    counted: ClassVar[str] = "targets"

    @property
    def target_count(self) -> int:
        """The number of targets to predict: the weight of this batch in a mean over targets."""
        return int(np.count_nonzero(getattr(self, self.counted) != IGNORE))

    def uncounted(self, first: int = 0) -> Self:
        """The same samples with the targets from sample `first` on set to `IGNORE`."""
        targets = getattr(self, self.counted).copy()
        targets[first:] = IGNORE
        changed: Self = replace(self, **{self.counted: targets})  # type: ignore[type-var]
        return changed


B = TypeVar("B", bound=AnyBatch)


class Split(ABC, Generic[B]):
    """One split of a data set (training, validation or test), as samples numbered from 0."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def target_counts(self, indices: Ints) -> Ints:
        """The numbers of targets of these samples, int64 [B] each. Reads no samples."""

    @abstractmethod
    def batch(self, indices: Ints) -> B:
        """The samples with these numbers, int64 [B], in this order and without augmentation; numbers may repeat. Raises
        `IndexError` if a number is outside [0, len(self))."""

    def train_batch(self, indices: Ints, seed: int, first: int) -> B:
        """`batch` for training: the samples at positions `first`, `first` + 1 ... of the order of `seed`, which have
        these numbers. Augmentation depends on seed and position alone; by default there is none."""
        return self.batch(indices)

    def _check(self, indices: Ints) -> Ints:
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < len(self)):
            raise IndexError(f"sample numbers are 0 to {len(self) - 1}, got {indices.min()} to {indices.max()}")
        return indices


class PositionedSplit(Split[B]):
    """A split whose samples have positions for dropout masks: in training a unique number, however a step is divided;
    in evaluation the sample's number. `counts` are the targets of each sample, int64 [samples]."""

    def __init__(self, counts: Ints) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    def target_counts(self, indices: Ints) -> Ints:
        return self.counts[indices]

    @abstractmethod
    def _batch(self, indices: Ints, positions: Ints) -> B: ...

    def batch(self, indices: Ints) -> B:
        return self._batch(self._check(indices), np.asarray(indices, dtype=np.int64))

    def train_batch(self, indices: Ints, seed: int, first: int) -> B:
        return self._batch(self._check(indices), np.arange(first, first + len(indices), dtype=np.int64))


def token_dtype(vocabulary_size: int) -> np.dtype[Unsigned]:
    """The smallest unsigned type for all ids, always little-endian."""
    return np.dtype("<u2") if vocabulary_size <= 1 << 16 else np.dtype("<u4")


@dataclass(frozen=True)
class TokenLists:
    """Concatenated token sequences: list i is `tokens[offsets[i] : offsets[i + 1]]`. Both may be memory maps."""

    tokens: NDArray[Unsigned]
    offsets: Ints

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Self:
        """The lists in memory, with ids below 2^32."""
        offsets = np.cumsum([0, *(len(each) for each in lists)], dtype=np.int64)
        return cls(np.array([i for each in lists for i in each], dtype=np.uint32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self) -> Ints:
        return np.diff(self.offsets).astype(np.int64)

    def padded(self, indices_B: Ints, width: int, fill: int) -> Ints:
        """The lists with these numbers, int64 [B, width], filled on the right; none may be longer than `width`."""
        columns = np.arange(width)
        is_token_BW = columns < self.lengths_of(indices_B)[:, None]
        found_BW = np.full((len(indices_B), width), fill, dtype=np.int64)
        found_BW[is_token_BW] = self.tokens[(self.offsets[indices_B, None] + columns)[is_token_BW]]
        return found_BW

    def shifted(self, indices_B: Ints, special: SpecialTokens) -> tuple[Ints, Ints]:
        """Input and targets of a decoder, int64 [B, T], from the lists with these numbers: each list after the begin
        token, padded; and each list before the end token, filled with `IGNORE`."""
        length_B = self.lengths_of(indices_B)
        out_BT = self.padded(indices_B, int(length_B.max()) + 1, IGNORE)
        in_BT = np.full_like(out_BT, special.need("begin"))
        in_BT[:, 1:] = np.where(out_BT[:, :-1] == IGNORE, special.need("pad"), out_BT[:, :-1])
        out_BT[np.arange(len(indices_B)), length_B] = special.end
        return in_BT, out_BT

    def lengths_of(self, indices_B: Ints) -> Ints:
        return (self.offsets[indices_B + 1] - self.offsets[indices_B]).astype(np.int64)
