"""Random choices for generated data: pure functions of a name and an example's number."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from comt_cli.errors import UserError

V = TypeVar("V")

_AT_ONCE = 1 << 11  # examples per block of draws


class Draws:
    """Uniform numbers in [0, 1), consumed one after another."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self._numbers: Iterator[float] = iter(numbers)

    def share(self) -> float:
        return next(self._numbers)

    def below(self, count: int) -> int:
        """A whole number in [0, count)."""
        return int(self.share() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, inclusive."""
        return low + self.below(high - low + 1)

    def one_of(self, values: Sequence[V]) -> V:
        return values[self.below(len(values))]

    def some(self, count: int, among: int) -> list[int]:
        """`count` different numbers in [0, among), in the order of drawing."""
        found: list[int] = []
        for _ in range(count):
            number = self.below(among - len(found))
            for taken in sorted(found):  # skip taken numbers
                number += number >= taken
            found.append(number)
        return found


def seed_of(name: str) -> int:
    """The seed of the random numbers for `name`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")


def drawn(name: str, numbers: int, start: int = 0) -> Iterator[Draws]:
    """The draws of the examples of `name` from number `start` on, without end; `numbers` draws per example."""
    from comt_cli.data.order import uniform_draws  # imports NumPy, which plans do not need

    seed = seed_of(name)
    for begin in itertools.count(start, _AT_ONCE):
        yield from map(Draws, uniform_draws(seed, begin, _AT_ONCE, numbers).tolist())


def unseen(
    made: Iterable[V], count: int, contents: Callable[[V], Iterable[Hashable]], seen: set[Any], key: str
) -> list[V]:
    """The first `count` of `made` whose contents are not in `seen`; adds these. Raises `UserError` about `key`."""
    found: list[V] = []
    for each in made:
        if len(found) == count:
            break
        if seen.isdisjoint(held := [*contents(each)]):
            seen.update(held)
            found.append(each)
    if len(found) < count:
        said = f"{key}: only {len(found):,} examples are in no earlier split, not {count:,}"
        raise UserError(said, "Use fewer, or difficulty: full.")
    return found
