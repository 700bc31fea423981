from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from same_bits import same_integers

from comt_cli.data.evaluation import EvaluationBatches
from comt_cli.data.loader import TrainBatches
from comt_cli.data.order import sample_indices
from comt_cli.data.text.rows import Batch, PaddedRows, Rows
from comt_cli.errors import UserError


def small_rows(count: int = 37) -> PaddedRows:
    lengths = [2 + number % 4 for number in range(count)]
    tokens = np.concatenate([np.full(length, 10 + number, np.uint16) for number, length in enumerate(lengths)])
    return PaddedRows([tokens], [np.cumsum([0, *lengths]).astype(np.uint32)], 6, 0)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("comt-train-batches")]


@settings(deadline=None, max_examples=40)
@given(
    world_size=st.sampled_from([1, 2, 3, 4, 6]),
    micro=st.one_of(st.none(), st.integers(1, 13)),
    seed=st.integers(0, 9),
    first=st.integers(0, 10),
)
def test_a_step_has_the_same_rows_for_every_number_of_devices(
    world_size: int, micro: int | None, seed: int, first: int
) -> None:
    rows = small_rows()
    steps: list[list[Batch]] = [[], [], []]
    for rank in range(world_size):
        with TrainBatches(
            rows, seed=seed, batch_size=12, micro_batch_size=micro, rank=rank, world_size=world_size,
            first_step=first, last_step=first + 3,
        ) as batches:  # fmt: skip
            for number, micro_batches in enumerate(batches):
                assert all(len(batch.tokens) <= (micro or 12) for batch in micro_batches)
                steps[number] += micro_batches
    for number, parts in enumerate(steps):
        expected = rows.batch(sample_indices(seed, (first + number) * 12, 12, len(rows)))
        assert same_integers(np.concatenate([part.tokens for part in parts]), expected.tokens)
        assert same_integers(np.concatenate([part.targets for part in parts]), expected.targets)


def test_a_batch_that_cannot_be_divided_is_refused_before_a_thread_starts() -> None:
    with pytest.raises(UserError, match="a batch of 12 cannot be divided equally among 5 devices"):
        TrainBatches(small_rows(), seed=0, batch_size=12, world_size=5)
    assert not threads()


class Failing(PaddedRows):
    """Rows on a disk that breaks at the third step."""

    def __init__(self) -> None:
        good = small_rows()
        super().__init__(good._shards, good._offsets, 6, 0)
        self.calls = 0

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        self.calls += 1
        if self.calls == 3:
            raise OSError("the disk broke")
        return super().batch(indices)


def test_an_error_of_the_thread_comes_with_its_batch_and_ends_it() -> None:
    batches = TrainBatches(Failing(), seed=0, batch_size=4)
    next(batches)
    next(batches)
    with pytest.raises(OSError, match="the disk broke"):
        next(batches)
    assert not threads()
    with pytest.raises(StopIteration):
        next(batches)


def test_closing_stops_a_thread_that_waits_for_room() -> None:
    batches = TrainBatches(small_rows(), seed=0, batch_size=4, prefetch=1)
    time.sleep(0.05)  # the queue is full by now
    batches.close()
    batches.close()
    assert not threads()
    assert list(batches) == []


def test_a_forgotten_loader_stops_its_thread() -> None:
    batches = TrainBatches(small_rows(), seed=0, batch_size=4)
    reference, thread = weakref.ref(batches), threads()[0]
    del batches
    gc.collect()
    assert reference() is None
    thread.join(timeout=5)
    assert not thread.is_alive()


@settings(deadline=None)
@given(batch_size=st.integers(1, 40), world_size=st.integers(1, 5), limit=st.one_of(st.none(), st.integers(1, 200)))
def test_evaluation_reads_the_same_rows_however_it_is_divided(
    batch_size: int, world_size: int, limit: int | None
) -> None:
    rows: Rows = small_rows()
    counts = rows.target_counts(np.arange(len(rows))).tolist()
    used = next((n for n in range(1, len(rows)) if limit is not None and sum(counts[:n]) >= limit), len(rows))
    ranks = [
        EvaluationBatches(rows, batch_size=batch_size, rank=rank, world_size=world_size, max_targets=limit)
        for rank in range(world_size)
    ]
    per_rank = [list(rank) for rank in ranks]
    assert {len(batches) for batches in per_rank} == {len(ranks[0])}
    assert all(len(batch.tokens) for batches in per_rank for batch in batches)
    parts = [batch for step in zip(*per_rank, strict=True) for batch in step if batch.target_count]
    expected = rows.batch(np.arange(used))
    assert same_integers(np.concatenate([part.tokens for part in parts]), expected.tokens)
    assert same_integers(np.concatenate([part.targets for part in parts]), expected.targets)
    assert ranks[0].used == used
    assert ranks[0].targets == sum(counts[:used]) == expected.target_count


@settings(deadline=None)
@given(per_rank=st.integers(1, 12), world_size=st.integers(1, 3), limit=st.one_of(st.none(), st.integers(1, 120)))
def test_batches_of_equal_size_count_the_same_targets(per_rank: int, world_size: int, limit: int | None) -> None:
    rows, size = small_rows(), per_rank * world_size

    def batches(*, equal: bool) -> list[list[Batch]]:
        return [
            [
                *EvaluationBatches(
                    rows, batch_size=size, rank=rank, world_size=world_size, max_targets=limit, equal=equal
                )
            ]
            for rank in range(world_size)
        ]

    usual, filled = batches(equal=False), batches(equal=True)
    if len(filled[0]) > 1:
        assert {len(batch.tokens) for rank in filled for batch in rank} == {per_rank}
    both = (itertools.chain.from_iterable(ranks) for ranks in (usual, filled))
    for one, other in zip(*both, strict=True):
        kept = len(one.tokens)
        assert same_integers(other.tokens[:kept], one.tokens)
        assert same_integers(other.targets[:kept], one.targets)
        assert other.target_count == one.target_count
