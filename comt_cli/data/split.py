"""What all kinds of data have in common: a split of numbered samples (rows of tokens, images) that come in batches.

Shapes: B samples of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

IGNORE = -100
"""The target where there is nothing to predict."""


class AnyBatch:
    """Samples for one forward pass: the base of the data classes of batches, whose field `counted` has the targets."""

    counted: ClassVar[str] = "targets"

    @property
    def target_count(self) -> int:
        """How many targets there are to predict: the weight of this batch in a mean over targets."""
        return int(np.count_nonzero(getattr(self, self.counted) != IGNORE))

    def uncounted(self, first: int = 0) -> Self:
        """The same samples with every target from sample `first` on `IGNORE`."""
        targets = getattr(self, self.counted).copy()
        targets[first:] = IGNORE
        changed: Self = replace(self, **{self.counted: targets})  # type: ignore[type-var]
        return changed


B = TypeVar("B", bound=AnyBatch)


class Split(ABC, Generic[B]):
    """One split of a data set, training, validation or test, as samples numbered from 0."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many targets each sample has: int64 [B] of numbers to int64 [B]. Reads no samples."""

    @abstractmethod
    def batch(self, indices: NDArray[np.int64]) -> B:
        """The samples with these numbers, int64 [B], in this order, as they are; a number may occur more than once.
        Raises `IndexError` where a number is outside [0, len(self))."""

    def train_batch(self, indices: NDArray[np.int64], seed: int, first: int) -> B:
        """`batch` for training: the samples at positions `first`, `first` + 1 ... of the order of `seed`, which have
        these numbers. What chance does to a sample depends on seed and position alone; here it does nothing."""
        return self.batch(indices)

    def _check(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < len(self)):
            raise IndexError(f"sample numbers go from 0 to {len(self) - 1}, got {indices.min()} to {indices.max()}")
        return indices
