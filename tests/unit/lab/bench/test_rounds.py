"""The arithmetic of timing, with a clock that is told what to say."""

from __future__ import annotations

import math
import random
import signal
import statistics
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comt_cli.lab.bench import rounds as rounds_module
from comt_cli.lab.bench.limits import Deadline
from comt_cli.lab.bench.page import Goal
from comt_cli.lab.bench.rounds import (
    PATIENCE,
    SETTLED,
    ClockStopwatch,
    Times,
    compared,
    in_turns,
    interval,
    quickest,
    ratio,
    reliability,
    unsettled,
)
from comt_cli.lab.bench.stages import Stage, reach, run_stages
from comt_cli.training.processes import StopSignal

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _patience(_tiny, monkeypatch) -> None:
    """As it is: the other tests of this folder have none."""
    monkeypatch.setattr(rounds_module, "PATIENCE", PATIENCE)


def all_turns(*arguments, **more) -> dict[str, Times]:
    *_, times = in_turns(*arguments, **more)
    return times


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
    parts = {"a": clock.takes(9.0, 1.0), "b": clock.takes(9.0, 2.0)}
    times = all_turns(parts, 14, ClockStopwatch(CPU, clock), warm_up=1)
    assert times["a"].seconds == pytest.approx((1.0,) * 14)
    assert times["b"].seconds == pytest.approx((2.0,) * 14)


def test_a_ratio_is_that_of_undisturbed_times():
    times = {"a": Times((1.0, 8.0, 1.0)), "b": Times((9.0, 2.0, 3.0))}
    assert ratio(times, "a", "b") == pytest.approx(0.5)
    assert ratio(times, "a", "a") == 1
    assert ratio(times, "a", None) is None
    assert ratio(times, "a", "absent") is None
    assert [compared("x", times, *pair)["x"] for pair in ("ab", "ba", "aa")] == [0.5, 2.0, 1.0]
    assert [compared("x", times, *pair)["x_spread"] for pair in ("ab", "ba", "aa")] == [8.0, 8.0, 8.0]
    nothing = {"x": None, "x_spread": None, "x_uncertainty": None, "x_settled": None}
    assert compared("x", times, "a", None) == compared("x", times, "a", "absent") == nothing


def test_a_machine_that_slows_down_does_not_change_a_ratio():
    clock = Clock()
    slow = [1.0 + number for number in range(11)]
    parts = {"a": clock.takes(*(3 * each for each in slow)), "b": clock.takes(*(2 * each for each in slow))}
    times = all_turns(parts, 11, ClockStopwatch(CPU, clock), warm_up=0)
    assert ratio(times, "a", "b") == pytest.approx(1.5)
    assert times["a"].seconds[10] == pytest.approx(11 * times["a"].seconds[0])


def test_variants_take_turns_and_the_order_turns_round():
    clock, order = Clock(), []

    def part(name: str) -> None:
        order.append(name)
        clock.now += 1

    parts = {name: partial(part, name) for name in "abc"}
    news = list(in_turns(parts, 14, ClockStopwatch(CPU, clock), warm_up=0))
    assert "".join(order) == "abccba" * 7
    assert news[:3] == [1, 2, 3]


@pytest.mark.parametrize(
    ("count", "time", "low", "high"), [(1, 1, 1, 1), (2, 1, 1, 2), (10, 3, 2, 9), (15, 4, 2, 14), (30, 7, 4, 27)]
)
def test_percentiles(count, time, low, high):
    """Of 1, 2, ..., n in any order: so many from either end are left out as a fifth, or tenth, of n has whole parts."""
    times = Times(tuple(float((7 * number) % count + 1) for number in range(count)))
    assert sorted(times.seconds) == [float(number) for number in range(1, count + 1)]
    assert (times.undisturbed, times.percentile(10), times.percentile(90)) == (time, low, high)
    assert times.milliseconds() == (1000 * time, 1000 * low, 1000 * high)
    assert times.spread == high / low


@pytest.mark.parametrize("n", [*range(1, 40), 100, 999])
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


def test_fewer_than_fourteen_turns_are_never_settled():
    """However equal they are: the least may lie above the true percentile."""
    few, enough = {"a": Times((1.0,) * 13)}, {"a": Times((1.0,) * 14)}
    assert unsettled(few) == "not settled after 13 rounds (too few for an interval)"
    assert unsettled(enough) is None
    known = {"step_spread": 1.0, "step_uncertainty": None, "step_settled": False}
    assert reliability("step", few["a"]) == known
    assert reliability("step", enough["a"]) == known | {"step_uncertainty": 0.0, "step_settled": True}


# ---- noise


class NoisyMachine:
    """Turns that take what is said, one in a hundred more or less; a `share` of them up to `most` times as long."""

    def __init__(self, seed: int, share: float, most: float) -> None:
        self.random, self.share, self.most = random.Random(seed), share, most

    def seconds(self, part) -> float:
        slowed = self.random.uniform(1, self.most) if self.random.random() < self.share else 1
        return part() * slowed * self.random.uniform(0.995, 1.005)


