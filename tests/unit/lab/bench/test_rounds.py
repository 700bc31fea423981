"""Turns, times and their intervals; stages that end in time."""

from __future__ import annotations

import math
import random
import signal
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comt_cli.lab.bench import rounds as rounds_module
from comt_cli.lab.bench.ending import Deadline
from comt_cli.lab.bench.page import Goal
from comt_cli.lab.bench.rounds import (
    SETTLED,
    Times,
    compared,
    in_turns,
    interval,
    quickest,
    reliability,
    unsettled,
)
from comt_cli.lab.bench.stages import Stage, reach, run_stages
from comt_cli.training.processes import StopSignal


@pytest.fixture(autouse=True)
def _patience(_tiny, monkeypatch) -> None:
    monkeypatch.setattr(rounds_module, "PATIENCE", 1)


def noisy(seed: int, share: float, most: float) -> Callable:
    """A stopwatch of a machine whose turns take what the part returns, one in a hundred more or less; a `share` of them
    up to `most` times as long."""
    noise = random.Random(seed)

    def seconds(part) -> float:
        slowed = noise.uniform(1, most) if noise.random() < share else 1
        return part() * slowed * noise.uniform(0.995, 1.005)

    return seconds


def all_turns(parts, rounds: int, stopwatch, **how) -> dict[str, Times]:
    *_, times = in_turns(parts, rounds, stopwatch, **how)
    return times


def test_variants_take_turns_and_the_order_turns_round():
    order: list[str] = []
    parts = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    *numbers, times = in_turns(parts, 14, lambda part: part(), warm_up=1)
    assert "".join(order) == "abc" + "abccba" * 7
    assert numbers == [*range(1, 15)]
    assert {each.seconds for each in times.values()} == {(1.0,) * 14}
    assert unsettled(times) is None


def test_a_ratio_is_that_of_undisturbed_times():
    times = {"a": Times((1.0, 8.0, 1.0)), "b": Times((9.0, 2.0, 3.0))}
    assert [compared("x", times, *pair)["x"] for pair in ("ab", "ba", "aa")] == [0.5, 2.0, 1.0]
    assert [compared("x", times, *pair)["x_spread"] for pair in ("ab", "ba", "aa")] == [8.0, 8.0, 8.0]
    nothing = {"x": None, "x_spread": None, "x_uncertainty": None, "x_settled": None}
    assert compared("x", times, "a", None) == compared("x", times, "a", "absent") == nothing
    assert quickest(times, ["a", "b", "absent"]) == "a"
    assert quickest(times, ["absent"]) is None


@pytest.mark.parametrize(
    ("count", "time", "low", "high"), [(1, 1, 1, 1), (2, 1, 1, 2), (10, 3, 2, 9), (15, 4, 2, 14), (30, 7, 4, 27)]
)
def test_percentiles(count, time, low, high):
    """Of 1, 2, ..., n in any order: so many from either end are left out as a fifth, or tenth, of n has whole parts."""
    times = Times(tuple(float((7 * number) % count + 1) for number in range(count)))
    assert times.columns("x_ms") == {"x_ms": 1000 * time, "x_ms_p10": 1000 * low, "x_ms_p90": 1000 * high}
    assert times.spread == high / low


@pytest.mark.parametrize("n", [*range(10, 20), 30, 100, 999])
def test_the_interval_of_the_percentile(n):
    """K of n turns lie below the true 20th percentile; K is binomial, and the turn at place i is below where K > i.
    Either end fails in at most 5 % of all cases, and the next turn inwards would not do."""
    pmf = [math.comb(n, k) * 4 ** (n - k) for k in range(n + 1)]  # of 5^n cases
    low, high = interval(n)
    assert (low is None) == (n < 14)
    below = [sum(pmf[: k + 1]) for k in range(n + 1)]
    if low is not None:
        assert 20 * below[low] <= 5**n < 20 * below[low + 1]
        assert 20 * below[high - 1] < 19 * 5**n <= 20 * below[high]
    assert high <= n - 1


@given(seed=st.integers(0, 2**32), true=st.floats(0.5, 2), share=st.floats(0, 0.3))
@settings(max_examples=100)
def test_noise_that_slows_a_part_of_the_turns_leaves_the_ratio(seed, true, share):
    times = all_turns({"a": lambda: true, "b": lambda: 1.0}, 15, noisy(seed, share, 8))
    assert compared("x", times, "a", "b")["x"] == pytest.approx(true, rel=0.02)


def verdict(times: dict[str, Times], goal: float) -> str:
    row = {name: str(value) for name, value in compared("ratio", times, "a", "b").items()} | {"goal": str(goal)}
    return Goal("ratio", "goal", "step", timed="ratio").verdict(row) or ""


def around(width: float) -> Times:
    """Fifteen turns of about a second; the 90 % interval, from the least to the seventh, has this width."""
    return Times((*(1 - width / 2 for _ in range(2)), *(1.0 for _ in range(4)), *(1 + width / 2 for _ in range(9))))


