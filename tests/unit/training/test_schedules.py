"""Learning rates of every schedule at every step, against the formulas written out."""

from __future__ import annotations

import math

import pytest

from comt_cli.tasks.settings.images import ImageTrainSettings
from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.training.update import learning_rate

PEAK, WARMUP, STEPS, FLOOR = 2e-3, 10, 110, 0.1


def noam(step: int) -> float:
    """Vaswani et al. 2017, Eq. 3, at any width: scaled so that its peak is the learning rate."""
    published = 64**-0.5 * min(step**-0.5, step * WARMUP**-1.5)
    return PEAK * published / (64**-0.5 * WARMUP**-0.5)


FORMULAS = {
    "cosine": lambda step: PEAK * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * (step - WARMUP) / 100)) / 2),
    "linear": lambda step: PEAK * (FLOOR + (1 - FLOOR) * (STEPS - step) / 100),
    "constant": lambda step: PEAK,
    "noam": noam,
}


@pytest.mark.parametrize("schedule", FORMULAS)
def test_a_linear_warm_up_from_zero_then_the_formula(schedule):
    floor = {"min_lr_ratio": FLOOR} if schedule in ("cosine", "linear") else {}
    settings = TrainSettings(schedule=schedule, learning_rate=PEAK, warmup_steps=WARMUP, steps=STEPS, **floor)
    found = [learning_rate(settings, step) for step in range(STEPS + 1)]
    expected = [PEAK * step / WARMUP if step < WARMUP else FORMULAS[schedule](step) for step in range(STEPS + 1)]
    assert found == pytest.approx(expected, rel=1e-12)
    assert max(found) == found[WARMUP] == PEAK
    at_once = TrainSettings(schedule="linear", learning_rate=PEAK, warmup_steps=0, steps=STEPS, min_lr_ratio=0)
    assert [learning_rate(at_once, step) for step in (0, STEPS)] == [PEAK, 0]


def image_rates(schedule: str, *steps: int, **options) -> list[float]:
    settings = {"learning_rate": 0.1, "warmup_steps": 10, "steps": 110} | options
    return [learning_rate(ImageTrainSettings(schedule=schedule, **settings), step) for step in steps]


def test_milestones_and_a_warm_up_that_is_held():
    """SAS trains ResNet-110 so: that after the milestone's is the first with a tenth of the rate. He et al. 2016a:
    0.01 for the first updates, then 0.1."""
    rates = image_rates("step", 0, 49, 50, 79, 80, 109, milestones=(50, 80), warmup_steps=0)
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001], rel=1e-12)
    for schedule, more in (("step", {"milestones": (50,)}), ("constant", {}), ("linear", {}), ("cosine", {})):
        held = image_rates(schedule, 0, 9, 10, warmup_learning_rate=0.01, **more)
        assert held == pytest.approx([0.01, 0.01, 0.1])
        assert image_rates(schedule, 0, 5, **more) == [0, 0.05]
