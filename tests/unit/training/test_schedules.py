"""Learning rates of every schedule at every step, against the formulas written out; and groups of parameters that are
learnt with a rate and a weight decay of their own."""

from __future__ import annotations

import copy
import math

import pytest
from method_cases import TOKENS, built, wiring_of
from same_bits import Reason, assert_same_bits

from comt_cli.tasks.settings.images import ImageTrainSettings
from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.training.checkpoint import full_optimizer_state, load_optimizer_state
from comt_cli.training.update import learning_rate, optimizer_of, set_learning_rate

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


# ---- groups of parameters

SETTINGS = TrainSettings(steps=3, learning_rate=0.5, weight_decay=0.1, optimizer="adamw")
RULED = {
    "start-lambdas": {"m": (100.0, 0.0)},
    "denseformer": {"DWA": (1.0, 0.0)},
    "hyper-connections": dict.fromkeys(("A_m", "B", "A_r"), (1.0, 0.0)),
    "mhc": dict.fromkeys(("alpha", "b"), (1.0, 0.0)),
    "attention-residuals": dict.fromkeys(("query", "gain_offset"), (1.0, 0.0)),
    "delta-attention-residuals": dict.fromkeys(("query", "gain_offset"), (1.0, 0.0)),
    "muddformer": {"a": (1.0, 0.0)},
    "deep-cross-attention": {"offset": (1.0, 0.0)},
    **{name: {"offset": (1.0, 0.0)} for name in ("backout", "skip-gates")},
    "smear": {"share": (1.0, 0.0)},
    "lime": {"router": (10.0, 0.1)},
}


@pytest.mark.parametrize("method", RULED)
def test_update_rules_of_connections(method):
    """Rate and weight decay of these parameters, as their papers and codes have them; of all others the run's."""
    model, found = built(wiring_of({"name": method})), {}
    names = {parameter: name.removesuffix(".value").rpartition(".")[2] for name, parameter in model.named_parameters()}
    for group in optimizer_of(model, SETTINGS).param_groups:
        for parameter in group["params"]:
            found.setdefault(names[parameter], set()).add((group["rate"], group["weight_decay"]))
    assert found == {name: {RULED[method].get(name, (1.0, 0.1))} for name in names.values()}
    assert RULED[method].keys() <= found.keys()


def test_what_was_added_has_its_own_rate_and_decay():
    """Which a rule of its module multiplies, or takes the decay from; what is frozen is in no group."""
    model = built(wiring_of({"name": "start-lambdas"}))
    names = {parameter: name for name, parameter in model.named_parameters()}
    added = {parameter for parameter, name in names.items() if "_connection" in name}
    next(parameter for parameter, name in names.items() if name.startswith("embedding")).requires_grad_(False)
    of_their_own = SETTINGS.model_copy(update={"added_learning_rate": 0.25, "added_weight_decay": 0.3})
    found = {}
    for group in optimizer_of(model, of_their_own, added).param_groups:
        found |= {names[parameter]: (group["rate"], group["weight_decay"]) for parameter in group["params"]}
    assert found.keys() == {name for name in names.values() if not name.startswith("embedding")}
    of_connections = {
        name.removesuffix(".value").rpartition(".")[2]: found.pop(name) for name in [*found] if "_connection" in name
    }
    assert of_connections == {"m": (50.0, 0.0), "r": (0.5, 0.3), "weight": (0.5, 0.3)}
    assert {*found.values()} == {(1.0, 0.1)}


def test_states_of_groups_are_saved_by_parameter():
    def made():
        model = built(wiring_of({"name": "lime"}))
        return model, optimizer_of(model, SETTINGS)

    def step(model, optimizer):
        model(TOKENS).square().mean().backward()
        set_learning_rate(optimizer, 0.01)
        optimizer.step()
        optimizer.zero_grad()

    (model, one), (again, other) = made(), made()
    step(model, one)
    again.load_state_dict(model.state_dict())
    load_optimizer_state(again, other, copy.deepcopy(full_optimizer_state(model, one, keep=True)))
    assert {(group["lr"], group["rate"]) for group in one.param_groups} == {(0.1, 10.0), (0.01, 1.0)}
    for _ in range(2):
        step(model, one)
        step(again, other)
    assert_same_bits([*again.parameters()], [*model.parameters()], Reason.SAME_RUN)
