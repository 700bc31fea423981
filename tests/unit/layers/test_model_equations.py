"""Attention, positions and the whole model against the equations of the papers (`naive`)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive import (
    close,
    close_with_rope,
    dot,
    make_plain,
    naive_connection,
    naive_gate,
    normal,
    rms_norm,
    shaken,
    sigmoid,
)
from torch import Tensor, nn

from comt_cli.layers.attention import Attention, FeedForward
from comt_cli.layers.initialise import initialise
from comt_cli.layers.projection import Projections
from comt_cli.layers.rotary import rotate, rotation_table
from comt_cli.methods import method_from
from comt_cli.methods.base import PROJECTIONS, Wiring, residual_connection
from comt_cli.models.llama import Llama
from comt_cli.tasks.settings.llama import ModelSettings


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

    seen: list[Tensor] = []

    def along(x_TD: Tensor, connection: nn.Module, branch, layer: int) -> Tensor:
        """A connection works on one token; attention needs all of them, so its outputs are looked up by position."""
        inputs: list[Tensor] = []

        def collect(h: Tensor) -> Tensor:
            inputs.append(h)
            return torch.zeros_like(h)

        def join(t: int, branch) -> Tensor:
            past = [earlier[t] for earlier in reversed(seen[-2:])] if residual == "laurel-pa" else []
            return naive_connection(residual, connection, x_TD[t], branch, settings.norm_eps, layer, shape.layers, past)

        for t in range(len(x_TD)):
            join(t, collect)
        outputs = branch(torch.stack(inputs))
        joined = torch.stack([join(t, lambda _, y=y: y) for t, y in enumerate(outputs)])
        seen.append(x_TD)
        return joined

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
    if residual != "rezero":
        x = torch.stack([rms_norm(row, model.final_norm.weight, settings.norm_eps) for row in x])
    return x @ (model.embedding if model.head is None else model.head).weight.T


@pytest.mark.parametrize("residual", ["pre-norm", "post-norm", "rezero", "laurel-pa", "sas"])
@pytest.mark.parametrize("gate", [None, "comt", "transponder"])
def test_the_whole_model(residual, gate):
    settings = ModelSettings(
        size="tiny", width=8, ffn_width=10, layers=3, heads=4, kv_heads=2, norm_eps=1e-3, tied_embeddings=gate == "comt"
    )
    if gate:
        wiring = method_from({"name": gate, "residual": residual, "sites": list(PROJECTIONS)}).wiring()
    else:
        wiring = Wiring(residual_connection(residual))
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
