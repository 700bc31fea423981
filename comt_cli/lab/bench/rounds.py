"""How everything here is timed: all variants in one process, in turns, round after round, until their times settle.

Other work on a machine only slows turns down. The time of a variant is therefore the 20th percentile of its turns:
that of an undisturbed one, as long as fewer than four in five are disturbed. A ratio is that of two such times. A ratio
formed within a round is wrong wherever either turn was disturbed (with 30 % of the turns that is every second round),
and the median of those is too large for the longer variant, which meets more of the disturbances.
A machine that slows down as a whole slows all variants alike, since they take turns: the same rounds are the quickest
of all of them. The order turns round with every round, so that none always comes after the same other.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from comt_cli.lab.bench.ending import failed
from comt_cli.lab.bench.memory import free
from comt_cli.training.devices import synchronise

Part = Callable[[], object]
"""One thing to time: a whole step, a forward pass, one kernel."""
Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")
GoOn = Callable[[], bool]
"""Asked before what takes long, whether there is time for it."""
Stopwatch = Callable[[Part], float]
"""Returns the seconds that a part took."""

PERCENT = 20
"""The percentile of a variant's turns that is its time."""
SETTLED = 0.03
"""Times have settled when the 90 % interval of each is at most so wide, as a part of the time."""
_RELIABILITY = ("spread", "uncertainty", "settled")
"""How the columns of `reliability` end, which verdicts on goals are made of."""
PATIENCE = 1
"""Rounds beyond those asked for, for want of settled times, are at most so many times as many as those."""
_HEAD_START = 8192
"""Side of the square matrix product (1.5 ms on an H200) that keeps a GPU busy while the host queues what is timed."""


def always() -> bool:
    """Nothing limits the time."""
    return True


