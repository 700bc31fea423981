"""Batches of images: the same order and the same chance for every number of devices and every micro-batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits, same_integers

from comt_cli.data.evaluation import EvaluationBatches
from comt_cli.data.images.dataset import ImageBatch, ImageSplit
from comt_cli.data.loader import TrainBatches
from comt_cli.data.order import sample_indices, uniform_draws
from comt_cli.data.split import IGNORE


def small_side(count: int = 23) -> ImageSplit:
    pixels = np.arange(count * 4 * 4 * 3, dtype=np.int64).reshape(count, 4, 4, 3) % 256
    return ImageSplit(np.arange(count) % 3, pixels.astype(np.uint8))


@given(
    seed=st.integers(-5, 2**40),
    start=st.integers(0, 10**12),
    count=st.integers(0, 40),
    numbers=st.integers(1, 25),
    data=st.data(),
)
def test_any_slice_of_the_draws_is_the_same(
    seed: int, start: int, count: int, numbers: int, data: st.DataObject
) -> None:
    whole = uniform_draws(seed, start, count, numbers)
    assert whole.shape == (count, numbers)
    assert whole.dtype == np.float64
    assert ((whole >= 0) & (whole < 1)).all()
    cut = data.draw(st.integers(0, count))
    fewer = data.draw(st.integers(1, numbers))
    parts = [uniform_draws(seed, start, cut, fewer), uniform_draws(seed, start + cut, count - cut, fewer)]
    assert_same_bits(np.concatenate(parts), whole[:, :fewer], Reason.EXACT)


def test_draws_are_uniform_and_unrelated() -> None:
    draws = uniform_draws(3, 0, 20_000, 3)
    for column in draws.T:
        counts = np.bincount((column * 50).astype(int), minlength=50)
        assert ((counts - 400) ** 2 / 400).sum() < 50 + 5 * 10  # chi-squared: 49 +- 10
    lagged = [draws[:-1, 0], draws[1:, 0], draws[:-1, 1], uniform_draws(4, 0, 19_999, 1)[:, 0]]
    correlations = np.corrcoef([*lagged, sample_indices(3, 0, 19_999, 20_000)])
    assert np.abs(correlations - np.eye(5)).max() < 0.03


def test_the_draws_never_change() -> None:
    """A run resumed with a later version must see the images it would have seen."""
    assert (uniform_draws(0, 0, 1, 3) * 2**53).astype(np.int64).tolist() == [
        [7440197690975639, 6230946549199944, 6116688637493744]
    ]


@given(
    world_size=st.sampled_from([1, 2, 3, 4]), micro=st.one_of(st.none(), st.integers(1, 13)), first=st.integers(0, 9)
)
def test_a_step_is_the_same_for_every_number_of_devices(world_size: int, micro: int | None, first: int) -> None:
    side = small_side()
    parts: list[ImageBatch] = []
    for rank in range(world_size):
        with TrainBatches(
            side, seed=1, batch_size=12, micro_batch_size=micro, rank=rank, world_size=world_size,
            first_step=first, last_step=first + 1,
        ) as batches:  # fmt: skip
            parts += [batch for step in batches for batch in step]
    indices = sample_indices(1, first * 12, 12, len(side))
    assert same_integers(np.concatenate([part.indices for part in parts]), indices)
    assert same_integers(np.concatenate([part.labels for part in parts]), side.labels[indices])
    draws = [part.draws for part in parts]
    assert_same_bits(np.concatenate(draws), uniform_draws(1, first * 12, 12, 3), Reason.EXACT)  # type: ignore[arg-type]
    assert all(part.pixels is None for part in parts)


def test_an_epoch_sees_every_image_once_and_the_next_draws_anew() -> None:
    side = small_side(24)
    with TrainBatches(side, seed=5, batch_size=8, last_step=6) as batches:
        steps = [step[0] for step in batches]
        assert batches.targets(0) == 8
    for epoch in (steps[:3], steps[3:]):
        assert sorted(np.concatenate([batch.indices for batch in epoch]).tolist()) == list(range(24))
    draws = [np.concatenate([batch.draws for batch in epoch]) for epoch in (steps[:3], steps[3:])]  # type: ignore[misc]
    assert np.intersect1d(*draws).size == 0


def test_evaluation_draws_nothing_and_counts_every_image_once() -> None:
    side = small_side()
    ranks = [list(EvaluationBatches(side, batch_size=6, rank=rank, world_size=6)) for rank in range(6)]
    assert {len(batches) for batches in ranks} == {4}
    batches = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert all(batch.draws is None for batch in batches)
    assert sum(batch.target_count for batch in batches) == 23
    counted = [batch for batch in batches if batch.target_count]
    assert np.concatenate([batch.indices for batch in counted]).tolist() == list(range(23))
    left_without = [batch for batch in batches if not batch.target_count]
    assert [batch.labels.tolist() for batch in left_without] == [[IGNORE]]
    assert EvaluationBatches(side, batch_size=6).targets == 23
    assert EvaluationBatches(side, batch_size=6, max_targets=10).used == 10


def test_numbers_outside_are_refused() -> None:
    with pytest.raises(IndexError, match="from 0 to 22, got 3 to 23"):
        small_side().batch(np.array([3, 23]))
