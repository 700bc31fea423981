"""The samples of a step, of every kind of data: a function of seed and step alone."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from kinds import KINDS, settings_of

from comt_cli.data.evaluation import EvaluationBatches
from comt_cli.data.loader import TrainBatches
from comt_cli.data.prepare import prepare
from comt_cli.data.split import IGNORE

BATCH = 8


@pytest.fixture(params=KINDS, scope="module")
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMT_CACHE", str(folder / "cache"))
        yield prepare(settings_of(request.param, folder / "texts"))


def without_padding(row: Any) -> Any:
    """A row as plain numbers, without what fills it up to its batch's width."""
    numbers = row.tolist()
    while isinstance(numbers, list) and numbers and not np.any((np.array(numbers[-1]) != 0) & (numbers[-1] != IGNORE)):
        numbers.pop()
    return numbers


def samples(batches: list[Any]) -> list[tuple[Any, ...]]:
    """The samples of batches one by one: every field of each."""
    found = []
    for batch in batches:
        values = [value for field in fields(batch) if (value := getattr(batch, field.name)) is not None]
        found += [tuple(map(without_padding, row)) for row in zip(*values, strict=True)]
    return found


def steps(split: Any, wanted: range, ranks: int = 1, **keys: Any) -> list[list[tuple[Any, ...]]]:
    readers = [
        TrainBatches(split, batch_size=BATCH, rank=rank, world_size=ranks, first_step=wanted.start, **keys)
        for rank in range(ranks)
    ]
    found = [samples([batch for reader in readers for batch in next(reader)]) for _ in wanted]
    for reader in readers:
        reader.close()
    return found


def test_a_step_is_the_same_for_any_devices_micro_batches_and_beginning(dataset: Any) -> None:
    whole = steps(dataset.train, range(10), seed=1)
    assert steps(dataset.train, range(10), ranks=2, micro_batch_size=3, seed=1) == whole
    assert steps(dataset.train, range(7, 10), seed=1) == whole[7:]
    assert steps(dataset.train, range(10), seed=2) != whole


def test_the_targets_of_a_step_are_known_without_the_other_ranks(dataset: Any) -> None:
    with TrainBatches(dataset.train, seed=3, batch_size=BATCH, micro_batch_size=3) as batches:
        for step in range(3):
            assert batches.targets(step) == sum(batch.target_count for batch in next(batches))


def test_positions_are_never_used_twice(dataset: Any) -> None:
    with TrainBatches(dataset.train, seed=1, batch_size=BATCH) as batches:
        read = [next(batches)[0] for _ in range(10)]
    if hasattr(read[0], "positions"):  # what dropout and chance follow
        positions = np.concatenate([batch.positions for batch in read]).tolist()
        assert len(set(positions)) == len(positions)


def test_evaluation_counts_every_sample_once(dataset: Any) -> None:
    split = dataset.validation
    every = samples([split.batch(np.arange(len(split)))])
    ranks = [EvaluationBatches(split, batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    read = [batch for step in zip(*ranks, strict=True) for batch in step if batch.target_count]
    assert samples(read) == every
    assert (
        ranks[0].targets == sum(split.target_counts(np.arange(len(split)))) == sum(each.target_count for each in read)
    )


def test_numbers_outside_are_refused(dataset: Any) -> None:
    for number in (-1, len(dataset.train)):
        with pytest.raises(IndexError):
            dataset.train.batch(np.array([number]))


def test_what_does_not_count_is_ignored(dataset: Any) -> None:
    batch = dataset.train.batch(np.arange(3))
    counted = batch.uncounted(1)
    assert 0 < counted.target_count < batch.target_count
    assert batch.uncounted().target_count == 0