def stopwatch_for(device: torch.device, *, head_start: bool = False) -> Stopwatch:
    """A clock read before and after, the second time when the device has done its work; on CUDA events of the current
    stream. With `head_start` the GPU is kept busy until the host has queued the whole part: what is short then shows
    the device's time and not the host's, as within a training step, where the host runs ahead."""

    def by_clock(part: Part) -> float:
        synchronise(device)
        start = time.perf_counter()
        part()
        synchronise(device)
        return time.perf_counter() - start

    if device.type != "cuda":
        return by_clock
    busy = torch.zeros(_HEAD_START, _HEAD_START, device=device, dtype=torch.bfloat16) if head_start else None

    def by_events(part: Part) -> float:
        with torch.cuda.device(device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            if busy is not None:
                busy @ busy
            begin.record()
            part()
            end.record()
            torch.cuda.synchronize()
            milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3

    return by_events


@functools.cache
def interval(n: int) -> tuple[int | None, int]:
    """The places, from 0, in n ordered turns between which the true `PERCENT`th percentile lies in at least 90 % of all
    cases, beyond either in at most 5 %, whatever the distribution; None where no turn is low enough for that.

    How many of n turns lie below the true percentile is binomial (David and Nagaraja, Order Statistics, 7.1).
    """
    low: int | None = None
    share, at_most = PERCENT / 100, 0.0
    for k in range(n):
        ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        at_most += math.exp(ways + k * math.log(share) + (n - k) * math.log1p(-share))
        if at_most <= 0.05:
            low = k
        if at_most >= 0.95:
            return low, k
    return low, n - 1


@dataclass(frozen=True)
class Times:
    """Seconds that one part took, one number a round; `cut_short`: of fewer rounds than were asked for."""

    seconds: tuple[float, ...]
    cut_short: bool = False

    @property
    def settled(self) -> bool:
        """Whether there are enough of them, for so wide an interval."""
        return not self.cut_short and self.uncertainty <= SETTLED

    @property
    def undisturbed(self) -> float:
        """Seconds of a turn that nothing else on the machine slowed down: the `PERCENT`th percentile."""
        return self.percentile(PERCENT)

    @property
    def spread(self) -> float:
        """The 90th percentile over the 10th."""
        return self.percentile(90) / self.percentile(10)

    @property
    def _ends(self) -> tuple[float, float]:
        """Of the 90 % interval of `undisturbed`; below it infinitely far with fewer than 14 turns, whose least may well
        lie above the true percentile (0.8^13 > 5 %)."""
        ordered, (low, high) = sorted(self.seconds), interval(len(self.seconds))
        return -math.inf if low is None else ordered[low], ordered[high]

    @property
    def uncertainty(self) -> float:
        """The width of that interval, as a part of `undisturbed`."""
        low, high = self._ends
        return (high - low) / self.undisturbed

    @property
    def reach(self) -> float:
        """How far its farther end lies from `undisturbed`, as a part of it: often most of its width, since the
        percentile lies near the least of few turns."""
        low, high = self._ends
        return max(self.undisturbed - low, high - self.undisturbed) / self.undisturbed

    def percentile(self, percent: int) -> float:
        """Seconds; of so many rounds' times the one at that place, without interpolation: 0 the least, 100 the most.

        The places of p and 100 - p lie equally far from the ends.
        """
        ordered = sorted(self.seconds)
        place = min(percent, 100 - percent) * len(ordered) // 100
        return ordered[place] if percent < 50 else ordered[-1 - place]

    def columns(self, name: str, decimals: int = 4) -> dict[str, float]:
        """Milliseconds by the columns of a row, the undisturbed time and percentiles: `step_ms`, `step_ms_p10`,
        `step_ms_p90`."""
        of = {name: self.undisturbed, f"{name}_p10": self.percentile(10), f"{name}_p90": self.percentile(90)}
        return {column: round(1e3 * seconds, decimals) for column, seconds in of.items()}


def in_turns(
    parts: Mapping[Key, Part], rounds: int, stopwatch: Stopwatch, warm_up: int = 1, go_on: GoOn = always
) -> Iterator[int | dict[Key, Times]]:
    """Time every part once a round, after `warm_up` untimed rounds: `rounds` times, and then until the times have
    settled, at most `PATIENCE` times as often again. `go_on` is asked before each turn: where it says no, a round
    ends at once unless it is the first, and none begins. Yields the number of each finished round (from 1), and last
    the times of every part in the rounds that were finished, also where a `KeyboardInterrupt` ended them.

    Raises:
        KeyboardInterrupt: before there was one.
    """
    taken: list[dict[Key, float]] = []
    try:
        for part in [*parts.values()] * warm_up:
            go_on()  # which may raise it
            part()
        while len(taken) < rounds * (1 + PATIENCE) and (len(taken) < rounds or unsettled(_times(taken, rounds))):
            turns: dict[Key, float] = {}
            for key in [*parts][:: -1 if len(taken) % 2 else 1]:
                if not go_on() and taken:
                    break
                turns[key] = stopwatch(parts[key])
            if len(turns) < len(parts):
                break
            taken.append(turns)
            yield len(taken)
    except KeyboardInterrupt:
        if not taken:
            raise
    yield _times(taken, rounds)


def _times(taken: list[dict[Key, float]], asked: int) -> dict[Key, Times]:
    return {key: Times(tuple(turns[key] for turns in taken), len(taken) < asked) for key in taken[0]}


def told_turns(
    what: str, parts: Mapping[Key, Part], rounds: int, device: torch.device, go_on: GoOn, warm_up: int = 1
) -> Generator[str, None, dict[Key, Times]]:
    """`in_turns` on a device; yields a line for each round, and whether the times have settled; returns them."""
    times: dict[Key, Times] = {}
    for news in in_turns(parts, rounds, stopwatch_for(device), warm_up, go_on):
        if isinstance(news, dict):
            times = news
        else:
            yield f"{what}round {news}{f' of {rounds}' if news <= rounds else ', to settle the times'}"
    if (still := unsettled(times)) is not None:
        yield f"{what.strip()}: {still}" if what else still
    return times


@dataclass(frozen=True)
class Turns:
    """Has parts take turns on a device, as `in_turns` does, without the news."""

    device: torch.device
    rounds: int
    go_on: GoOn = always

    def of(self, parts: Mapping[Key, Part], *, head_start: bool = False) -> dict[Key, Times]:
        """The times of every part."""
        *_, times = in_turns(parts, self.rounds, stopwatch_for(self.device, head_start=head_start), go_on=self.go_on)
        assert isinstance(times, dict)
        return times


def each_in_time(parts: Mapping[str, Callable[[], Iterator[T]]], turns: Turns) -> Iterator[T | str]:
    """What each part yields, by its name; a line for one that there is no time for, and for one that fails, which must
    not lose the others."""
    for what, part in parts.items():
        if not turns.go_on():
            yield f"{what}: left out for want of time"
            continue
        try:
            yield from part()
        except Exception as error:
            yield failed(what, error)
        free(turns.device)


def unsettled(times: Mapping[Key, Times]) -> str | None:
    """None where all times have settled, else a phrase about the least certain."""
    if all(each.settled for each in times.values()):
        return None
    worst, rounds = max((each.uncertainty, len(each.seconds)) for each in times.values())
    extent = "too few for an interval" if worst == math.inf else f"to {100 * worst:.0f} % of a time"
    cut = "cut short and " if any(each.cut_short for each in times.values()) else ""
    return f"{cut}not settled after {rounds} round{'s' if rounds > 1 else ''} ({extent})"


def quickest(times: Mapping[Key, Times], of: Sequence[Key]) -> Key | None:
    """Which of `of` takes the least time; None where none of them was timed."""
    return min((key for key in of if key in times), key=lambda key: times[key].undisturbed, default=None)


def compared(name: str, times: Mapping[Key, Times], key: Key, to: Key | None) -> dict[str, float | bool | None]:
    """One time over another, to four decimals, and its `reliability`, by their columns; all None where there is nothing
    to compare with."""
    if to is None or to not in times:
        return dict.fromkeys((name, *(f"{name}_{each}" for each in _RELIABILITY)))
    one, other = times[key], times[to]
    found = {name: round(one.undisturbed / other.undisturbed, 4), **reliability(name, one, other)}
    return found | {f"{name}_uncertainty": 0.0} if key == to else found  # it is 1, whatever the time


def reliability(name: str, *of: Times) -> dict[str, float | bool | None]:
    """What is known of the error of a time or of a ratio of two, by columns: the greater `spread` of the times, how far
    the value's 90 % interval reaches as a part of the value, and whether all the times have settled.

    The interval is taken as wide to both sides as to the farther one. The reaches of two times are added as squares, as
    if their errors were independent; what slows a round down slows both. Of too few turns there is none.
    """
    reach = math.hypot(*(each.reach for each in of))
    values = (
        round(max(each.spread for each in of), 3),
        round(reach, 4) if reach < math.inf else None,
        all(each.settled for each in of),
    )
    return dict(zip((f"{name}_{each}" for each in _RELIABILITY), values, strict=True))
