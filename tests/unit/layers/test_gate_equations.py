"""Gates, attention, positions and the whole model against the equations of the papers (`naive`)."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from naive import (
    close,
    close_with_rope,
    dot,
    make_plain,
    naive_gate,
    normal,
    rms_norm,
    shaken,
    sigmoid,
)  # fmt: skip
from same_bits import Reason, assert_same_bits
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.attention import Attention, FeedForward, WithoutOwnValue
from comt_cli.layers.gates import ComtGate, FullRankGate, HeadGate, Site, StaticGate, TransponderGate, read_by
from comt_cli.layers.initialise import initialise
from comt_cli.layers.norms import DynamicErf, DynamicTanh, GatedNorm
from comt_cli.layers.positions import rotate, rotation_table, sinusoids
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.methods import method_from
from comt_cli.methods.base import Wiring
from comt_cli.models.build import empty_network
from comt_cli.models.flops import flops_per_sample
from comt_cli.models.llama import Llama
from comt_cli.tasks.base import PROJECTIONS
from comt_cli.tasks.settings.language import ModelSettings


def transponder(granularity: str, **options):
    return partial(TransponderGate.at, rank=3, init="normal", granularity=granularity, **options)


SMALL = ModelSettings(size="tiny", width=16, ffn_width=10, layers=1, heads=2)
GATES = {
    "comt": partial(ComtGate.at, hidden=3, init="normal"),
    "transponder": transponder("channel-scalar"),
    "channel": transponder("channel"),
    "scalar": transponder("scalar"),
    "two bottlenecks": transponder("channel-scalar", separate_summaries=True),
    "fixed alpha": transponder("channel-scalar", learnable_sigmoid=False),
    "static": StaticGate.at,
    "static, fixed alpha": partial(StaticGate.at, learnable_sigmoid=False),
    "full rank": FullRankGate.at,
    "two inputs": partial(FullRankGate.at, reads=2),
    "half of the inputs": partial(FullRankGate.at, reads=0.5),
}


@pytest.mark.parametrize("make", GATES.values(), ids=list(GATES))
def test_gates(make):
    site = Site("q_proj", "decoder", 0, 1, 6, 4)
    gate = shaken(make(site))
    x_TD, z_TN = normal(5, 6), normal(5, 4, seed=1)
    expected = torch.stack([naive_gate(gate, x_TD[t], 4) for t in range(5)])
    A = gate.down_projection()
    u = None if A is None else x_TD[:, : A.shape[1]] @ A.T
    close(math.prod(gate.values(u).values(), start=torch.ones(5, 4, dtype=torch.float64)), expected)
    close(gate(x_TD).expand(5, 4), expected)
    close(gate.scaled(z_TN, u), expected * z_TN)


def test_a_gate_a_head_scales_whole_heads():
    gate = shaken(HeadGate(6, heads=2))
    x_TD, z_TN = normal(5, 6), normal(5, 8, seed=1)
    gated = gate.scaled(z_TN, x_TD @ gate.down_projection().T)
    for t in range(5):
        for channel in range(8):
            close(gated[t, channel].item(), z_TN[t, channel].item() * sigmoid(dot(gate.W[channel // 4], x_TD[t])))


@pytest.mark.parametrize(("reads", "read"), [(1, 1), (6, 6), (0.01, 1), (0.25, 2), (0.5, 3), (None, 6)])
def test_channels_that_a_gate_reads(reads, read):
    gate = shaken(HeadGate(6, heads=2, reads=reads))
    assert gate.W.shape == (2, read)
    x_TD, z_TN = normal(5, 6), normal(5, 8, seed=1)
    gamma = torch.sigmoid(x_TD[:, :read] @ gate.W.T)
    close(gate(x_TD), gamma)
    close(gate.scaled(z_TN, read_by(gate, x_TD)), gamma.repeat_interleave(4, -1) * z_TN)
    with pytest.raises(UserError, match="reads: 7 is more than the 6 channels"):
        HeadGate(6, heads=2, reads=7)


def narrow_and_padded() -> tuple[Projections, Projections]:
    """Gates at sites and at a later one that read 1 to 3 channels, and the same gates with zeros for all others."""
    sites = [Site(name, "decoder", 0, 1, 6, width) for name, width in (("a", 4), ("b", 2), ("c", 3))]
    later = [Site("sdpa", "decoder", 0, 1, 6, 4, heads=2)]
    how = {"a": (FullRankGate, 1), "b": (FullRankGate, None), "c": (FullRankGate, 0.5), "sdpa": (HeadGate, 2)}
    pair = []
    for narrow in (True, False):
        gates = {name: partial(kind.at, reads=reads if narrow else None) for name, (kind, reads) in how.items()}
        pair.append(shaken(Projections(sites, gates, lambda _: 0.02, later)))
    narrow, padded = pair
    padded.load_state_dict(
        {
            name: F.pad(value, (0, padded.get_parameter(name).shape[1] - value.shape[1]))
            for name, value in narrow.state_dict().items()
        }
    )
    return narrow.requires_grad_(), padded.requires_grad_()


def test_gates_that_read_few_channels_are_those_with_zeros_for_the_others():
    """In one product with gates that read all, in separate products, and with joined matrices; with gradients."""
    narrow, padded = narrow_and_padded()
    x_TD = normal(5, 6)
    for inputs in ((x_TD,), (x_TD, normal(5, 6, seed=1), normal(5, 6, seed=2))):
        found, expected = (module(*inputs) for module in (narrow, padded))
        assert len(found) == 4
        close(found[3], x_TD[:, :2] @ narrow.gate("sdpa").W.T)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
        for module, outputs in ((narrow, found), (padded, expected)):
            module.zero_grad()
            sum(each.square().sum() for each in outputs).backward()
        for name, parameter in narrow.named_parameters():
            close(parameter.grad, padded.get_parameter(name).grad[:, : parameter.shape[1]])
    with torch.no_grad():
        narrow.freeze()
        for one, other in zip(narrow(x_TD), padded(x_TD), strict=True):
            close(one, other)


def test_a_gate_that_reads_few_channels_costs_less():
    """2 FLOPs per multiply-add of a token, three times: once forward and twice backward."""
    settings, cost = ModelSettings(size="tiny", width=32, ffn_width=10, layers=3, heads=2), {}
    for reads in (None, 1, 12, 0.25):
        wiring = method_from({"name": "sdpa-gate", "reads": reads}).wiring()
        cost[reads] = flops_per_sample(empty_network(settings, wiring, vocabulary=11, length=1))
    product = 3 * 3 * 2 * 32  # of one input channel with all outputs
    assert {reads: cost[None] - flops for reads, flops in cost.items()} == {
        None: 0, 1: 31 * product, 12: 20 * product, 0.25: 24 * product
    }  # fmt: skip


def test_a_gate_on_what_attention_mixed_reads_attentions_input():
    """Qiu et al. 2025, G1: (SDPA * sigmoid(X W_g)) W_o, against plain attention with no output projection."""
    wiring = Wiring(PreNorm, {"sdpa": FullRankGate.at})
    model = shaken(Llama(ModelSettings(size="tiny", width=8, ffn_width=10, layers=1, heads=2), 11, wiring))
    gated = model.blocks[0].attention
    plain = shaken(Attention(8, 2, 2, make_plain))
    plain.qkv.weight.copy_(gated.qkv.weight)
    x = normal(2, 5, 8)
    rotation = rotation_table(5, 4, 10000.0, x)
    gamma = torch.sigmoid(x @ gated.qkv.gate("sdpa").W.T)
    mixed = plain.inner(x, rotation=rotation)
    close(gated.output(gated.inner(x, rotation=rotation))[0], (gamma * mixed) @ gated.output.weight.T)


def test_dynamic_erf():
    """Chen et al. 2025, Eq. 10, one number at a time."""
    norm = shaken(DynamicErf(6, 0.5))
    x = normal(2, 3, 6)
    a, s = norm.alpha.item(), norm.shift.item()
    assert s != 0
    rows = [
        [g * math.erf(a * v + s) + b for v, g, b in zip(row, norm.weight.tolist(), norm.bias.tolist(), strict=True)]
        for row in x.flatten(0, 1).tolist()
    ]
    close(norm(x).flatten(0, 1), torch.tensor(rows, dtype=torch.float64))
    made = Llama(SMALL, 11, method_from({"name": "dyt", "function": "erf", "alpha_attention": 0.8}).wiring())
    initialise(made, 1)
    norms = [made.blocks[0].attention_connection.norm, made.blocks[0].mlp_connection.norm, made.final_norm]
    assert [type(norm) for norm in norms] == [DynamicErf] * 3
    assert [norm.alpha.item() for norm in norms] == pytest.approx([0.8, 0.5, 0.5])


def test_dynamic_tanh():
    norm = shaken(DynamicTanh(6, 0.5))
    x = normal(2, 3, 6)
    rows = [[math.tanh(norm.alpha.item() * v) for v in row] for row in x.flatten(0, 1).tolist()]
    close(norm(x).flatten(0, 1), torch.tensor(rows, dtype=torch.float64) * norm.weight)
    wiring = method_from({"name": "dyt", "alpha_attention": 0.8, "alpha_other": 0.2}).wiring()
    model = Llama(SMALL, 11, wiring)
    initialise(model, 1)
    block = model.blocks[0]
    norms = [block.attention_connection.norm, block.mlp_connection.norm, model.final_norm]
    assert [norm.alpha.item() for norm in norms] == pytest.approx([0.8, 0.2, 0.2])
    assert model.entry.factor == 4


@pytest.mark.parametrize("gated", [(), ("b",), ("c", "a"), ("a", "b", "c")])
def test_one_product_gives_what_single_layers_would(gated):
    """Projections of one input, some gated, against one matrix product and one gate at a time (Transponder, Eq. 8)."""
    sites = [Site(name, "decoder", 0, 1, 6, width) for name, width in (("a", 4), ("b", 2), ("c", 3))]
    gates = {"a": partial(ComtGate.at, hidden=2), "c": partial(TransponderGate.at, rank=3, init="normal")}
    gates["b"] = partial(ComtGate.at, hidden=5, init="normal")
    module = shaken(Projections(sites, {name: gates[name] for name in gated}, lambda _: 0.02))
    x_TD = normal(5, 6)
    outputs = module(x_TD)
    for site, output in zip(sites, outputs, strict=True):
        weight = module.site_weights()[site.name]
        for t in range(5):
            z = torch.tensor([dot(row, x_TD[t]) for row in weight], dtype=torch.float64)
            close(output[t], z * naive_gate(module.gate(site.name), x_TD[t], site.d_out) if site.name in gated else z)
    assert set(module.gates) == set(gated)
    for site in sites:
        if site.name in gated:
            gamma = module.gate(site.name)(x_TD).expand(5, site.d_out)
            close(gamma[2], naive_gate(module.gate(site.name), x_TD[2], site.d_out))


def test_rotary_positions_are_products_of_complex_numbers():
    """Su et al. 2021: (x_i + i x_{i+E/2}) * exp(i t theta^(-2i/E))."""
    x = normal(2, 3, 7, 8)
    angle = torch.outer(torch.arange(7.0, dtype=torch.float64), 10000.0 ** (-torch.arange(0, 8, 2).double() / 8))
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    close_with_rope(rotate(x, rotation_table(7, 8, 10000.0, x)), torch.cat([turned.real, turned.imag], dim=-1))


def test_sinusoidal_positions_are_the_papers():
    """Vaswani et al. 2017, section 3.5: sin(t / 10000^(2i/D)) and its cosine, a half of the channels each."""
    found = sinusoids(9, 6, torch.empty(0, dtype=torch.float64))
    angles = [[t / 10000 ** (2 * i / 6) for i in range(3)] for t in range(9)]
    expected = [[*map(math.sin, row), *map(math.cos, row)] for row in angles]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def naive_projection(module: Projections, name: str, x_D: Tensor) -> Tensor:
    """G(x) * (W x) (CoMT, Eq. 5)."""
    weight = module.site_weights()[name]
    z = torch.stack([(row * x_D).sum() for row in weight])
    return naive_gate(module.gate(name), x_D, len(z)) * z if name in module.gates else z


def naive_rope(x_E: Tensor, t: int, theta: float) -> Tensor:
    half = len(x_E) // 2
    out = x_E.clone()
    for i in range(half):
        angle = t * theta ** (-2 * i / len(x_E))
        out[i] = x_E[i] * math.cos(angle) - x_E[i + half] * math.sin(angle)
        out[i + half] = x_E[i + half] * math.cos(angle) + x_E[i] * math.sin(angle)
    return out


def naive_attention(module: Attention, x_TD: Tensor, theta: float) -> Tensor:
    """CoMT, Eq. 5 and 6, a head and a position at a time."""
    T, E, group = len(x_TD), module.head_width, module.heads // module.kv_heads
    q, k, v = ([naive_projection(module.qkv, f"{n}_proj", x_TD[t]).split(E) for t in range(T)] for n in "qkv")
    if module.norms is not None:
        q, k, v = (
            [[naive_norm(module.norms[n], x_E, 1e-3) for x_E in row] for row in rows]
            for n, rows in zip("qkv", (q, k, v), strict=True)
        )
    rows = []
    for t in range(T):
        heads = []
        for h in range(module.heads):
            query = naive_rope(q[t][h], t, theta)
            scores = [dot(query, naive_rope(k[s][h // group], s, theta)) / math.sqrt(E) for s in range(t + 1)]
            weights = [math.exp(score - max(scores)) for score in scores]
            y, own = sum(w / math.fsum(weights) * v[s][h // group] for s, w in enumerate(weights)), v[t][h // group]
            heads.append(y - dot(y, own) / dot(own, own) * own if module.exclude else y)
        rows.append(naive_projection(module.output, "o_proj", torch.cat(heads)))
    return torch.stack(rows)


def test_outputs_of_attention_have_nothing_along_the_own_value():
    """To fp32 in bf16 too, and nothing at all where a token can only attend to itself; 0 / 0 is 0."""
    y, v = normal(2, 6, 5, 8), normal(2, 3, 5, 8, seed=1)
    exclude = WithoutOwnValue()
    z, own = exclude(y, v), v.repeat_interleave(2, 1)
    close((z * own).sum(-1), torch.zeros(2, 6, 5, dtype=torch.float64))
    close(z, y - (y * own).sum(-1, keepdim=True) / (own * own).sum(-1, keepdim=True) * own)
    half = v.bfloat16()
    left = exclude(half.repeat_interleave(2, 1), half)
    assert left.dtype == torch.bfloat16
    assert left.abs().max() < 1e-6 * half.abs().max()
    assert_same_bits(exclude(y, torch.zeros_like(v)), y, Reason.IDENTITY)


def naive_feed_forward(module: FeedForward, x_D: Tensor) -> Tensor:
    """CoMT, Eq. 7 and 8."""
    gated = naive_projection(module.gate_up, "gate_proj", x_D)
    up = naive_projection(module.gate_up, "up_proj", x_D)
    inner = torch.stack([g * sigmoid(g.item()) * u for g, u in zip(gated, up, strict=True)])
    return naive_projection(module.down, "down_proj", inner)


def naive_norm(norm: nn.Module, x_D: Tensor, eps: float) -> Tensor:
    """RMSNorm with a gain, or followed by a gate."""
    if isinstance(norm, GatedNorm):
        n_D = naive_norm(norm.norm, x_D, eps)
        u = [z * sigmoid(z) for z in (dot(row, n_D) for row in norm.A)]
        return torch.stack([n * sigmoid(math.fsum(b * z for b, z in zip(row.tolist(), u, strict=True)))
                            for n, row in zip(n_D, norm.B, strict=True)])  # fmt: skip
    return rms_norm(x_D, norm.weight, torch.finfo(x_D.dtype).eps if norm.eps is None else eps)


def naive_add(connection: nn.Module, x_TD: Tensor, branch, normed) -> Tensor:
    """Residual add of all tokens."""
    match type(connection).__name__:
        case "PreNorm":
            return x_TD + branch(normed(connection.norm, x_TD))
        case "SandwichLN":
            return x_TD + normed(connection.branch_norm, branch(normed(connection.norm, x_TD)))
        case "HybridNorm":
            if connection.site.layer == 0 and connection.is_pre_norm:
                return x_TD + branch(normed(connection.norm, x_TD))
            if connection.site.part == "attention":
                return x_TD + branch(x_TD)
            h_TD = normed(connection.norm, x_TD)
            return h_TD + branch(h_TD)
    raise ValueError(connection)


def naive_llama(model: Llama, tokens_T: list[int]) -> Tensor:
    """Other connections are those of `test_residual_equations`."""
    settings = model.settings

    def normed(norm: nn.Module, x_TD: Tensor) -> Tensor:
        return torch.stack([naive_norm(norm, row, settings.norm_eps) for row in x_TD])

    def attention(h_TD: Tensor) -> Tensor:
        return naive_attention(block.attention, h_TD, settings.rope_theta)

    def feed_forward(h_TD: Tensor) -> Tensor:
        return torch.stack([naive_feed_forward(block.mlp, row) for row in h_TD])

    x = torch.stack([model.embedding.weight[token] for token in tokens_T])
    x = x if isinstance(model.entry, nn.Identity) else normed(model.entry, x)
    for block in model.blocks:
        x = naive_add(block.attention_connection, x, attention, normed)
        x = naive_add(block.mlp_connection, x, feed_forward, normed)
    return normed(model.final_norm, x) @ (model.embedding if model.head is None else model.head).weight.T


WHOLE = {
    "plain": {"name": "pre-ln"},
    "comt": {"name": "comt", "sites": list(PROJECTIONS)},
    "transponder": {"name": "transponder", "sites": list(PROJECTIONS)},
    "peri-ln": {"name": "peri-ln"},
    "gated-norm": {"name": "gated-norm", "rank": 3},
    "xsa": {"name": "xsa"},
    "hybrid-norm": {"name": "hybrid-norm"},
    "hybrid-norm-starred": {"name": "hybrid-norm", "starred": True},
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_model(name):
    settings = ModelSettings(
        size="tiny", width=8, ffn_width=10, layers=3, heads=4, kv_heads=2, norm_eps=1e-3, tied_embeddings=name == "comt"
    )
    model = shaken(Llama(settings, 11, method_from(WHOLE[name]).wiring()))
    tokens = [3, 1, 4, 1, 5]
    close_with_rope(model(torch.tensor([tokens]))[0], naive_llama(model, tokens))