@given(seed=st.integers(0, 2**32), true=st.floats(0.5, 2), share=st.floats(0, 0.3))
@settings(max_examples=200)
def test_noise_that_slows_a_part_of_the_turns_leaves_the_ratio(seed, true, share):
    times = all_turns({"a": lambda: true, "b": lambda: 1.0}, 15, NoisyMachine(seed, share, 8))
    assert ratio(times, "a", "b") == pytest.approx(true, rel=0.02)


def test_the_median_of_the_ratios_within_a_round_would_not_stand_that():
    """What was done before: 200 times 15 rounds in which 30 % of the turns are slowed, up to 8 times."""
    wrong = 0
    for seed in range(200):
        machine = NoisyMachine(seed, 0.3, 8)
        ratios = [machine.seconds(lambda: 1.0) / machine.seconds(lambda: 1.0) for _ in range(15)]
        wrong += abs(statistics.median(ratios) - 1) > 0.02
    assert wrong > 5


@given(seed=st.integers(0, 2**32), goal=st.floats(0.1, 10), true=st.floats(0.5, 2))
def test_extreme_noise_gives_no_verdict(seed, goal, true):
    """Nine turns in ten are slowed, up to eight times: whatever is asked is neither met nor missed."""
    times = all_turns({"a": lambda: true, "b": lambda: 1.0}, 15, NoisyMachine(seed, 0.9, 8))
    row = {name: str(value) for name, value in compared("ratio", times, "a", "b").items()} | {"goal": str(goal)}
    verdict = Goal("ratio", "goal", "step", timed="ratio").verdict(row)
    assert "too noisy" in verdict
    assert "met" not in verdict
    assert "missed" not in verdict


def around(width: float) -> Times:
    """Fifteen turns of about a second; the 90 % interval, from the least to the seventh, has this width."""
    return Times((*(1 - width / 2 for _ in range(2)), *(1.0 for _ in range(4)), *(1 + width / 2 for _ in range(9))))


@given(st.floats(0, 0.2), st.floats(0, 0.2))
def test_the_interval_of_a_ratio(first, second):
    """As wide as that of either time, at least, and not wider than both; settled where both times are."""
    times = {"a": around(first), "b": around(second)}
    widths = [each.uncertainty for each in times.values()]
    assert widths == pytest.approx([first, second])
    found = compared("x", times, "a", "b")
    assert max(widths) / 2 - 1e-4 <= found["x_uncertainty"] <= sum(widths) / 2 + 1e-4
    assert found["x_settled"] == (unsettled(times) is None) == (max(widths) <= SETTLED)
    itself = compared("x", times, "a", "a")
    assert (itself["x_uncertainty"], itself["x_settled"]) == (0, widths[0] <= SETTLED)
    assert reliability("step_ms", times["a"])["step_ms_uncertainty"] == pytest.approx(first / 2, abs=1e-4)


def test_nine_in_ten_intervals_have_the_true_ratio_within():
    """On a machine whose turns take a normal time or longer; intervals half as wide would not do."""
    inside, halves = 0, 0
    for seed in range(400):
        noise = random.Random(seed)
        times = {key: Times(tuple(second * noise.lognormvariate(0, 0.05) for _ in range(15))) for key, second in
                 (("a", 1.3), ("b", 1.0))}  # fmt: skip
        found = compared("x", times, "a", "b")
        wrong = abs(found["x"] - 1.3) / found["x"]
        inside += wrong <= found["x_uncertainty"]
        halves += wrong <= found["x_uncertainty"] / 2
    assert inside >= 360 > halves


@given(st.floats(0, 0.05), st.floats(0, 0.05), st.floats(0.8, 1.25))
def test_a_goal_within_the_interval_is_neither_met_nor_missed(first, second, goal):
    """Beyond it it is, settled or not."""
    times = {"a": around(first), "b": around(second)}
    row = {name: str(value) for name, value in compared("ratio", times, "a", "b").items()} | {"goal": str(goal)}
    verdict = Goal("ratio", "goal", "step", timed="ratio").verdict(row)
    far = abs(1 - goal) >= float(row["ratio_uncertainty"])
    assert verdict.split(" (")[0] == f"step {('met' if goal >= 1 else 'missed') if far else 'not settled'}"


def test_a_quiet_machine_takes_the_rounds_asked_for():
    parts = {"a": lambda: 2.0, "b": lambda: 1.0}
    *numbers, times = in_turns(parts, 15, NoisyMachine(0, 0, 1))
    assert numbers == list(range(1, 16))
    assert unsettled(times) is None


