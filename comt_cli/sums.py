"""A sum of floats that is the same number on every Python."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce


def added(numbers: Iterable[float]) -> float:
    """The sum from left to right, rounded after each addition; 0.0 of nothing. Since Python 3.12 the built-in carries
    the rounding errors along, so that a score would depend on the interpreter; it is for whole numbers."""
    return reduce(operator.add, numbers, 0.0)