@given(st.floats(0, 0.2), st.floats(0, 0.2), st.floats(0.8, 1.25))
def test_the_interval_of_a_ratio(first, second, goal):
    """As wide as that of either time, at least, and not wider than both; settled where both times are. A goal within it
    is neither met nor missed."""
    times = {"a": around(first), "b": around(second)}
    found = compared("x", times, "a", "b")
    assert max(first, second) / 2 - 1e-4 <= found["x_uncertainty"] <= (first + second) / 2 + 1e-4
    assert (
        found["x_settled"]
        == (unsettled(times) is None)
        == (max(each.uncertainty for each in times.values()) <= SETTLED)
    )
    assert compared("x", times, "a", "a")["x_uncertainty"] == 0
    far = abs(1 - goal) >= found["x_uncertainty"]
    assert verdict(times, goal).split(" (")[0] == f"step {('met' if goal >= 1 else 'missed') if far else 'not settled'}"


def test_an_interval_that_lies_to_one_side_reaches_the_goal_there():
    """Ten of 15 turns were disturbed: the true percentile may be that of the disturbed ones."""
    times = {"a": Times((*(1.0 for _ in range(5)), *(1.029 for _ in range(10)))), "b": Times((1.0,) * 15)}
    assert compared("x", times, "a", "b")["x_uncertainty"] == 0.029
    assert verdict(times, 1.02).startswith("step not settled")


def test_rounds_go_on_until_the_times_settle():
    """The first nine rounds are all over the place, what follows is not."""
    taken = iter([4.0, 1.5, 3.0, 2.0, 5.0, 1.7, 2.5, 3.5, 4.5])
    *numbers, times = in_turns({"a": lambda: next(taken, 1.0)}, 15, lambda part: part(), warm_up=0)
    assert 15 < len(numbers) < 30
    assert unsettled(times) is None
    assert unsettled({"a": Times(times["a"].seconds[:-1])}) is not None, "it ended as soon as they had"


@pytest.mark.parametrize(("turns", "count"), [(0, 1), (3, 1), (4, 2), (5, 2), (28, 14), (29, 14), (30, 15), (99, 15)])
def test_no_turn_begins_when_time_is_up(turns, count):
    """Of the first round all do, without which there would be no times; a later one that is not whole is dropped. Cut
    short of what was asked for, nothing is settled, however equal the times are."""
    left = iter([True] * turns)
    parts = {"a": lambda: 1.0, "b": lambda: 1.0}
    *numbers, times = in_turns(parts, 15, noisy(0, 0, 1), warm_up=0, go_on=lambda: next(left, False))
    assert numbers == [*range(1, count + 1)]
    known = reliability("a", times["a"])
    assert known["a_settled"] == (unsettled(times) is None) == (count == 15)
    assert (known["a_uncertainty"] is None) == (count < 14)


@pytest.mark.parametrize("asked", [True, False], ids=["between turns", "within one"])
@pytest.mark.parametrize("turn", range(9))
def test_an_interruption_leaves_whole_rounds(turn, asked):
    """Two parts, warmed up twice: turns 4 and 5 are the first round. Before its end there is nothing to leave."""
    done = []

    def interrupted() -> bool:
        if len(done) == turn:
            raise KeyboardInterrupt
        return True

    def part() -> float:
        if not asked:
            interrupted()
        done.append(1)
        return 1.0

    go_on = interrupted if asked else lambda: True
    measured = in_turns(dict.fromkeys("ab", part), 15, noisy(0, 0, 1), warm_up=2, go_on=go_on)
    if turn < 6:
        with pytest.raises(KeyboardInterrupt):
            list(measured)
        return
    *numbers, times = measured
    assert numbers == [*range(1, (turn - 4) // 2 + 1)]
    assert {(len(each.seconds), each.settled) for each in times.values()} == {(len(numbers), False)}


# ---- how it ends


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_deadline_passes_and_can_be_interrupted():
    clock, stop = Clock(), StopSignal()
    deadline = Deadline(10, stop, clock)
    clock.now = 9
    assert (deadline.left(), deadline()) == (1, True)
    clock.now = 10
    assert not deadline()
    stop.number = signal.SIGTERM
    with pytest.raises(KeyboardInterrupt):
        deadline()


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
    assert reach(stages, 50).startswith(
        "0.833333 minutes are likely to reach 2 of 5 parts, the last of them: step at 1"
    )
    news = [each for _, each in run_stages(stages, Deadline(60, clock=clock))]
    assert [each for each in news if isinstance(each, list)] == [
        ["step at 60m", True],
        ["step at 130m", True],
        ["decoding at 60m", False],  # it took longer than was left, and was told
    ]
    assert [each for each in news if isinstance(each, str) and "left out" in each] == [
        "left out for want of time: step at 1b (about 40 s, 30 s left)",
        "left out for want of time: decoding at 1b (about 1 s, 0 s left)",
    ]
