"""How long runs will still take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import image_spec, tiny_spec

from comt_cli.campaign.time_left import TimeLeft
from comt_cli.words import duration


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def specs(corpus: str, count: int, steps: int = 100, **more):
    return [tiny_spec(corpus, seed=seed, steps=steps, **more) for seed in range(1, count + 1)]


def train_steps(left: TimeLeft, clock: Clock, worker: int, steps: int, pace: float) -> None:
    """Steps 1 to `steps` of a worker's run, `pace` seconds each."""
    for step in range(1, steps + 1):
        clock.now += pace
        left.stepped(worker, step)


def test_nothing_is_known_before_the_first_steps(tiny_corpus, clock):
    (first, second) = specs(tiny_corpus, 2)
    left = TimeLeft([first, second], clock)
    assert left.of_all(2) is None
    left.taken(0, first)
    left.started(0, first, 0)
    assert left.of_run(0) is None
    assert left.of_all(2) is None


def test_a_runs_own_pace(tiny_corpus, clock):
    """The first step, in which kernels may have been compiled, does not count."""
    (spec,) = specs(tiny_corpus, 1)
    left = TimeLeft([spec], clock)
    left.taken(0, spec)
    clock.now += 500
    train_steps(left, clock, 0, 20, 0.5)
    assert left.of_run(0) == pytest.approx(80 * 0.5)
    clock.now += 3  # seconds go by between two reports
    assert left.of_run(0) == pytest.approx(80 * 0.5 - 3)
    assert left.of_all(1) == left.of_run(0)


def test_an_evaluation_does_not_move_what_is_said_after_it(tiny_corpus, clock):
    """Ten seconds after every twenty steps: from the second on no step says another time than the last one."""
    (spec,) = specs(tiny_corpus, 1, evaluate_every=20)
    left = TimeLeft([spec], clock)
    left.taken(0, spec)
    told = []
    for step in range(1, 101):
        clock.now += 0.5
        left.stepped(0, step)
        if step > 20:
            told.append(left.of_run(0))
        if step % 20 == 0 and step < 100:
            for done in range(5):
                left.evaluated(0, done, 4)
                clock.now += 2.5 if done < 4 else 0
            assert left.of_run(0) == pytest.approx((100 - step) * (1.0 if step > 20 else 0.5), abs=0.6)
    assert told == pytest.approx([float(steps) for steps in range(79, -1, -1)])


def test_a_resumed_run_is_not_thought_quicker_than_it_is(tiny_corpus, clock):
    (spec,) = specs(tiny_corpus, 1)
    left = TimeLeft([spec], clock)
    left.started(0, spec, 60)
    for step in range(61, 71):
        clock.now += 1
        left.stepped(0, step)
    assert left.of_run(0) == pytest.approx(30)


@pytest.mark.parametrize(("workers", "expected"), [(1, 90 + 300), (2, 90 + 100), (3, 100), (4, 100)])
def test_runs_that_wait_are_dealt_to_the_workers(tiny_corpus, clock, workers, expected):
    """One run has 90 s to go; three of 100 s wait. Of two workers one takes two of them, the other goes on and then
    takes the third."""
    every = specs(tiny_corpus, 4)
    left = TimeLeft(every, clock)
    left.taken(0, every[0])
    train_steps(left, clock, 0, 10, 1.0)
    assert left.of_all(workers) == pytest.approx({2: 200}.get(workers, {3: 190}.get(workers, expected)))


def test_runs_that_were_finished_before_tell_until_there_is_something_better(tiny_corpus, clock):
    done, first, second = specs(tiny_corpus, 3)
    left = TimeLeft([first, second], clock)
    left.finished_before(done, 50.0)
    assert left.of_all(1) == pytest.approx(100)
    assert left.of_all(2) == pytest.approx(50)
    left.taken(0, first)
    train_steps(left, clock, 0, 10, 2.0)  # four times as slow as it was then
    assert left.of_all(1) == pytest.approx(90 * 2 + 200)


def test_the_same_method_is_the_best_witness(tiny_corpus, clock):
    plain, gated = (specs(tiny_corpus, 2, method=method) for method in ("pre-ln", "comt"))
    left = TimeLeft([plain[1], gated[1]], clock)
    left.finished_before(plain[0], 10.0)
    left.finished_before(gated[0], 30.0)
    assert left.of_all(1) == pytest.approx(40)
    other = TimeLeft(specs(tiny_corpus, 1, method="mix-ln"), clock)
    other.finished_before(plain[0], 10.0)
    other.finished_before(gated[0], 30.0)
    assert other.of_all(1) == pytest.approx(20), "a method that was never seen: as the others on average"


def test_a_larger_model_takes_longer(tiny_corpus, clock):
    (small,) = specs(tiny_corpus, 1)
    large = tiny_spec(tiny_corpus, steps=100, model={"width": 64})
    left = TimeLeft([large], clock)
    left.finished_before(small, 10.0)
    assert left.of_all(1) == pytest.approx(40)


def test_the_end_of_a_run_counts_too(tiny_corpus, clock):
    """A run ends some seconds after its last step: it evaluates. The next one will, too."""
    first, second = specs(tiny_corpus, 2, steps=10)
    left = TimeLeft([first, second], clock)
    left.taken(0, first)
    train_steps(left, clock, 0, 10, 1.0)
    clock.now += 6
    left.evaluated(0, 3, 10)
    assert left.of_run(0) == 0.0
    clock.now += 3
    left.evaluated(0, 5, 10)
    assert left.of_run(0) == pytest.approx(3)
    clock.now += 3
    left.ended(0, completed=True)
    assert left.of_all(1) == pytest.approx(10 + 12)


def test_a_run_that_is_given_back_waits_again(tiny_corpus, clock):
    done, first = specs(tiny_corpus, 2)
    left = TimeLeft([first], clock)
    left.finished_before(done, 10.0)
    left.taken(0, first)
    left.ended(0, completed=False)
    assert left.of_all(1) == 0.0
    left = TimeLeft([first], clock)
    left.finished_before(done, 10.0)
    left.taken(0, first)
    left.given_back(0, first)
    assert left.of_all(1) == pytest.approx(10)


def test_images_are_timed_as_well(clock):
    first, second = (image_spec(seed=seed, steps=10) for seed in (1, 2))
    left = TimeLeft([second], clock)
    left.finished_before(first, 20.0)
    assert left.of_all(1) == pytest.approx(20)


@given(
    paces=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    workers=st.integers(1, 8),
)
def test_no_plan_is_shorter_than_its_longest_run_nor_longer_than_all_in_a_row(tiny_corpus, paces, workers):
    every = [tiny_spec(tiny_corpus, seed=seed, steps=10 + seed) for seed in range(1, len(paces) + 1)]
    left = TimeLeft(every, Clock())
    for spec, pace in zip(every, paces, strict=True):
        left.finished_before(spec, pace * spec.settings.train.steps)
    alone = [pace * spec.settings.train.steps for spec, pace in zip(every, paces, strict=True)]
    found = left.of_all(workers)
    assert found is not None
    assert max(alone) * 0.999 <= found <= sum(alone) * 1.001
    assert found * workers >= sum(alone) * 0.999


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "1 s"),
        (41.4, "41 s"),
        (89, "89 s"),
        (95, "2 min"),
        (1800, "30 min"),
        (5940, "99 min"),
        (7199, "2 h"),
        (12000, "3 h 20 min"),
        (86400, "24 h"),
        (47.95 * 3600, "2 days"),
        (190000, "2 days 5 h"),
    ],
)
def test_a_time_in_words(seconds, words):
    assert duration(seconds) == words
