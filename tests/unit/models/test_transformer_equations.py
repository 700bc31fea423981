"""The encoder-decoder against a second implementation, written from the papers a token at a time (`naive`), and against
torch's own."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from method_cases import wiring_of
from naive import (
    ONE_STREAM,
    close_with_rope,
    dot,
    layer_norm,
    matrix,
    naive_connection,
    naive_gate,
    normal,
    sigmoid,
    sigmoids,
)
from naive import shaken as shaken_alone
from pair_method_cases import SETTINGS, SOURCE, TARGET, pair_model
from same_bits import Reason, assert_same_bits
from torch import Tensor, nn

from comt_cli.layers.gates import EvaluatorAdjuster, HeadGate
from comt_cli.layers.projection import GatedPath, Projections
from comt_cli.methods.base import Wiring, residual_connection
from comt_cli.models.transformer import Transformer
from comt_cli.tasks.settings.transformer import TransformerSettings

EPS = 1e-3
SMALL = TransformerSettings(
    size="nano", width=8, ffn_width=10, encoder_layers=3, decoder_layers=4, heads=2, norm_eps=EPS, dropout=0.0
)
Sequence = list[Tensor]


def naive_eau(unit: EvaluatorAdjuster, z_D: Tensor) -> Tensor:
    """x + tanh(W3 x + b3) * sigmoid(W2 relu(W1 x + b1) + b2)."""
    hidden_r = (matrix(unit.W1.weight, z_D) + unit.W1.bias).clamp(min=0)
    evaluated_D = sigmoids(matrix(unit.W2.weight, hidden_r) + unit.W2.bias)
    return z_D + torch.tensor([math.tanh(a) for a in (matrix(unit.W3.weight, z_D) + unit.W3.bias)]) * evaluated_D


def acted_on(gate: Any, x_D: Tensor, z_N: Tensor) -> Tensor:
    if isinstance(gate, EvaluatorAdjuster):
        return naive_eau(gate, z_N)
    if isinstance(gate, HeadGate):
        factors = [sigmoid(dot(row, x_D)) for row in gate.W]
        return torch.cat([factor * part for factor, part in zip(factors, z_N.chunk(len(factors)), strict=True)])
    return naive_gate(gate, x_D, len(z_N)) * z_N


def site(module: Projections, name: str, x_D: Tensor) -> Tensor:
    """G(x) * (W x + b)."""
    z_N = matrix(module.site_weights()[name], x_D)
    if module.bias is not None:
        z_N = z_N + dict(zip(module.site_weights(), module.bias.split(module.widths), strict=True))[name]
    return acted_on(module.gate(name), x_D, z_N) if name in module.gates else z_N


def attended(q: Sequence, k: Sequence, v: Sequence, heads: int, visible: Any) -> Sequence:
    found = []
    for t, query in enumerate(q):
        E, parts = len(query) // heads, []
        for h in range(heads):
            part = slice(h * E, (h + 1) * E)
            scores = {s: dot(query[part], k[s][part]) / math.sqrt(E) for s in range(len(k)) if visible(t, s)}
            weights = {s: math.exp(score) for s, score in scores.items()}
            total = math.fsum(weights.values())
            parts.append(sum(weight / total * v[s][part] for s, weight in weights.items()))
        found.append(torch.cat(parts))
    return found


def self_attention(module: Any, visible: Any, h: Sequence) -> Sequence:
    return attention(module, module.qkv, module.qkv, h, visible, h)


def attention(module: Any, asked_by: Projections, kv: Projections, source: Sequence, visible: Any, h: Sequence) -> Any:
    q = [site(asked_by, "q_proj", x) for x in h]
    k, v = ([site(kv, name, x) for x in source] for name in ("k_proj", "v_proj"))
    mixed = attended(q, k, v, module.heads, visible)
    if "sdpa" in asked_by.gates:
        mixed = [acted_on(asked_by.gate("sdpa"), x, m) for x, m in zip(h, mixed, strict=True)]
    return [site(module.output, "o_proj", m) for m in mixed]


def feed_forward(module: Any, h: Sequence) -> Sequence:
    return [site(module.down, "down_proj", site(module.up, "up_proj", x).clamp(min=0)) for x in h]


def joined(residual: str, joint: Any, branch: Any, x: Sequence, layer: int, layers: int, seen: list[Sequence]) -> Any:
    """A connection works on one token; attention needs all of them, so its outputs are looked up by position."""
    connection, path = joint.connection, joint.path
    past = [list(each) for each in zip(*reversed(seen[-2:]), strict=True)] if residual == "laurel-pa" and seen else None

    def join(t: int, of_t: Any) -> Tensor:
        if residual == "deepnorm":
            return normed(connection.norm, [ALPHAS[connection.site.stack] * x[t] + of_t(x[t])])[0]
        return naive_connection(residual, connection, x[t], of_t, EPS, layer, layers, past[t] if past else [])

    read: Sequence = []
    for t in range(len(x)):
        join(t, lambda h: (read.append(h), torch.zeros_like(h))[1])
    outputs = branch(read)
    if isinstance(path, GatedPath):
        gate = path.gate(path.sites[0].name)
        outputs = [acted_on(gate, h, y) for h, y in zip(read, outputs, strict=True)]
    seen.append(x)
    return [join(t, lambda _, y=y: y) for t, y in enumerate(outputs)]


ALPHAS = {"encoder": 0.81 * (3**4 * 4) ** (1 / 16), "decoder": 12**0.25}
"""DeepNorm's, of 3 encoder and 4 decoder blocks."""


