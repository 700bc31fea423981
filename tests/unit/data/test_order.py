from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from same_bits import same_integers

from comt_cli.data.order import sample_indices

SEEDS = st.integers(min_value=-(2**70), max_value=2**70)


@given(seed=SEEDS, epoch=st.integers(0, 10**6), rows=st.integers(1, 700))
def test_every_row_once_per_epoch(seed: int, epoch: int, rows: int) -> None:
    order = sample_indices(seed, epoch * rows, rows, rows)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(rows))


@given(seed=SEEDS, rows=st.integers(1, 10**7), start=st.integers(0, 10**12), count=st.integers(0, 300), data=st.data())
def test_any_slice_is_the_same_as_position_by_position(
    seed: int, rows: int, start: int, count: int, data: st.DataObject
) -> None:
    whole = sample_indices(seed, start, count, rows)
    cut = data.draw(st.integers(0, count))
    parts = [sample_indices(seed, start, cut, rows), sample_indices(seed, start + cut, count - cut, rows)]
    assert same_integers(whole, np.concatenate(parts))
    assert ((whole >= 0) & (whole < rows)).all()


def test_epochs_and_seeds_differ() -> None:
    rows = 1000
    orders = [sample_indices(seed, epoch * rows, rows, rows) for seed in range(4) for epoch in range(4)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert np.count_nonzero(one == other) < 12  # two random permutations agree in 1 place on average


def test_the_order_never_changes() -> None:
    """A run resumed with a later version must see the rows it would have seen."""
    assert sample_indices(0, 0, 8, 100).tolist() == [15, 67, 96, 47, 32, 27, 91, 87]
    assert sample_indices(1, 10**9, 4, 31_000_000).tolist() == [12290227, 19907360, 28835510, 18903066]


@pytest.mark.parametrize("rows", [2, 3, 5, 10, 64])
def test_every_row_comes_equally_often_at_every_place(rows: int) -> None:
    epochs = 4000
    orders = sample_indices(7, 0, epochs * rows, rows).reshape(epochs, rows)
    for place in range(rows):
        counts = np.bincount(orders[:, place], minlength=rows)
        expected = epochs / rows
        chi_squared = ((counts - expected) ** 2 / expected).sum()
        assert chi_squared < rows + 6 * np.sqrt(2 * rows) + 12


@pytest.mark.parametrize(("start", "count", "rows"), [(0, 1, 0), (-1, 1, 5), (0, -1, 5)])
def test_nonsense_is_refused(start: int, count: int, rows: int) -> None:
    with pytest.raises(ValueError, match="no order"):
        sample_indices(0, start, count, rows)