def test_rounds_go_on_until_the_times_settle():
    """The first nine rounds are all over the place, what follows is not."""
    clock = Clock()
    parts = {"a": clock.takes(4.0, 1.5, 3.0, 2.0, 5.0, 1.7, 2.5, 3.5, 4.5, 1.0), "b": clock.takes(1.0)}
    *numbers, times = in_turns(parts, 15, ClockStopwatch(CPU, clock), warm_up=0)
    assert 15 < len(numbers) < 30
    assert unsettled(times) is None
    assert ratio(times, "a", "b") == 1
    before = {name: replace(each, seconds=each.seconds[:-1]) for name, each in times.items()}
    assert unsettled(before) is not None, "it ended as soon as they had"


@given(seed=st.integers(0, 2**32), rounds=st.integers(3, 20))
def test_patience_has_an_end(seed, rounds):
    """Times that never settle are taken in as many rounds again as were asked for, however long these take."""
    times = all_turns({"a": lambda: 1.0, "b": lambda: 2.0}, rounds, NoisyMachine(seed, 1.0, 1000))
    count = len(times["a"].seconds)
    assert rounds <= count <= 2 * rounds
    if unsettled(times) is not None:
        assert count == 2 * rounds
        assert f"after {count} rounds" in unsettled(times)


@pytest.mark.parametrize(("turns", "count"), [(0, 1), (3, 1), (4, 2), (5, 2), (28, 14), (29, 14), (30, 15), (99, 15)])
def test_no_turn_begins_when_time_is_up(turns, count):
    """Of the first round all do, without which there would be no times; a later one that is not whole is dropped. Cut
    short of what was asked for, nothing is settled, however equal the times are."""
    left = iter([True] * turns)
    parts = {"a": lambda: 1.0, "b": lambda: 1.0}
    *numbers, times = in_turns(parts, 15, NoisyMachine(0, 0, 1), warm_up=0, go_on=partial(next, left, False))
    assert numbers == [*range(1, count + 1)]
    assert {len(each.seconds) for each in times.values()} == {count}
    known = reliability("a", times["a"])
    assert known["a_settled"] == (unsettled(times) is None) == (count == 15)
    if count < 15:
        said = f"cut short and not settled after {count} round{'s' if count > 1 else ''}"
        assert unsettled(times).startswith(said)
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
    measured = in_turns(dict.fromkeys("ab", part), 15, NoisyMachine(0, 0, 1), warm_up=2, go_on=go_on)
    if turn < 6:
        with pytest.raises(KeyboardInterrupt):
            list(measured)
        return
    *numbers, times = measured
    assert numbers == [*range(1, (turn - 4) // 2 + 1)]
    assert {(len(each.seconds), each.settled) for each in times.values()} == {(len(numbers), False)}


def test_a_deadline_passes_and_can_be_interrupted():
    clock, stop = Clock(), StopSignal()
    deadline = Deadline(10, stop, clock)
    clock.now += 9
    assert (deadline.left(), deadline()) == (1, True)
    clock.now += 1
    assert not deadline()
    stop.number = signal.SIGTERM
    with pytest.raises(KeyboardInterrupt):
        deadline()


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


@pytest.mark.parametrize(("seconds", "told"), [(19, "about 10 s, 0 s left"), (39, "about 30 s, 9 s left")])
def test_a_stage_that_was_cut_short_teaches_nothing(seconds, told):
    """A stage of three parts of 10 s each is said to take 10 s; ended after two it does not show how long it takes."""
    clock = Clock()

    def parts(go_on):
        for _ in range(3):
            if go_on():
                clock.now += 10
        yield ["rows"]

    stages = [Stage("step", "kernels at 60m", 10, parts), Stage("step", "kernels at 1b", 10, parts)]
    *_, (_, last) = run_stages(stages, Deadline(seconds, clock=clock))
    assert last == f"left out for want of time: kernels at 1b ({told})"


def test_how_far_the_minutes_reach():
    """Those that end within them, one after another."""
    stages = [Stage("step", f"step at {size}", 60, iter) for size in ("60m", "130m", "1b")]
    assert (
        reach(stages, 120)
        == "2 minutes are likely to reach 2 of 3 parts, the last of them: step at 130m; all take about 3"
    )
    assert reach(stages, 59) == "0.983333 minutes are likely to reach 0 of 3 parts; all take about 3"


def test_an_interval_that_lies_to_one_side_reaches_the_goal_there():
    """Ten of 15 turns were disturbed: the true percentile may be that of the disturbed ones."""
    times = {"a": Times((*(1.0 for _ in range(5)), *(1.029 for _ in range(10)))), "b": Times((1.0,) * 15)}
    row = {name: str(value) for name, value in compared("ratio", times, "a", "b").items()} | {"goal": "1.02"}
    assert row["ratio_uncertainty"] == "0.029"
    assert Goal("ratio", "goal", "step", timed="ratio").verdict(row).startswith("step not settled")
