"""Gates and connections made from plain numbers: where they start, and gates that start at exactly 1."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from naive import normal
from same_bits import Reason, assert_same_bits, differ, same_integers
from torch import nn

from comt_cli import layers
from comt_cli.kernels.gates import gated_sites
from comt_cli.layers.gates import Site, read_by
from comt_cli.layers.initialise import initialise
from comt_cli.layers.projection import Projections
from comt_cli.methods import method_from
from comt_cli.methods.base import residual_connection, residual_connections

ONES = {
    "comt": partial(layers.ComtGate, 6, hidden=3, scale=2),
    "transponder": partial(layers.TransponderGate, 6, 4, rank=3),
    "channel": partial(layers.TransponderGate, 6, 4, rank=3, granularity="channel"),
    "scalar": partial(layers.TransponderGate, 6, 4, rank=3, granularity="scalar", learnable_sigmoid=False),
    "two bottlenecks": partial(layers.TransponderGate, 6, 4, rank=3, separate_summaries=True),
    "static": partial(layers.StaticGate, 4),
    "full rank": partial(layers.FullRankGate, 6, 4, scale=2),
    "head": partial(layers.HeadGate, 6, heads=2, scale=2),
    "unit": partial(layers.EvaluatorAdjuster, 4),
}
NEVER = {
    "comt": partial(layers.ComtGate, 6),
    "full rank": partial(layers.FullRankGate, 6, 4),
    "head": partial(layers.HeadGate, 6, heads=2),
    "window": partial(layers.WindowGate, 6),
    "pixel": partial(layers.PixelGate, 6),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("make", ONES.values(), ids=list(ONES))
def test_a_gate_that_starts_at_one_changes_no_bit_and_learns(make, dtype):
    gate = make().to(dtype)
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.add_(0.3)
    x_TD, z_TN = (normal(5, width, seed=width).to(dtype) for width in (6, 4))
    assert differ(gate.scaled(z_TN, read_by(gate, x_TD)), z_TN)
    assert gate.start_at_one()
    zhat_TN = gate.scaled(z_TN, read_by(gate, x_TD))
    assert_same_bits(zhat_TN, z_TN, Reason.IDENTITY, "the output")
    if not isinstance(gate, layers.EvaluatorAdjuster):
        assert (gate(x_TD) == 1).all()
    (zhat_TN * normal(5, 4, seed=1).to(dtype)).sum().backward()
    assert any(parameter.grad.any() for parameter in gate.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("make", NEVER.values(), ids=list(NEVER))
def test_a_gate_whose_factors_stay_below_one_says_so_and_is_left_alone(make):
    gate = make()
    before = {name: value.clone() for name, value in gate.state_dict().items()}
    assert not gate.start_at_one()
    assert_same_bits(gate.state_dict(), before, Reason.MOVED, "the parameters")


@pytest.mark.parametrize("make", [*ONES.values(), *NEVER.values()])
def test_a_gate_starts_from_the_global_stream_where_it_is_made_and_not_on_meta(make):
    torch.manual_seed(3)
    first, second = make(), make()
    assert all(value.isfinite().all() for value in first.state_dict().values())
    torch.manual_seed(3)
    again, state = make(), torch.random.get_rng_state()
    assert_same_bits(again.state_dict(), first.state_dict(), Reason.SAME_CALL, "the parameters")
    drawn = [name for name, value in first.state_dict().items() if differ(value, second.state_dict()[name])]
    assert isinstance(first, layers.StaticGate) or drawn
    with torch.device("meta"):
        empty = make()
    assert same_integers(torch.random.get_rng_state(), state)
    empty.to_empty(device="cpu")
    for gate in (empty, first):
        initialise(gate, 7)
    assert_same_bits(empty.state_dict(), first.state_dict(), Reason.SAME_CALL, "what a seed gives")


def test_twice_the_sigmoid_is_that_of_the_methods_and_of_the_fused_operations():
    x_TD = normal(5, 6).float()
    sites = [Site(name, "decoder", 0, 1, 6, 4) for name in ("q_proj", "k_proj")]
    for scale in (1, 2):
        gates = method_from({"name": "comt", "sites": ["q_proj", "k_proj"], "scale": scale}).wiring().gates
        torch.manual_seed(0)
        module = Projections(sites, gates, lambda _: 0.02)
        assert module.gate("q_proj").factor_range == (0, scale)
        gamma_T1 = scale * torch.sigmoid(torch.sigmoid(x_TD @ module.gate("q_proj").A.T) @ module.gate("q_proj").B.T)
        torch.testing.assert_close(module.gate("q_proj")(x_TD), gamma_T1)
        plain = torch.cat(module(x_TD), -1)
        torch.testing.assert_close(plain[:, :4], gamma_T1 * (x_TD @ module.weight[:4].T))
        fused = torch.cat(gated_sites(module.product(x_TD), module.modulation(), module.widths), -1)
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-7)
        for granularity in ("elementwise", "headwise"):
            options = {"name": "sdpa-gate", "granularity": granularity, "scale": scale}
            gate = method_from(options).wiring().gates["sdpa"](Site("sdpa", "decoder", 0, 1, 6, 8, heads=2))
            torch.testing.assert_close(gate(x_TD), scale * torch.sigmoid(x_TD @ gate.W.T))
            assert gate.factor_range == (0, scale)
    assert "scale" not in method_from({"name": "comt"}).stored()
    assert method_from({"name": "sdpa-gate", "scale": 2}).stored()["scale"] == 2


@pytest.mark.parametrize("name", [name for name, each in residual_connections().items() if "values" not in each.needs])
def test_connections_alone(name):
    """Each is public, starts as it is made, and joins any branch, with the width and a norm alone; but for those whose
    branches take queries, keys and values."""
    kind, branch, state = residual_connection(name), nn.Linear(8, 8), layers.State(normal(2, 5, 8).float())
    assert getattr(layers, kind.__name__) is kind
    norm = partial(nn.LayerNorm, 8)
    made = [kind(layers.ResidualSite(8, index=index, count=2, norm=norm)) for index in range(2)]
    for connection in made:
        assert all(value.isfinite().all() for value in connection.state_dict().values())
        state = connection.step(state, branch)
    assert state.stream.shape == (2, 5, 8)
    assert state.stream.isfinite().all()


def test_wrong_words_are_refused():
    with pytest.raises(ValueError, match="init: 'kaiming' is not one of kaiming-uniform, torch-linear, normal"):
        layers.ComtGate(6, init="kaiming")
    with pytest.raises(ValueError, match="granularity: 'both'"):
        layers.TransponderGate(6, 4, granularity="both")
