"""A sum of floats that is the same number on every Python."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce


def added(numbers: Iterable[float]) -> float:
    """The sum from left to right, rounded after each addition; 0.0 of nothing.

    As the built-in `sum` was up to Python 3.11. Since 3.12 it carries the rounding errors along, so that a score, and
    what is trained by it, would depend on the interpreter in its last digits. The built-in is for whole numbers.
    """
    return reduce(operator.add, numbers, 0.0)
