"""Random choices of the almanac, and what may be chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


class Draws:
    """Uniform numbers in [0, 1), taken one after the other."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self._numbers: Iterator[float] = iter(numbers)

    def share(self) -> float:
        """A number in [0, 1)."""
        return next(self._numbers)

    def below(self, count: int) -> int:
        """A whole number in [0, count)."""
        return int(self.share() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def some(self, count: int, among: int) -> list[int]:
        """`count` different numbers in [0, among), in the order in which they were drawn."""
        found: list[int] = []
        for _ in range(count):
            number = self.below(among - len(found))
            for taken in sorted(found):  # the places that are taken are skipped
                number += number >= taken
            found.append(number)
        return found


@dataclass(frozen=True)
class Limits:
    """What may be drawn: `easy`, numbers below 100 and no decimals; `years`, the first and the last."""

    easy: bool
    years: tuple[int, int]
