"""Batches of images: the same order and the same chance for every number of devices and every micro-batch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits

from comt_cli.data.images.dataset import ImageSplit
from comt_cli.data.loader import TrainBatches
from comt_cli.data.order import uniform_draws


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


def test_the_draws_never_change() -> None:
    """A run resumed with a later version must see the images it would have seen."""
    assert (uniform_draws(0, 0, 1, 3) * 2**53).astype(np.int64).tolist() == [
        [7440197690975639, 6230946549199944, 6116688637493744]
    ]


def test_an_epoch_sees_every_image_once_and_the_next_draws_anew() -> None:
    side = small_side(24)
    with TrainBatches(side, seed=5, batch_size=8, last_step=6) as batches:
        steps = [step[0] for step in batches]
        assert batches.targets(0) == 8
    for epoch in (steps[:3], steps[3:]):
        assert sorted(np.concatenate([batch.indices for batch in epoch]).tolist()) == list(range(24))
    draws = [np.concatenate([batch.draws for batch in epoch]) for epoch in (steps[:3], steps[3:])]  # type: ignore[misc]
    assert np.intersect1d(*draws).size == 0
