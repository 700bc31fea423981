"""Every equation against a second implementation, written from the papers with explicit loops, in float64.

Tolerance: both sides sum the same float64 numbers in different orders, at most a few thousand terms of order 1. An
error of some 1e-13 relative is all that can be right, and 1e-11 leaves room for a model's depth. The exception is the
rotary table, which the model computes in float32, as public checkpoints expect: there, angles up to 10 carry 1e-6.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from comt_cli.kernels.reference import comt_gate, transponder_gate
from comt_cli.layers.attention import Attention, FeedForward, rotate, rotation_table
from comt_cli.layers.gates import ComtGate, Gate, Site, TransponderGate
from comt_cli.layers.initialise import initialise
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual import RESIDUAL_CONNECTIONS, Junction
from comt_cli.methods import method_from
from comt_cli.methods.base import PROJECTIONS
from comt_cli.models.llama import Llama
from comt_cli.recipe.settings import ModelSettings

close = partial(torch.testing.assert_close, rtol=1e-11, atol=1e-11)
close_with_rope = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def dot(a: Tensor, b: Tensor) -> float:
    return math.fsum(p * q for p, q in zip(a.tolist(), b.tolist(), strict=True))


# ---- gates


def naive_comt(x_D: Tensor, A: Tensor, B: Tensor) -> float:
    """CoMT, Eq. 4: sigma(W2 phi(W1 X)), for one token."""
    return sigmoid(math.fsum(b * sigmoid(dot(a, x_D)) for a, b in zip(A, B[0].tolist(), strict=True)))


def naive_transponder(x_D: Tensor, A: Tensor, B: Tensor, log_alpha: float) -> list[float]:
    """Transponder, Eq. 4 and 5: 2 sigma(alpha B phi(A x)), for one token; a number for every row of B."""
    hidden = [sigmoid(dot(a, x_D)) for a in A]
    return [
        2 * sigmoid(math.exp(log_alpha) * math.fsum(b * h for b, h in zip(row, hidden, strict=True)))
        for row in B.tolist()
    ]


def naive_gate(gate: Gate, x_D: Tensor, d_out: int) -> Tensor:
    if isinstance(gate, ComtGate):
        return torch.full((d_out,), naive_comt(x_D, gate.A, gate.B), dtype=torch.float64)
    assert isinstance(gate, TransponderGate)
    channel = naive_transponder(x_D, gate.A, gate.B_channel, gate.log_alpha_channel.item())
    (scalar,) = naive_transponder(x_D, gate.A, gate.B_scalar, gate.log_alpha_scalar.item())
    return torch.tensor([c * scalar for c in channel], dtype=torch.float64)


def shaken(module: nn.Module) -> nn.Module:
    """In float64, with every parameter away from any special value."""
    module.double().requires_grad_(False)
    for index, parameter in enumerate(module.parameters()):
        parameter.copy_(normal(*parameter.shape, seed=100 + index) * 0.4 + 0.1)
    return module


@pytest.mark.parametrize(
    "make", [partial(ComtGate, hidden=3), partial(TransponderGate, rank=3)], ids=["comt", "transponder"]
)
def test_gates(make):
    site = Site("q_proj", 0, 1, 6, 4)
    gate = shaken(make(site, init="normal"))
    x_TD, z_TN = normal(5, 6), normal(5, 4, seed=1)
    expected = torch.stack([naive_gate(gate, x_TD[t], 4) for t in range(5)])
    values = gate.values(x_TD @ gate.summary().T)
    close(math.prod(values.values(), start=torch.ones(5, 4, dtype=torch.float64)), expected)
    close(gate(z_TN, x_TD @ gate.summary().T), expected * z_TN)


@given(seed=st.integers(0, 2**31), alpha=st.floats(0.01, 10), size=st.floats(0.1, 5))
def test_ranges_and_symmetry(seed, alpha, size):
    """CoMT in (0, 1), Transponder in (0, 2) and mirrored around 1 in B; a steeper alpha never changes the side."""
    u, B = normal(4, 3, seed=seed) * size, normal(5, 3, seed=seed + 1)
    alpha = torch.tensor(alpha, dtype=torch.float64)
    assert ((comt_gate(u, B) > 0) & (comt_gate(u, B) < 1)).all()
    gamma = transponder_gate(u, B, alpha)
    assert ((gamma > 0) & (gamma < 2)).all()
    close(gamma + transponder_gate(u, -B, alpha), torch.full_like(gamma, 2))
    assert ((gamma > 1) == (transponder_gate(u, B, 2 * alpha) > 1)).all()
    close(transponder_gate(u, B, torch.tensor(1.0)), 2 * comt_gate(u, B))


@pytest.mark.parametrize("gated", [(), ("b",), ("c", "a"), ("a", "b", "c")])
def test_one_product_gives_what_single_layers_would(gated):
    """Projections of one input, some gated, against one matrix product and one gate at a time (Transponder, Eq. 8)."""
    sites = [Site(name, 0, 1, 6, width) for name, width in (("a", 4), ("b", 2), ("c", 3))]
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


# ---- residual connections


def rms_norm(x_D: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    """Zhang and Sennrich 2019: x / sqrt(mean(x^2) + eps) * g."""
    return x_D / math.sqrt(dot(x_D, x_D) / len(x_D) + eps) * gain_D


def naive_connection(name: str, x_D: Tensor, branch, gain_D: Tensor, eps: float, layer: int, layers: int) -> Tensor:
    """One junction of one token, `layer` counted from 1 as the papers do."""
    norm = partial(rms_norm, gain_D=gain_D, eps=eps)
    match name:
        case "pre-norm":
            return x_D + branch(norm(x_D))
        case "post-norm":
            return norm(x_D + branch(x_D))
        case "deepnorm":
            return norm((2 * layers) ** (1 / 4) * x_D + branch(x_D))
        case "mix-ln":
            return norm(x_D + branch(x_D)) if layer <= round(layers / 4) else x_D + branch(norm(x_D))
        case "layernorm-scaling":
            return x_D + branch(norm(x_D) / math.sqrt(layer))
    raise ValueError(name)


@pytest.mark.parametrize("name", RESIDUAL_CONNECTIONS)
@pytest.mark.parametrize("layer", [1, 2, 3, 8])
@pytest.mark.parametrize("branch_name", ["attention", "mlp"])
def test_residual_connections(name, layer, branch_name):
    junction = Junction(6, layer - 1, 8, branch_name, partial(nn.RMSNorm, 6, eps=1e-3))
    connection = shaken(RESIDUAL_CONNECTIONS[name](junction))
    mix = normal(6, 6, seed=3)
    x_BTD = normal(2, 3, 6)
    found = connection(x_BTD, lambda h: torch.tanh(h @ mix))
    for b in range(2):
        for t in range(3):
            expected = naive_connection(
                name, x_BTD[b, t], lambda h: torch.tanh(h @ mix), connection.norm.weight, 1e-3, layer, 8
            )
            close(found[b, t], expected)


@pytest.mark.parametrize(("layers", "post"), [(4, 1), (8, 2), (12, 3), (24, 6), (6, 2), (10, 3), (1, 0)])
def test_a_quarter_of_the_blocks_is_post_norm_in_mix_ln(layers, post):
    junctions = [Junction(4, layer, layers, "mlp", partial(nn.RMSNorm, 4)) for layer in range(layers)]
    assert [RESIDUAL_CONNECTIONS["mix-ln"](j).is_post for j in junctions] == [True] * post + [False] * (layers - post)


# ---- rotary positions, attention


def test_rotary_positions_are_products_of_complex_numbers():
    """Su et al. 2021: (x_i + i x_{i+E/2}) * exp(i t theta^(-2i/E))."""
    x = normal(2, 3, 7, 8)
    angle = torch.outer(torch.arange(7.0, dtype=torch.float64), 10000.0 ** (-torch.arange(0, 8, 2).double() / 8))
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    close_with_rope(rotate(x, rotation_table(7, 8, 10000.0, x)), torch.cat([turned.real, turned.imag], dim=-1))


@given(shift=st.integers(0, 30), seed=st.integers(0, 1000))
def test_rotary_scores_know_only_the_distance(shift, seed):
    q, k = normal(1, 1, 1, 8, seed=seed), normal(1, 1, 1, 8, seed=seed + 1)
    rotation = rotation_table(40, 8, 100.0, q)

    def at(x: Tensor, t: int) -> Tensor:
        return rotate(x, (rotation[0][t : t + 1], rotation[1][t : t + 1]))

    def score(s: int, t: int) -> Tensor:
        return (at(q, s) * at(k, t)).sum()

    close_with_rope(score(5 + shift, 2 + shift), score(5, 2))
    close_with_rope(at(q, 7).norm(), q.norm())


def make_plain(widths: dict[str, tuple[int, int]]) -> Projections:
    return Projections([Site(name, 0, 1, i, o) for name, (i, o) in widths.items()], {}, lambda _: 0.02)


def test_grouped_heads_are_repeated_heads():
    grouped, full = shaken(Attention(24, 6, 2, make_plain)), shaken(Attention(24, 6, 6, make_plain))
    q, k, v = grouped.qkv.weight.split([24, 8, 8])
    repeat = [
        w.view(2, 4, 24).repeat_interleave(3, dim=0).reshape(24, 24) for w in (k, v)
    ]  # head h reads key head h // 3
    full.qkv.weight.copy_(torch.cat([q, *repeat]))
    full.output.weight.copy_(grouped.output.weight)
    x = normal(2, 5, 24)
    rotation = rotation_table(5, 4, 10000.0, x)
    close(grouped(x, rotation), full(x, rotation))


# ---- the whole model


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
    rows = []
    for t in range(T):
        heads = []
        for h in range(module.heads):
            query = naive_rope(q[t][h], t, theta)
            scores = [dot(query, naive_rope(k[s][h // group], s, theta)) / math.sqrt(E) for s in range(t + 1)]
            weights = [math.exp(score - max(scores)) for score in scores]
            heads.append(sum(w / math.fsum(weights) * v[s][h // group] for s, w in enumerate(weights)))
        rows.append(naive_projection(module.output, "o_proj", torch.cat(heads)))
    return torch.stack(rows)


def naive_feed_forward(module: FeedForward, x_D: Tensor) -> Tensor:
    """CoMT, Eq. 7 and 8."""
    gated = naive_projection(module.gate_up, "gate_proj", x_D)
    up = naive_projection(module.gate_up, "up_proj", x_D)
    inner = torch.stack([g * sigmoid(g.item()) * u for g, u in zip(gated, up, strict=True)])
    return naive_projection(module.down, "down_proj", inner)


def naive_llama(model: Llama, residual: str, tokens_T: list[int]) -> Tensor:
    settings, shape = model.settings, model.shape
    x = torch.stack([model.embedding.weight[token] for token in tokens_T])

    def along(x_TD: Tensor, connection: nn.Module, branch, layer: int) -> Tensor:
        """A connection works on one token; attention needs all of them, so its outputs are looked up by position."""
        inputs: list[Tensor] = []

        def collect(h: Tensor) -> Tensor:
            inputs.append(h)
            return torch.zeros_like(h)

        join = partial(
            naive_connection,
            residual,
            gain_D=connection.norm.weight,
            eps=settings.norm_eps,
            layer=layer,
            layers=shape.layers,
        )
        for row in x_TD:
            join(row, collect)
        outputs = branch(torch.stack(inputs))
        return torch.stack([join(row, lambda _, y=y: y) for row, y in zip(x_TD, outputs, strict=True)])

    for layer, block in enumerate(model.blocks, start=1):
        x = along(
            x,
            block.attention_connection,
            lambda h, b=block: naive_attention(b.attention, h, settings.rope_theta),
            layer,
        )
        x = along(
            x, block.mlp_connection, lambda h, b=block: torch.stack([naive_feed_forward(b.mlp, r) for r in h]), layer
        )
    if residual != "deepnorm":
        x = torch.stack([rms_norm(row, model.final_norm.weight, settings.norm_eps) for row in x])
    return x @ (model.embedding if model.head is None else model.head).weight.T


@pytest.mark.parametrize("residual", RESIDUAL_CONNECTIONS)
@pytest.mark.parametrize("gate", [None, "comt", "transponder"])
def test_the_whole_model(residual, gate):
    settings = ModelSettings(
        size="tiny", width=8, ffn_width=10, layers=3, heads=4, kv_heads=2, norm_eps=1e-3, tied_embeddings=gate == "comt"
    )
    if gate:
        wiring = method_from({"name": gate, "residual": residual, "sites": list(PROJECTIONS)}).wiring()
    else:
        wiring = method_from({"name": "comt", "residual": residual}).wiring().without_gates()
    model = shaken(Llama(settings, 11, wiring))
    tokens = [3, 1, 4, 1, 5]
    close_with_rope(model(torch.tensor([tokens]))[0], naive_llama(model, residual, tokens))


def test_activation_checkpointing_only_while_training():
    model = Llama(
        ModelSettings(size="tiny", width=8, ffn_width=10, layers=2, heads=2), 11, method_from({"name": "comt"}).wiring()
    )
    initialise(model, 1)
    model.activation_checkpointing = True
    tokens = torch.tensor([[1, 2, 3]])
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
        model.train()(tokens)
        while_training = sum(kept)
        kept.clear()
        model.eval()(tokens)
    assert while_training < sum(kept) / 2
