"""Batches for evaluation: validation samples in their fixed order, up to a number of targets, shared among ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

import numpy as np

from comt_cli.data.split import B, Split

_COUNTED_AT_ONCE = 1 << 16


class EvaluationBatches(Generic[B]):
    """The first samples of a split, in order: the fewest that hold `max_targets` targets, all where that is None.

    Which samples these are depends on neither the batch size nor the number of ranks. Samples b * batch_size up to
    (b + 1) * batch_size form global batch b; rank r takes its r-th slice. All ranks yield the same number of batches,
    each of at least one sample, so that sharded models can run their collective operations in step: a rank that is left
    without samples in the last batch gets one whose targets are all `IGNORE`.

    May be iterated any number of times.

    Attributes:
        used: how many samples are read, over all ranks.
        targets: how many targets these have, over all ranks.
    """

    def __init__(
        self,
        split: Split[B],
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        max_targets: int | None = None,
        equal: bool = False,
    ) -> None:
        """`batch_size` counts samples over all ranks. `equal`: where it is a multiple of the ranks, several
        batches have one size, for which a model is compiled once: the last is filled up with samples whose targets are
        `IGNORE`."""
        if not 0 <= rank < world_size or batch_size < 1:
            raise ValueError(f"rank {rank} of {world_size}, batch size {batch_size}")
        self._split = split
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self.used, self.targets = _prefix(split, max_targets)
        self._least = batch_size // world_size if equal and self.used > batch_size else 1

    def __len__(self) -> int:
        """How many batches each rank yields."""
        return (self.used + self._batch_size - 1) // self._batch_size

    def __iter__(self) -> Iterator[B]:
        for begin in range(0, self.used, self._batch_size):
            size = min(self._batch_size, self.used - begin)
            low, high = (size * part // self._world_size for part in (self._rank, self._rank + 1))
            # Where there are too few: the first sample of the global batch again and again, which does not count.
            numbers = np.arange(begin + low, begin + high, dtype=np.int64)
            filling = np.full(max(0, self._least - len(numbers)), begin, dtype=np.int64)
            batch = self._split.batch(np.concatenate([numbers, filling]))
            yield batch.uncounted(len(numbers)) if len(filling) else batch


def _prefix(split: Split[B], max_targets: int | None) -> tuple[int, int]:
    """(number of samples, their targets): the shortest prefix with at least `max_targets` targets."""
    total = 0
    for begin in range(0, len(split), _COUNTED_AT_ONCE):
        indices = np.arange(begin, min(begin + _COUNTED_AT_ONCE, len(split)), dtype=np.int64)
        sums = total + np.cumsum(split.target_counts(indices))
        if max_targets is not None and sums[-1] >= max_targets:
            last = int(np.searchsorted(sums, max_targets))
            return begin + last + 1, int(sums[last])
        total = int(sums[-1])
    return len(split), total
