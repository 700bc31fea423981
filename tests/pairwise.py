"""Few combinations of many parameters: every value of each beside every value of each other one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest


def rows(**values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations of two or more parameters' values that hold every pair of them; the same ones every time.

    Each is the best of those that begin with a missing pair and are filled up, one parameter after the other, with the
    value that makes most new pairs with what already stands there, or of several such the least used one.
    """
    if len(values) < 2:
        raise ValueError("pairs are of two or more parameters")
    sites = [(column, value) for column, each in enumerate(values.values()) for value in range(len(each))]
    missing = {frozenset(pair) for pair in combinations(sites, 2) if pair[0][0] != pair[1][0]}
    used = dict.fromkeys(sites, 0)

    def filled(row: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
        for column in set(range(len(values))) - {column for column, _ in row}:
            gains = {site: sum({site, each} in missing for each in row) for site in sites if site[0] == column}
            row.append(max(gains, key=lambda site: (gains[site], -used[site])))
        return sum(frozenset(pair) in missing for pair in combinations(row, 2)), sorted(row)

    found = []
    while missing:
        _, best = max((filled(sorted(pair)) for pair in sorted(missing, key=sorted)), key=lambda each: each[0])
        missing -= {frozenset(pair) for pair in combinations(best, 2)}
        used |= {site: used[site] + 1 for site in best}
        found.append(tuple(each[value] for each, (_, value) in zip(values.values(), best, strict=True)))
    return found


def pairwise(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise a test by `rows`."""
    return pytest.mark.parametrize(tuple(values), rows(**values), ids=str)
