"""Groups of parameters that are learnt with a rate and a weight decay of their own."""

from __future__ import annotations

import copy

import pytest
from method_cases import TOKENS, built, wiring_of
from same_bits import Reason, assert_same_bits

from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.training.checkpoint import full_optimizer_state, load_optimizer_state
from comt_cli.training.update import optimizer_of, set_learning_rate

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
