"""Batches for evaluation: validation rows in their fixed order, up to a number of tokens, shared among ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from comt_cli.data.rows import IGNORE, Batch, Rows

_COUNTED_AT_ONCE = 1 << 16


class EvaluationBatches:
    """The first rows of a side, in order: the fewest that hold `max_tokens` targets, all where that is None.

    Which rows these are depends on neither the batch size nor the number of ranks. Rows b * batch_size up to
    (b + 1) * batch_size form global batch b; rank r takes its r-th slice. All ranks yield the same number of batches,
    each of at least one row, so that sharded models can run their collective operations in step: a rank that is left
    without rows in the last batch gets one whose targets are all `IGNORE`.

    May be iterated any number of times.

    Attributes:
        rows_used: how many rows are read, over all ranks.
        target_tokens: how many targets these have, over all ranks.
    """

    def __init__(
        self, rows: Rows, *, batch_size: int, rank: int = 0, world_size: int = 1, max_tokens: int | None = None
    ) -> None:
        """`batch_size` counts rows over all ranks."""
        if not 0 <= rank < world_size or batch_size < 1:
            raise ValueError(f"rank {rank} of {world_size}, batch size {batch_size}")
        self._rows = rows
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self.rows_used, self.target_tokens = _rows_for(rows, max_tokens)

    def __len__(self) -> int:
        """How many batches each rank yields."""
        return (self.rows_used + self._batch_size - 1) // self._batch_size

    def __iter__(self) -> Iterator[Batch]:
        for begin in range(0, self.rows_used, self._batch_size):
            size = min(self._batch_size, self.rows_used - begin)
            low, high = (size * part // self._world_size for part in (self._rank, self._rank + 1))
            if low < high:
                yield self._rows.batch(np.arange(begin + low, begin + high, dtype=np.int64))
            else:
                batch = self._rows.batch(np.array([begin], dtype=np.int64))
                yield Batch(batch.tokens, np.full_like(batch.targets, IGNORE))


def _rows_for(rows: Rows, max_tokens: int | None) -> tuple[int, int]:
    """(number of rows, their targets): the shortest prefix with at least `max_tokens` targets."""
    total = 0
    for begin in range(0, len(rows), _COUNTED_AT_ONCE):
        indices = np.arange(begin, min(begin + _COUNTED_AT_ONCE, len(rows)), dtype=np.int64)
        sums = total + np.cumsum(rows.target_counts(indices))
        if max_tokens is not None and sums[-1] >= max_tokens:
            last = int(np.searchsorted(sums, max_tokens))
            return begin + last + 1, int(sums[last])
        total = int(sums[-1])
    return len(rows), total
