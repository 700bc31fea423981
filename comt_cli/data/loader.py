"""Batches. In training the global batch of a step is sharded over ranks and micro-batches, and read ahead by a thread.
In evaluation the samples of a split are read in order, up to a number of targets, and shared among ranks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self

import numpy as np

from comt_cli.data.order import sample_indices
from comt_cli.data.split import B, Split
from comt_cli.errors import UserError

_COUNTED_AT_ONCE = 1 << 16
_AHEAD = 4


class TrainBatches(Generic[B]):
    """An iterator over optimiser steps; each item is the list of this rank's micro-batches of a step.

    Step s (from 0) uses positions [s * batch_size, (s + 1) * batch_size) of the order of `seed`. Rank r of w takes the
    r-th of w equal slices, cut into micro-batches of `micro_batch_size` samples. The samples of a step do not depend on
    the number of ranks, and resuming needs only the step number.

    A thread reads `_AHEAD` steps ahead: use this as a context manager. Its error is raised by the `next` call that
    would have returned the batch. `step` is the step of the next item, `waited_seconds` the time that `next` has spent
    waiting.
    """

    def __init__(
        self,
        split: Split[B],
        *,
        seed: int,
        batch_size: int,
        micro_batch_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        first_step: int = 0,
        last_step: int | None = None,
    ) -> None:
        """`batch_size` counts samples over all ranks, `micro_batch_size` those of one (None: its whole slice). Steps
        run from `first_step` to before `last_step` (None: for ever). Raises `UserError` if the ranks do not divide the
        batch."""
        if batch_size % world_size:
            hint = f"Use a number of devices that divides {batch_size}, or another batch_size."
            said = f"a batch of {batch_size} cannot be divided equally among {world_size} devices"
            raise UserError(f"batch_size: {said}", hint)
        self.step, self.waited_seconds = first_step, 0.0
        self._split, self._seed, self._batch_size = split, seed, batch_size
        self._last_step = last_step
        share = batch_size // world_size

        def read(step: int) -> list[B]:
            first = step * batch_size + rank * share
            mine, size = sample_indices(seed, first, share, len(split)), micro_batch_size or share
            begins = range(0, share, size)
            return [split.train_batch(mine[begin : begin + size], seed, first + begin) for begin in begins]

        # The thread has no reference to this object, so an object discarded without `close` still stops its thread.
        self._read = read
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="comt-train-batches")
        self._ahead: deque[Future[list[B]]] = deque()
        self._read_ahead()

    def targets(self, step: int) -> int:
        """Targets of a step over all ranks, the divisor of the mean loss; needs no communication."""
        indices = sample_indices(self._seed, step * self._batch_size, self._batch_size, len(self._split))
        return int(self._split.target_counts(indices).sum())

    def __iter__(self) -> Iterator[list[B]]:
        return self

    def __next__(self) -> list[B]:
        if self.step == self._last_step:
            raise StopIteration
        began = time.perf_counter()
        try:
            item = self._ahead.popleft().result()
        except BaseException:
            self.close()
            raise
        self.waited_seconds += time.perf_counter() - began
        self.step += 1
        self._read_ahead()
        return item

    def _read_ahead(self) -> None:
        while len(self._ahead) < _AHEAD and (step := self.step + len(self._ahead)) != self._last_step:
            self._ahead.append(self._pool.submit(self._read, step))

    def close(self) -> None:
        """Stop the thread and wait for it; iterating afterwards ends at once."""
        self._last_step = self.step
        self._pool.shutdown(cancel_futures=True)
        self._ahead.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EvaluationBatches(Generic[B]):
    """The first samples of a split, in order: the fewest with `max_targets` targets, or all if that is None.

    Rank r takes its r-th slice of each global batch of `batch_size` samples. All ranks yield equally many batches of at
    least one sample, so that sharded models run their collective operations in step: a rank without samples gets one
    whose targets are all `IGNORE`. Over all ranks `used` samples with `targets` targets are read.
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
        """`batch_size` counts samples over all ranks. `equal`: if it is a multiple of the ranks, the last of several
        batches is filled with samples whose targets are `IGNORE`, so that the model is compiled for one size."""
        self._split, self._batch_size, self._rank, self._world_size = split, batch_size, rank, world_size
        self.used, self.targets = _prefix(split, max_targets)
        self._least = batch_size // world_size if equal and self.used > batch_size else 1

    def __len__(self) -> int:
        return (self.used + self._batch_size - 1) // self._batch_size

    def __iter__(self) -> Iterator[B]:
        for begin in range(0, self.used, self._batch_size):
            size = min(self._batch_size, self.used - begin)
            low, high = (size * part // self._world_size for part in (self._rank, self._rank + 1))
            # If there are too few, repeat the first sample of the global batch, which does not count.
            numbers = np.arange(begin + low, begin + high, dtype=np.int64)
            filling = np.full(max(0, self._least - len(numbers)), begin, dtype=np.int64)
            batch = self._split.batch(np.concatenate([numbers, filling]))
            yield batch.uncounted(len(numbers)) if len(filling) else batch


def _prefix(split: Split[B], max_targets: int | None) -> tuple[int, int]:
    """(number of samples, their targets) of the shortest prefix with at least `max_targets` targets."""
    total = 0
    for begin in range(0, len(split), _COUNTED_AT_ONCE):
        indices = np.arange(begin, min(begin + _COUNTED_AT_ONCE, len(split)), dtype=np.int64)
        sums = total + np.cumsum(split.target_counts(indices))
        if max_targets is not None and sums[-1] >= max_targets:
            last = int(np.searchsorted(sums, max_targets))
            return begin + last + 1, int(sums[last])
        total = int(sums[-1])
    return len(split), total
