"""How long a command will still take, from the steps that it has seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import tiny_spec

from comt_cli.campaign.time_left import TimeLeft
from comt_cli.tasks.base import Unit
from comt_cli.training.events import Evaluating, RunStarted, StepReport
from comt_cli.words import duration


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def specs(corpus: str, number: int, **more):
    return [tiny_spec(corpus, seed=seed, **{"steps": 100} | more) for seed in range(1, number + 1)]


def train(left: TimeLeft, clock: Clock, steps: int, pace: float, first: int = 0) -> None:
    """Steps of worker 0, each reported."""
    left.receive(0, RunStarted(first))
    for step in range(first + 1, first + steps + 1):
        clock.now += pace
        left.receive(0, StepReport(step, 1.0, 1.0, None, None, Unit("tokens", "tok")))


def test_nothing_is_said_before_steps_were_seen(tiny_corpus, clock):
    every = specs(tiny_corpus, 2)
    left = TimeLeft(every, clock=clock)
    left.take(0, every[0])
    assert left.of_run(0) is left.of_all(2) is None


@pytest.mark.parametrize("first", [0, 60])
def test_a_runs_own_pace(tiny_corpus, clock, first):
    """Whether it is resumed or not; the first step, in which kernels may have been compiled, does not count."""
    (spec,) = specs(tiny_corpus, 1)
    left = TimeLeft([spec], clock=clock)
    left.take(0, spec)
    clock.now += 500
    train(left, clock, 20, 0.5, first)
    assert left.of_run(0) == pytest.approx((80 - first) * 0.5)
    clock.now += 3  # seconds go by between two reports
    assert left.of_all(1) == left.of_run(0) == pytest.approx((80 - first) * 0.5 - 3)


@pytest.mark.parametrize(("workers", "expected"), [(1, 90 + 300), (2, 200), (3, 190), (4, 100)])
def test_runs_that_wait_are_dealt_to_the_workers(tiny_corpus, clock, workers, expected):
    """One run has 90 s to go; three of 100 s wait."""
    every = specs(tiny_corpus, 4)
    left = TimeLeft(every, clock=clock)
    left.take(0, every[0])
    train(left, clock, 10, 1.0)
    assert left.of_all(workers) == pytest.approx(expected)


def test_the_most_similar_run_tells_the_pace(tiny_corpus, clock):
    """The same method; else all methods on average; a larger model by its work; what is seen here before all."""
    plain, gated = (specs(tiny_corpus, 2, method=method) for method in ("pre-ln", "comt"))
    finished = [(plain[0], 10.0), (gated[0], 30.0)]
    assert TimeLeft([plain[1], gated[1]], finished, clock).of_all(1) == pytest.approx(40)
    assert TimeLeft(specs(tiny_corpus, 1, method="mix-ln"), finished, clock).of_all(1) == pytest.approx(20)
    large = tiny_spec(tiny_corpus, steps=100, model={"width": 64}, method="pre-ln")
    assert TimeLeft([large], finished[:1], clock).of_all(1) == pytest.approx(40)
    left = TimeLeft([plain[0], plain[1]], finished, clock)
    left.take(0, plain[0])
    train(left, clock, 10, 2.0)  # twenty times as slow as it was then
    assert left.of_all(1) == pytest.approx(90 * 2 + 200)


def test_the_evaluation_at_the_end_counts_too(tiny_corpus, clock):
    """The next run will have one as well."""
    first, second = specs(tiny_corpus, 2, steps=10)
    left = TimeLeft([first, second], clock=clock)
    left.take(0, first)
    train(left, clock, 10, 1.0)
    clock.now += 6
    left.receive(0, Evaluating(5, 10))
    assert left.of_run(0) == pytest.approx(6)
    clock.now += 6
    left.end(0, completed=True)
    assert left.of_all(1) == pytest.approx(10 + 12)


def test_a_run_that_is_given_back_waits_again_and_one_that_failed_does_not(tiny_corpus, clock):
    done, first = specs(tiny_corpus, 2)
    left = TimeLeft([first], [(done, 10.0)], clock)
    left.take(0, first)
    left.give_back(0)
    assert left.of_all(1) == pytest.approx(10)
    left.take(0, first)
    left.end(0, completed=False)
    assert left.of_all(1) == 0.0


@given(paces=st.lists(st.floats(0.01, 100), min_size=1, max_size=6), workers=st.integers(1, 8))
def test_no_plan_is_shorter_than_its_longest_run_nor_longer_than_all_in_a_row(tiny_corpus, paces, workers):
    every = [tiny_spec(tiny_corpus, seed=seed, steps=10 + seed) for seed in range(1, len(paces) + 1)]
    alone = [pace * spec.settings.train.steps for spec, pace in zip(every, paces, strict=True)]
    found = TimeLeft(every, zip(every, alone, strict=True)).of_all(workers)
    assert found is not None
    assert max(alone) * 0.999 <= found <= sum(alone) * 1.001
    assert found * workers >= sum(alone) * 0.999


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "1 s"), (89, "89 s"), (95, "2 min"), (7199, "2 h"), (12000, "3 h 20 min"), (190000, "2 days 5 h")],
)
def test_a_time_in_words(seconds, words):
    assert duration(seconds) == words
