"""Validation sequences in two: no row is lost, none is in both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from same_bits import same_integers

from comt_cli.data.text.rows import PackedRows, without_last
from comt_cli.errors import UserError


def packed(rows: int) -> PackedRows:
    return PackedRows([np.arange(rows * 4, dtype=np.uint16)], 4, 1, rows * 9)


@given(st.integers(2, 60), st.floats(0.001, 0.999))
def test_two_parts_are_the_whole(rows, share):
    whole = packed(rows)
    first, last = without_last(whole, share)
    assert len(first) > 0
    assert len(last) > 0
    assert len(first) + len(last) == rows
    tokens = [part.batch(np.arange(len(part))).tokens for part in (first, last)]
    assert same_integers(np.concatenate(tokens), whole.batch(np.arange(rows)).tokens)
    assert abs(len(last) - share * rows) <= 1
    assert first.target_counts(np.arange(len(first))).tolist() == [3] * len(first)
    with pytest.raises(IndexError):
        first.batch(np.array([len(first)]))


def test_one_row_cannot_be_divided():
    with pytest.raises(UserError, match="cannot be divided"):
        without_last(packed(1), 0.5)
