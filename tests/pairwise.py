"""Few combinations of many parameters: every value of each beside every value of each other one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def rows(**values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations of values that hold every pair of them: one by one that with the most pairs that are still missing,
    the same ones every time."""
    pairs = {row: {*combinations(enumerate(row), 2)} for row in product(*map(range, map(len, values.values())))}
    missing, found = set().union(*pairs.values()), []
    while missing:
        best = max(pairs, key=lambda row: len(pairs[row] & missing))
        missing -= pairs[best]
        found.append(tuple(each[at] for each, at in zip(values.values(), best, strict=True)))
    return found


def pairwise(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise a test by `rows`."""
    return pytest.mark.parametrize(tuple(values), rows(**values), ids=str)
