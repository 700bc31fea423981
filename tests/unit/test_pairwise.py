"""Combinations of parameters hold every pair, and are few."""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pairwise import rows

sizes = st.lists(st.integers(1, 5), min_size=2, max_size=6)


@given(sizes)
def test_every_pair_is_there_and_no_row_twice(sizes):
    values = {f"p{i}": [f"{i}{k}" for k in range(size)] for i, size in enumerate(sizes)}
    found = rows(**values)
    for one, other in combinations(range(len(sizes)), 2):
        pairs = {(row[one], row[other]) for row in found}
        assert pairs == set(product(list(values.values())[one], list(values.values())[other]))
    assert len(found) == len(set(found)) <= prod(sizes)
    assert found == rows(**values)


@pytest.mark.parametrize(("sizes", "count"), [((2, 2, 2), 4), ((2, 9), 18), ((3, 4, 2, 2), 12), ((5, 5, 3, 2, 2), 27)])
def test_they_are_hardly_more_than_the_two_longest_lists_need(sizes, count):
    assert len(rows(**{f"p{i}": range(size) for i, size in enumerate(sizes)})) == count
