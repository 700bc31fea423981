"""A sum of floats that is equal on every Python version."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce


def added(numbers: Iterable[float]) -> float:
    """The sum from left to right, rounded after each addition; 0.0 without numbers. Since Python 3.12 the built-in
    `sum` compensates rounding errors, so that scores would depend on the interpreter; it is used only for integers."""
    return reduce(operator.add, numbers, 0.0)