def normed(norm: Any, x: Sequence) -> Sequence:
    return x if isinstance(norm, nn.Identity) else [layer_norm(row, norm.weight, norm.bias, EPS) for row in x]


def embedded(model: Transformer, tokens: list[int], D: int) -> Sequence:
    def position(t: int) -> Tensor:
        angles = [t / 10000 ** (2 * i / D) for i in range(D // 2)]
        return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)

    return [math.sqrt(D) * model.embedding.weight[token] + position(t) for t, token in enumerate(tokens)]


def naive_transformer(model: Transformer, residual: str, source: list[int], target: list[int]) -> Tensor:
    """Logits, [T, V]; in the source 0 is padding."""

    def visible(_: int, s: int) -> bool:
        return source[s] != 0

    D, N, M = model.shape.width, model.shape.encoder_layers, model.shape.decoder_layers
    x, seen = embedded(model, source, D), []
    for layer, block in enumerate(model.encoder, start=1):
        a, m = block.branches
        x = joined(residual, a, partial(self_attention, block.attention, visible), x, layer, N, seen)
        x = joined(residual, m, partial(feed_forward, block.mlp), x, layer, N, seen)
    encoded = normed(model.encoder_norm, x)
    x, seen = embedded(model, target, D), []
    for layer, block in enumerate(model.decoder, start=1):
        a, c, m = block.branches
        x = joined(residual, a, partial(self_attention, block.attention, lambda t, s: s <= t), x, layer, M, seen)
        cross = partial(attention, block.cross, block.cross.query, block.cross.key_value, encoded, visible)
        x = joined(residual, c, cross, x, layer, M, seen)
        x = joined(residual, m, partial(feed_forward, block.mlp), x, layer, M, seen)
    return torch.stack(normed(model.decoder_norm, x)) @ model.embedding.weight.T


GATED = {
    "comt": {"name": "comt", "residual": "post-norm"},
    "transponder": {"name": "transponder", "residual": "pre-norm"},
    "all-gate": {"name": "full-rank-gate", "sites": "all", "residual": "post-norm"},
    "sdpa-gate": {"name": "sdpa-gate", "residual": "post-norm"},
    "headwise": {"name": "sdpa-gate", "granularity": "headwise", "residual": "post-norm"},
    "path": {"name": "transponder-path", "granularity": "channel", "residual": "post-norm"},
    "eau": {"name": "eau", "residual": "post-norm"},
    "eau-before-o": {"name": "eau", "place": "before-o", "residual": "pre-norm"},
    "eau+grc": {"name": "eau+grc"},
}
CASES = {name: (name, Wiring(residual_connection(name))) for name in ONE_STREAM if "code" not in name} | {
    name: (str(options.get("residual", "grc")), wiring_of(options)) for name, options in GATED.items()
}
KEEP_NO_FINAL_NORM = {"post-norm", "deepnorm", "rezero", "sas"}


@pytest.mark.parametrize(("residual", "wiring"), CASES.values(), ids=list(CASES))
def test_the_whole_network(residual, wiring):
    model = pair_model(wiring, SMALL, shaken=True).requires_grad_(False)
    assert isinstance(model.decoder_norm, nn.Identity) == (residual in KEEP_NO_FINAL_NORM)
    source, target = [3, 1, 4, 0], [5, 9, 2]
    logits_TV = model(torch.tensor([source]), torch.tensor([target]))[0]
    close_with_rope(logits_TV, naive_transformer(model, residual, source, target))  # positions are fp32 here too


def test_the_units_equation_and_its_identity():
    gate = shaken_alone(EvaluatorAdjuster(pair_model({"name": "eau"}).encoder[0].attention_path.sites[0], 0.25))
    z_BTD = normal(2, 3, SETTINGS.shape().width)
    torch.testing.assert_close(gate(z_BTD, None)[1, 2], naive_eau(gate, z_BTD[1, 2]), rtol=1e-6, atol=1e-6)
    gate.W3.weight.zero_()
    gate.W3.bias.zero_()
    assert_same_bits(gate(z_BTD, None), z_BTD, Reason.IDENTITY)


@pytest.mark.parametrize("method", ["post-ln", "pre-ln"])
def test_torch_computes_the_same(method):
    """nn.Transformer with our weights, in evaluation: the stream that the head reads."""
    settings = SETTINGS.model_copy(update={"norm_eps": 1e-5})  # torch's
    ours, shape = pair_model({"name": method}, settings).eval(), settings.shape()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)) * 0.05)
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": method == "pre-ln"}
    sizes = shape.width, shape.heads, shape.ffn_width
    final = partial(nn.LayerNorm, shape.width)
    keeps = method == "pre-ln"
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*sizes, **options), 2, norm=final() if keeps else None, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **options), 3, norm=final() if keeps else None)
    whole = nn.Transformer(shape.width, shape.heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    for blocks, layers in ((ours.encoder, encoder.layers), (ours.decoder, decoder.layers)):
        for block, layer in zip(blocks, layers, strict=True):
            attentions = [(block.attention.qkv.weight, block.attention.output, layer.self_attn)]
            norms = [block.attention_connection.norm, block.mlp_connection.norm]
            if hasattr(block, "cross"):
                weight = torch.cat([block.cross.query.weight, block.cross.key_value.weight])
                attentions.append((weight, block.cross.output, layer.multihead_attn))
                norms.insert(1, block.cross_connection.norm)
            with torch.no_grad():
                for weight, output, theirs in attentions:
                    theirs.in_proj_weight.copy_(weight)
                    theirs.in_proj_bias.zero_()
                    theirs.out_proj.weight.copy_(output.weight)
                    theirs.out_proj.bias.zero_()
            for part, linear in ((block.mlp.up, layer.linear1), (block.mlp.down, layer.linear2)):
                linear.load_state_dict(part.state_dict())
            for number, norm in enumerate(norms, start=1):
                getattr(layer, f"norm{number}").load_state_dict(norm.state_dict())
    if keeps:
        encoder.norm.load_state_dict(ours.encoder_norm.state_dict())
        decoder.norm.load_state_dict(ours.decoder_norm.state_dict())
    padding_BS = SOURCE == 0
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    with torch.no_grad():
        expected = whole.eval()(
            ours.embedded(SOURCE, ours._positions(7)),
            ours.embedded(TARGET, ours._positions(6)),
            tgt_mask=mask,
            tgt_is_causal=True,
            src_key_padding_mask=padding_BS,
            memory_key_padding_mask=padding_BS,
        )
        torch.testing.assert_close(ours.body(SOURCE, TARGET), expected, rtol=1e-5, atol=1e-5)
