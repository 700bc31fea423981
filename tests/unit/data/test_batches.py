"""The samples of a step, of every kind of data, are a function of seed and step alone; evaluation reads each once."""

from __future__ import annotations

import threading
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import KINDS, settings_of
from same_bits import Reason, assert_same_bits, same_integers

from comt_cli.data.loader import EvaluationBatches, TrainBatches
from comt_cli.data.order import sample_indices, uniform_draws
from comt_cli.data.prepare import prepare
from comt_cli.data.split import IGNORE
from comt_cli.data.text.rows import PaddedRows
from comt_cli.errors import UserError

SEEDS = st.integers(min_value=-(2**70), max_value=2**70)
BATCH = 8


@given(seed=SEEDS, epoch=st.integers(0, 10**6), rows=st.integers(1, 700))
def test_every_row_once_per_epoch(seed, epoch, rows):
    order = sample_indices(seed, epoch * rows, rows, rows)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(rows))


@given(seed=SEEDS, rows=st.integers(1, 10**7), start=st.integers(0, 10**12), count=st.integers(0, 300), data=st.data())
def test_any_slice_is_the_same_as_position_by_position(seed, rows, start, count, data):
    cut = data.draw(st.integers(0, count))
    parts = [sample_indices(seed, start, cut, rows), sample_indices(seed, start + cut, count - cut, rows)]
    whole = sample_indices(seed, start, count, rows)
    assert same_integers(whole, np.concatenate(parts))
    assert ((whole >= 0) & (whole < rows)).all()
    draws = uniform_draws(seed, start, count, 5)
    assert ((draws >= 0) & (draws < 1)).all()
    parts = [uniform_draws(seed, start, cut, 3), uniform_draws(seed, start + cut, count - cut, 3)]
    assert_same_bits(np.concatenate(parts), draws[:, :3], Reason.EXACT)


def test_the_order_and_the_draws_never_change():
    """A run resumed with a later version must see what it would have seen."""
    assert sample_indices(0, 0, 8, 100).tolist() == [15, 67, 96, 47, 32, 27, 91, 87]
    assert sample_indices(1, 10**9, 4, 31_000_000).tolist() == [12290227, 19907360, 28835510, 18903066]
    drawn = (uniform_draws(0, 0, 1, 3) * 2**53).astype(np.int64).tolist()
    assert drawn == [[7440197690975639, 6230946549199944, 6116688637493744]]


