"""How everything here is timed: all variants in one process, in turns, round after round.

A machine that slows down, or warms up, then slows down all of them. The ratio of two variants is formed within a round,
where both met the same machine, and the median over the rounds is what counts. The order turns round with every round,
so that none always comes after the same other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from comt_cli.training.devices import synchronise

Part = Callable[[], object]
"""One thing to time: a whole step, a forward pass, one kernel."""
Key = TypeVar("Key", bound=Hashable)

_HEAD_START = 8192
"""Side of the square matrix product (1.5 ms on an H200) that keeps a GPU busy while the host queues what is timed."""


class Stopwatch(Protocol):
    """Says how many seconds a part took."""

    def seconds(self, part: Part) -> float: ...


class ClockStopwatch:
    """A clock read before and after, the second time when the device has done what it was given."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device, self.clock = device, clock

    def seconds(self, part: Part) -> float:
        """Seconds from the call to the end of its work on the device."""
        synchronise(self.device)
        start = self.clock()
        part()
        synchronise(self.device)
        return self.clock() - start


class EventStopwatch:
    """CUDA events around a part. With `head_start` the device is kept busy until the host has queued the whole part:
    what is short then shows the device's time and not the host's, as within a training step, where the host runs ahead.
    """

    def __init__(self, device: torch.device, *, head_start: bool) -> None:
        self.device = device
        self.busy = torch.zeros(_HEAD_START, _HEAD_START, device=device, dtype=torch.bfloat16) if head_start else None

    def seconds(self, part: Part) -> float:
        """Seconds between two events of the current stream."""
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            if self.busy is not None:
                self.busy @ self.busy
            begin.record()
            part()
            end.record()
            torch.cuda.synchronize()
            milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3


def stopwatch_for(device: torch.device, *, head_start: bool = False) -> Stopwatch:
    """Events on CUDA, a clock elsewhere."""
    if device.type == "cuda":
        return EventStopwatch(device, head_start=head_start)
    return ClockStopwatch(device)


@dataclass(frozen=True)
class Times:
    """Seconds that one part took, one number a round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds; the mean of the middle two where there are two."""
        return statistics.median(self.seconds)

    def percentile(self, percent: int) -> float:
        """Seconds; of so many rounds' times the one at that place, without interpolation: 0 the least, 100 the most.

        The places of p and 100 - p lie equally far from the ends.
        """
        ordered = sorted(self.seconds)
        place = min(percent, 100 - percent) * len(ordered) // 100
        return ordered[place] if percent < 50 else ordered[-1 - place]

    def ratio_to(self, other: Times) -> float:
        """The median over the rounds of this time over the other's in the same round."""
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))

    def milliseconds(self, decimals: int = 4) -> tuple[float, float, float]:
        """Median, 10th and 90th percentile, in milliseconds."""
        median, low, high = (round(1e3 * x, decimals) for x in (self.median, self.percentile(10), self.percentile(90)))
        return median, low, high

    def columns(self, name: str, decimals: int = 4) -> dict[str, float]:
        """The same by the columns of a row: `step_ms`, `step_ms_p10`, `step_ms_p90`."""
        return dict(zip((name, f"{name}_p10", f"{name}_p90"), self.milliseconds(decimals), strict=True))


def in_turns(
    parts: Mapping[Key, Part], rounds: int, stopwatch: Stopwatch, warm_up: int = 1
) -> Iterator[int | dict[Key, Times]]:
    """Time every part once a round, after `warm_up` untimed rounds; yields the number of each finished round (from 1),
    and last the times of every part."""
    taken: dict[Key, list[float]] = {key: [] for key in parts}
    for _ in range(warm_up):
        for part in parts.values():
            part()
    for number in range(1, rounds + 1):
        keys = list(parts)
        for key in keys if number % 2 else reversed(keys):
            taken[key].append(stopwatch.seconds(parts[key]))
        yield number
    yield {key: Times(tuple(seconds)) for key, seconds in taken.items()}


def all_turns(parts: Mapping[Key, Part], rounds: int, stopwatch: Stopwatch, warm_up: int = 1) -> dict[Key, Times]:
    """`in_turns` without the news."""
    *_, times = in_turns(parts, rounds, stopwatch, warm_up)
    assert isinstance(times, dict)
    return times


def quickest(times: Mapping[Key, Times], of: list[Key]) -> Key | None:
    """Which of `of` has the least median; None where none of them was timed."""
    return min((key for key in of if key in times), key=lambda key: times[key].median, default=None)


def ratio(times: Mapping[Key, Times], key: Key, to: Key | None) -> float | None:
    """`ratio_to`, to four decimals; None where there is nothing to compare with."""
    return round(times[key].ratio_to(times[to]), 4) if to is not None and to in times else None
