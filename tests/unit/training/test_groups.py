"""Groups of parameters that are learnt with a rate and a weight decay of their own."""

from __future__ import annotations

import copy

import pytest
import torch
from method_cases import built, wiring_of
from same_bits import Reason, assert_same_bits, differ
from torch import nn

from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.training.checkpoint import full_optimizer_state, load_optimizer_state
from comt_cli.training.optimisation import Group, optimizer_of, set_learning_rate


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def settings(**changes) -> TrainSettings:
    """With another learning rate than that of a step."""
    return TrainSettings(steps=3, learning_rate=0.5, weight_decay=0.1, optimizer="adamw", **changes)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rate: float = 0.01) -> None:
    model(torch.arange(6.0).view(2, 3)).square().sum().backward()
    set_learning_rate(optimizer, rate)
    optimizer.step()
    optimizer.zero_grad()


def groups(model: nn.Sequential) -> list[Group]:
    """No decay for vectors, a tenth of the rate for the first matrix."""
    return [
        Group([each for each in model.parameters() if each.dim() == 1], weight_decay=0.0),
        Group([model[0].weight], rate=0.1),
    ]


def test_each_group_has_its_own_rate_and_decay():
    model = network()
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    own = optimizer_of(model, settings(), groups(model))
    step(model, own)
    for name, each in model.named_parameters():
        alone = network()
        rate = 0.001 if name == "0.weight" else 0.01
        decay = 0.0 if each.dim() == 1 else 0.1
        plain = torch.optim.AdamW(alone.parameters(), lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
        alone(torch.arange(6.0).view(2, 3)).square().sum().backward()
        plain.step()
        assert torch.allclose(each, dict(alone.named_parameters())[name], rtol=1e-6), name
        assert differ(each, before[name])
    with pytest.raises(ValueError, match="two groups"):
        optimizer_of(model, settings(), [Group([model[0].weight]), Group([model[0].weight])])
    with pytest.raises(ValueError, match="not the model's"):
        optimizer_of(model, settings(), [Group(network().parameters())])


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
    for group in optimizer_of(model, settings()).param_groups:
        for parameter in group["params"]:
            found.setdefault(names[parameter], set()).add((group["rate"], group["weight_decay"]))
    assert found == {name: {RULED[method].get(name, (1.0, 0.1))} for name in names.values()}
    assert RULED[method].keys() <= found.keys()


def test_states_of_groups_are_saved_by_parameter():
    model, again = network(), network()
    one = optimizer_of(model, settings(), groups(model))
    step(model, one)
    again.load_state_dict(model.state_dict())
    other = optimizer_of(again, settings(), groups(again))
    load_optimizer_state(again, other, copy.deepcopy(full_optimizer_state(model, one, keep=True)))
    assert [group["weight_decay"] for group in other.param_groups] == [0.1, 0.0, 0.1]
    for _ in range(2):
        step(model, one)
        step(again, other)
    assert_same_bits([*again.parameters()], [*model.parameters()], Reason.SAME_RUN)
