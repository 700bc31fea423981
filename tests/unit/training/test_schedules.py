"""Learning rates at named steps, against the formulas written out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.tasks.settings.images import ImageTrainSettings
from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.training.optimisation import learning_rate

PEAK, WARMUP, STEPS, FLOOR = 2e-3, 10, 110, 0.1


def rate(step: int, schedule: str, **options) -> float:
    floor = FLOOR if schedule in ("cosine", "linear") else None
    settings = {"learning_rate": PEAK, "warmup_steps": WARMUP, "steps": STEPS, "min_lr_ratio": floor} | options
    return learning_rate(TrainSettings(schedule=schedule, **settings), step)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "noam"])
def test_warm_up_starts_at_zero(schedule):
    assert rate(0, schedule) == 0
    assert rate(1, schedule) == PEAK / 10
    assert rate(5, schedule) == PEAK / 2
    assert rate(WARMUP, schedule) == PEAK


def test_cosine():
    # 50 of 100 steps after warm-up: cos(pi / 2) = 0, half way between peak and floor.
    assert rate(60, "cosine") == pytest.approx(PEAK * (0.1 + 0.9 * 0.5), rel=1e-12)
    assert rate(35, "cosine") == pytest.approx(PEAK * (0.1 + 0.9 * 0.5 * (1 + math.sqrt(0.5))), rel=1e-12)
    assert rate(STEPS, "cosine") == pytest.approx(PEAK * 0.1, rel=1e-12)
    last = PEAK * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 0.99)))
    assert rate(STEPS - 1, "cosine") == pytest.approx(last, rel=1e-12)


def test_linear():
    assert rate(35, "linear") == pytest.approx(PEAK * (0.1 + 0.9 * 0.75), rel=1e-12)
    assert rate(STEPS, "linear", min_lr_ratio=0) == 0
    assert rate(0, "linear", warmup_steps=0) == PEAK


def test_noam():
    """The form of Vaswani et al. 2017, Eq. 3, at any width: scaled so that its peak is the learning rate."""
    width = 64
    highest = width**-0.5 * WARMUP**-0.5
    for step in (1, 4, 9, 10, 11, 40, 60, 109):
        published = width**-0.5 * min(step**-0.5, step * WARMUP**-1.5)
        assert rate(step, "noam") == pytest.approx(PEAK * published / highest, rel=1e-12)
    assert rate(40, "noam") == pytest.approx(PEAK / 2, rel=1e-12)  # at four times the warm-up
    assert rate(40, "noam", steps=STEPS * 10) == rate(40, "noam")
    assert max(range(STEPS), key=lambda step: rate(step, "noam")) == WARMUP


@given(st.integers(0, 109), st.sampled_from(["cosine", "linear", "constant", "noam"]))
def test_it_never_rises_after_warm_up_nor_leaves_its_bounds(step, schedule):
    here, after = rate(step, schedule), rate(step + 1, schedule)
    assert (after > here) == (step < WARMUP)
    if step >= WARMUP:
        assert PEAK * FLOOR * (1 - 1e-12) <= here <= PEAK


def image_rate(step: int, schedule: str, **options) -> float:
    settings = {"learning_rate": 0.1, "warmup_steps": 10, "steps": 110} | options
    return learning_rate(ImageTrainSettings(schedule=schedule, **settings), step)


def test_a_tenth_after_each_milestone():
    """SAS trains ResNet-110 so: the update after the milestone's is the first with the lower rate."""
    rates = [image_rate(step, "step", milestones=(50, 80), warmup_steps=0) for step in (0, 49, 50, 79, 80, 109)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001], rel=1e-12)


def test_a_warm_up_that_is_held():
    """He et al. 2016a: 0.01 for the first updates, then 0.1."""
    held = {"warmup_learning_rate": 0.01}
    for schedule, more in (("step", {"milestones": (50,)}), ("constant", {}), ("linear", {}), ("cosine", {})):
        assert [image_rate(step, schedule, **held, **more) for step in (0, 9)] == [0.01, 0.01]
        assert image_rate(10, schedule, **held, **more) == pytest.approx(0.1)
        assert [image_rate(step, schedule, **more) for step in (0, 5)] == [0, 0.05]
