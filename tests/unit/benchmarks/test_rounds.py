"""The arithmetic of timing, with a clock that is told what to say."""

from __future__ import annotations

import pytest
import torch

from comt_cli.benchmarks.rounds import ClockStopwatch, Times, all_turns, in_turns, quickest, ratio
from comt_cli.benchmarks.stages import Deadline, Stage, run_stages

CPU = torch.device("cpu")


class Clock:
    """A clock that only moves when it is pushed."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def takes(self, *seconds: float):
        """A part that takes so long, one number a call, the last for all further ones."""
        left = list(seconds)

        def part() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return part


def test_every_part_is_timed_once_a_round_after_the_warm_up():
    clock = Clock()
    parts = {"a": clock.takes(9.0, 1.0, 2.0, 3.0), "b": clock.takes(9.0, 2.0, 8.0, 3.0)}
    times = all_turns(parts, 3, ClockStopwatch(CPU, clock), warm_up=1)
    assert times["a"].seconds == pytest.approx((1.0, 2.0, 3.0))
    assert times["b"].seconds == pytest.approx((2.0, 8.0, 3.0))


def test_a_ratio_is_formed_within_a_round():
    """1/2, 2/8 and 3/3: the median is 1/2, where the ratio of the medians would be 2/3."""
    times = {"a": Times((1.0, 2.0, 3.0)), "b": Times((2.0, 8.0, 3.0))}
    assert ratio(times, "a", "b") == pytest.approx(0.5)
    assert ratio(times, "a", "a") == 1
    assert ratio(times, "a", None) is None
    assert ratio(times, "a", "absent") is None


def test_a_machine_that_slows_down_does_not_change_a_ratio():
    clock = Clock()
    slow = [1.0 + number for number in range(11)]
    parts = {"a": clock.takes(*(3 * each for each in slow)), "b": clock.takes(*(2 * each for each in slow))}
    times = all_turns(parts, 11, ClockStopwatch(CPU, clock), warm_up=0)
    assert ratio(times, "a", "b") == pytest.approx(1.5)
    assert times["a"].seconds[-1] == pytest.approx(11 * times["a"].seconds[0])


def test_variants_take_turns_and_the_order_turns_round():
    order: list[str] = []
    parts = {name: (lambda name=name: order.append(name)) for name in "abc"}
    news = list(in_turns(parts, 3, ClockStopwatch(CPU), warm_up=0))
    assert "".join(order) == "abccbaabc"
    assert news[:3] == [1, 2, 3]


@pytest.mark.parametrize(
    ("count", "median", "low", "high"),
    [(1, 1, 1, 1), (2, 1.5, 1, 2), (10, 5.5, 2, 9), (15, 8, 2, 14), (30, 15.5, 4, 27)],
)
def test_median_and_percentiles(count, median, low, high):
    """Of 1, 2, ..., n in any order: so many from either end are left out as a tenth of n has whole parts."""
    times = Times(tuple(float((7 * number) % count + 1) for number in range(count)))
    assert sorted(times.seconds) == [float(number) for number in range(1, count + 1)]
    assert (times.median, times.percentile(10), times.percentile(90)) == (median, low, high)
    assert times.milliseconds() == (1000 * median, 1000 * low, 1000 * high)


def test_the_quickest_of_those_that_were_timed():
    times = {"a": Times((3.0, 3.0)), "b": Times((2.0, 2.0)), "c": Times((1.0, 1.0))}
    assert quickest(times, ["a", "b", "absent"]) == "b"
    assert quickest(times, ["absent"]) is None


def stage(clock: Clock, what: str, said: float, takes: float) -> Stage:
    def run(go_on):
        clock.now += takes
        yield [what, go_on()]

    return Stage("step", what, said, run)


def test_stages_end_in_time_and_learn_how_long_they_take():
    """60 s: the first takes 20 instead of 10, so the next two alike are expected at 20 and 60; the last is another."""
    clock = Clock()
    stages = [
        stage(clock, "step at 60m", 10, 20),
        stage(clock, "step at 130m", 10, 10),
        stage(clock, "step at 1b", 40, 40),
        stage(clock, "decoding at 60m", 20, 35),
        stage(clock, "decoding at 1b", 1, 1),
    ]
    news = [each for _, each in run_stages(stages, Deadline(60, clock))]
    assert [each for each in news if isinstance(each, list)] == [
        ["step at 60m", True],
        ["step at 130m", True],
        ["decoding at 60m", False],  # it took longer than was left, and was told
    ]
    assert [each for each in news if isinstance(each, str) and "left out" in each] == [
        "left out for want of time: step at 1b (about 40 s, 30 s left)",
        "left out for want of time: decoding at 1b (about 2 s, 0 s left)",
    ]
