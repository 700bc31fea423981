"""Batches for training: the global batch of a step sharded over ranks and micro-batches, read ahead by a thread."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, Self

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.order import sample_indices
from comt_cli.data.split import B, Split
from comt_cli.errors import UserError

_PATIENCE_SECONDS = 0.1


class TrainBatches(Generic[B]):
    """An iterator over optimiser steps; each item is the list of this rank's micro-batches of that step.

    Step s (from 0) takes positions [s * batch_size, (s + 1) * batch_size) of the order of `seed`. Rank r of w takes the
    r-th of w equal slices, cut in micro-batches of `micro_batch_size` samples (the last may be smaller). So the samples
    of a step, concatenated over micro-batches and then ranks, are the same for every number of ranks and every
    micro-batch size, and nothing but the step number has to be stored to resume.

    A thread reads ahead. Use it as a context manager, or call `close`. An error in the thread is raised by the `next`
    that would have returned its batch.

    Attributes:
        step: the step that the next item is for.
        waited_seconds: time that `next` has spent waiting for the thread; the model's time when it is small.
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
        prefetch: int = 4,
    ) -> None:
        """`batch_size` counts samples over all ranks, `micro_batch_size` samples of one rank (None: its whole slice).

        Steps run from `first_step` to before `last_step` (None: for ever). `prefetch` steps are read ahead.

        Raises:
            UserError: the batch cannot be divided equally among the ranks.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        if batch_size % world_size:
            raise UserError(
                f"batch_size: a batch of {batch_size} cannot be divided equally among {world_size} devices",
                f"Use a number of devices that divides {batch_size}, or another batch_size.",
            )
        self.step = first_step
        self.waited_seconds = 0.0
        self._split = split
        self._seed = seed
        self._batch_size = batch_size
        self._last_step = last_step
        share = batch_size // world_size

        def read(step: int) -> list[B]:
            first = step * batch_size + rank * share
            mine = sample_indices(seed, first, share, len(split))
            size = micro_batch_size or share
            return [
                split.train_batch(mine[begin : begin + size], seed, first + begin) for begin in range(0, share, size)
            ]

        self._queue: queue.Queue[list[B] | BaseException] = queue.Queue(maxsize=prefetch)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=_read_ahead,
            args=(read, first_step, last_step, self._queue, self._stop),
            name="comt-train-batches",
            daemon=True,  # a run that dies on an error elsewhere must not hang on its loader
        )
        # The thread holds no reference to this object: one that is forgotten without `close` still stops its thread.
        weakref.finalize(self, self._stop.set)
        self._thread.start()

    def indices(self, step: int) -> NDArray[np.int64]:
        """Numbers of the samples of a step over all ranks, int64 [batch_size]."""
        return sample_indices(self._seed, step * self._batch_size, self._batch_size, len(self._split))

    def targets(self, step: int) -> int:
        """Targets of a step over all ranks: the divisor of the mean loss, without asking the other ranks."""
        return int(self._split.target_counts(self.indices(step)).sum())

    def __iter__(self) -> Iterator[list[B]]:
        return self

    def __next__(self) -> list[B]:
        if self._stop.is_set() or self.step == self._last_step:
            raise StopIteration
        began = time.perf_counter()
        item = self._queue.get()
        self.waited_seconds += time.perf_counter() - began
        if isinstance(item, BaseException):
            self.close()
            raise item
        self.step += 1
        return item

    def close(self) -> None:
        """Stop the thread and wait for it. May be called again; iterating afterwards ends at once."""
        self._stop.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_ahead(
    read: Callable[[int], list[B]],
    first_step: int,
    last_step: int | None,
    items: queue.Queue[list[B] | BaseException],
    stop: threading.Event,
) -> None:
    """The thread's work: keep the queue full until asked to stop; the last item may be an error."""
    step = first_step
    while not stop.is_set() and step != last_step:
        try:
            item: list[B] | BaseException = read(step)
        except BaseException as error:  # handed over to the thread that asks for the batch
            item = error
        while not stop.is_set():
            try:
                items.put(item, timeout=_PATIENCE_SECONDS)  # waits in short turns so as to notice the stop
                break
            except queue.Full:
                continue
        if isinstance(item, BaseException):
            return
        step += 1
