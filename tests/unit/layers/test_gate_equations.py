"""Gates against the equations of the papers, written out a token and a number at a time (`naive`)."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from naive import close, dot, make_plain, naive_gate, normal, shaken, sigmoid

from comt_cli.layers.attention import Attention, rotation_table
from comt_cli.layers.gates import ComtGate, FullRankGate, HeadGate, Site, StaticGate, TransponderGate
from comt_cli.layers.initialise import initialise
from comt_cli.layers.norms import DynamicTanh
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.methods import method_from
from comt_cli.methods.base import Wiring
from comt_cli.models.llama import Llama
from comt_cli.tasks.settings.language import ModelSettings


def transponder(granularity: str, **options):
    return partial(TransponderGate, rank=3, init="normal", granularity=granularity, **options)


GATES = {
    "comt": partial(ComtGate, hidden=3, init="normal"),
    "transponder": transponder("channel-scalar"),
    "channel": transponder("channel"),
    "scalar": transponder("scalar"),
    "two bottlenecks": transponder("channel-scalar", separate_summaries=True),
    "fixed alpha": transponder("channel-scalar", learnable_sigmoid=False),
    "static": StaticGate,
    "static, fixed alpha": partial(StaticGate, learnable_sigmoid=False),
    "full rank": FullRankGate,
}


@pytest.mark.parametrize("make", GATES.values(), ids=list(GATES))
def test_gates(make):
    site = Site("q_proj", "decoder", 0, 1, 6, 4)
    gate = shaken(make(site))
    x_TD, z_TN = normal(5, 6), normal(5, 4, seed=1)
    expected = torch.stack([naive_gate(gate, x_TD[t], 4) for t in range(5)])
    u = None if gate.down_projection() is None else x_TD @ gate.down_projection().T
    close(math.prod(gate.values(u).values(), start=torch.ones(5, 4, dtype=torch.float64)), expected)
    close(gate(z_TN, u), expected * z_TN)


def test_a_gate_a_head_scales_whole_heads():
    gate = shaken(HeadGate(Site("sdpa", "decoder", 0, 1, 6, 8, heads=2)))
    x_TD, z_TN = normal(5, 6), normal(5, 8, seed=1)
    gated = gate(z_TN, x_TD @ gate.down_projection().T)
    for t in range(5):
        for channel in range(8):
            close(gated[t, channel].item(), z_TN[t, channel].item() * sigmoid(dot(gate.W[channel // 4], x_TD[t])))


def test_a_gate_on_what_attention_mixed_reads_attentions_input():
    """Qiu et al. 2025, G1: (SDPA * sigmoid(X W_g)) W_o, against plain attention with no output projection."""
    wiring = Wiring(PreNorm, {"sdpa": FullRankGate})
    model = shaken(Llama(ModelSettings(size="tiny", width=8, ffn_width=10, layers=1, heads=2), 11, wiring))
    gated = model.blocks[0].attention
    plain = shaken(Attention(8, 2, 2, make_plain))
    plain.qkv.weight.copy_(gated.qkv.weight)
    plain.output.weight.copy_(torch.eye(8))
    x = normal(2, 5, 8)
    rotation = rotation_table(5, 4, 10000.0, x)
    gamma = torch.sigmoid(x @ gated.qkv.gate("sdpa").W.T)
    close(gated(x, rotation), (gamma * plain(x, rotation)) @ gated.output.weight.T)


def test_dynamic_tanh():
    norm = shaken(DynamicTanh(6, 0.5))
    x = normal(2, 3, 6)
    rows = [[math.tanh(norm.alpha.item() * v) for v in row] for row in x.flatten(0, 1).tolist()]
    close(norm(x).flatten(0, 1), torch.tensor(rows, dtype=torch.float64) * norm.weight)
    wiring = method_from({"name": "dyt", "alpha_attention": 0.8, "alpha_other": 0.2}).wiring()
    model = Llama(ModelSettings(size="tiny", width=16, ffn_width=10, layers=1, heads=2), 11, wiring)
    initialise(model, 1)
    block = model.blocks[0]
    norms = [block.attention_connection.norm, block.mlp_connection.norm, model.final_norm]
    assert [norm.alpha.item() for norm in norms] == pytest.approx([0.8, 0.2, 0.2])
    assert model.entry.factor == 4


@pytest.mark.parametrize("gated", [(), ("b",), ("c", "a"), ("a", "b", "c")])
def test_one_product_gives_what_single_layers_would(gated):
    """Projections of one input, some gated, against one matrix product and one gate at a time (Transponder, Eq. 8)."""
    sites = [Site(name, "decoder", 0, 1, 6, width) for name, width in (("a", 4), ("b", 2), ("c", 3))]
    gates = {"a": partial(ComtGate, hidden=2, init="normal"), "c": partial(TransponderGate, rank=3, init="normal")}
    gates["b"] = partial(ComtGate, hidden=5, init="normal")
    module = shaken(Projections(sites, {name: gates[name] for name in gated}, lambda _: 0.02))
    x_TD = normal(5, 6)
    outputs = module(x_TD)
    for site, output in zip(sites, outputs, strict=True):
        weight = module.site_weights()[site.name]
        for t in range(5):
            z = torch.tensor([dot(row, x_TD[t]) for row in weight], dtype=torch.float64)
            close(output[t], z * naive_gate(module.gate(site.name), x_TD[t], site.d_out) if site.name in gated else z)
    values = module.gate_values(x_TD)
    assert set(values) == set(gated)
    for site in sites:
        if site.name in gated:
            product = math.prod(values[site.name].values(), start=torch.ones(5, site.d_out, dtype=torch.float64))
            close(product[2], naive_gate(module.gate(site.name), x_TD[2], site.d_out))