@pytest.fixture(params=KINDS, scope="module")
def dataset(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMT_CACHE", str(folder / "cache"))
        yield prepare(settings_of(request.param, folder / "texts"))


def without_padding(row):
    """A row as plain numbers, without what fills it up to its batch's width."""
    numbers = row.tolist()
    while isinstance(numbers, list) and numbers and not np.any((np.array(numbers[-1]) != 0) & (numbers[-1] != IGNORE)):
        numbers.pop()
    return numbers


def samples(batches):
    """The samples of batches one by one: every field of each."""
    found = []
    for batch in batches:
        values = [value for field in fields(batch) if (value := getattr(batch, field.name)) is not None]
        found += [tuple(map(without_padding, row)) for row in zip(*values, strict=True)]
    return found


def steps(split, wanted, ranks=1, **keys):
    keys |= {"batch_size": BATCH, "world_size": ranks, "first_step": wanted.start}
    readers = [TrainBatches(split, rank=rank, **keys) for rank in range(ranks)]
    found = [samples([batch for reader in readers for batch in next(reader)]) for _ in wanted]
    for reader in readers:
        reader.close()
    return found


def test_a_step_is_the_same_for_any_devices_micro_batches_and_beginning(dataset):
    whole = steps(dataset.train, range(10), seed=1)
    assert steps(dataset.train, range(10), ranks=2, micro_batch_size=3, seed=1) == whole
    assert steps(dataset.train, range(7, 10), seed=1) == whole[7:]
    assert steps(dataset.train, range(10), seed=2) != whole


def test_targets_are_known_without_the_other_ranks_and_positions_never_used_twice(dataset):
    read = []
    with TrainBatches(dataset.train, seed=3, batch_size=BATCH, micro_batch_size=3) as batches:
        for step in range(10):
            read += next(batches)
            if step < 3:
                assert batches.targets(step) == sum(batch.target_count for batch in read[-3:])
    if hasattr(read[0], "positions"):  # what dropout and chance follow
        positions = np.concatenate([batch.positions for batch in read]).tolist()
        assert len(set(positions)) == len(positions)


def test_evaluation_counts_every_sample_once(dataset):
    split = dataset.validation
    every = samples([split.batch(np.arange(len(split)))])
    ranks = [EvaluationBatches(split, batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    read = [batch for step in zip(*ranks, strict=True) for batch in step if batch.target_count]
    assert samples(read) == every
    counts = split.target_counts(np.arange(len(split)))
    assert ranks[0].targets == sum(counts) == sum(each.target_count for each in read)


def test_what_does_not_count_is_ignored_and_numbers_outside_refused(dataset):
    batch = dataset.train.batch(np.arange(3))
    assert 0 < batch.uncounted(1).target_count < batch.target_count
    assert batch.uncounted().target_count == 0
    for number in (-1, len(dataset.train)):
        with pytest.raises(IndexError):
            dataset.train.batch(np.array([number]))


def small_rows():
    lengths = [2 + number % 4 for number in range(37)]
    tokens = np.concatenate([np.full(length, 10 + number, np.uint16) for number, length in enumerate(lengths)])
    return PaddedRows([tokens], [np.cumsum([0, *lengths]).astype(np.uint32)], 6, 0)


class Failing(PaddedRows):
    """Rows on a disk that breaks at the third step."""

    def __init__(self):
        good = small_rows()
        super().__init__(good._shards, good._offsets, 6, 0)
        self.calls = 0

    def batch(self, indices):
        self.calls += 1
        if self.calls == 3:
            raise OSError("the disk broke")
        return super().batch(indices)


def test_an_error_of_the_thread_comes_with_its_batch_and_ends_it():
    with pytest.raises(UserError, match="a batch of 12 cannot be divided equally among 5 devices"):
        TrainBatches(small_rows(), seed=0, batch_size=12, world_size=5)
    batches = TrainBatches(Failing(), seed=0, batch_size=4)
    next(batches)
    next(batches)
    with pytest.raises(OSError, match="the disk broke"):
        next(batches)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("comt-train-batches")]
    assert list(batches) == []


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 200)), st.booleans())
def test_evaluation_reads_the_same_rows_however_it_is_divided(batch_size, world_size, limit, equal):
    rows, size = small_rows(), batch_size * world_size if equal else batch_size
    counts = rows.target_counts(np.arange(len(rows))).tolist()
    used = next((n for n in range(1, len(rows)) if limit is not None and sum(counts[:n]) >= limit), len(rows))
    keys = {"batch_size": size, "world_size": world_size, "max_targets": limit, "equal": equal}
    ranks = [EvaluationBatches(rows, rank=rank, **keys) for rank in range(world_size)]
    per_rank = [list(rank) for rank in ranks]
    assert {len(batches) for batches in per_rank} == {len(ranks[0])}
    if equal and len(per_rank[0]) > 1:
        assert {len(batch.tokens) for batches in per_rank for batch in batches} == {batch_size}
    parts = [batch for step in zip(*per_rank, strict=True) for batch in step]
    expected = rows.batch(np.arange(used))
    for key in ("tokens", "targets"):  # what fills a batch up has no targets
        counted = [getattr(part, key)[(part.targets != IGNORE).any(1)] for part in parts]
        assert same_integers(np.concatenate(counted), getattr(expected, key))
    assert (ranks[0].used, ranks[0].targets) == (used, sum(counts[:used])) == (used, expected.target_count)
