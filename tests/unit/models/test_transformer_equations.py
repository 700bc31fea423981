"""The encoder-decoder against torch's own, and its gates against the equations of the papers (`naive`).

Residual connections are those of `test_residual_equations`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from method_cases import wiring_of
from naive import close, dot, matrix, naive_gate, normal, sigmoid, sigmoids
from small_networks import PAIRS, SOURCE, TARGET, pair_model
from torch import Tensor, nn

from comt_cli.kernels.attend import attend
from comt_cli.layers.attention import attention_weights
from comt_cli.layers.gates import EvaluatorAdjuster, HeadGate
from comt_cli.layers.projection import Projections


def naive_eau(unit: EvaluatorAdjuster, z_D: Tensor) -> Tensor:
    """x + tanh(W3 x + b3) * sigmoid(W2 relu(W1 x + b1) + b2)."""
    hidden_r = (matrix(unit.W1.weight, z_D) + unit.W1.bias).clamp(min=0)
    evaluated_D = sigmoids(matrix(unit.W2.weight, hidden_r) + unit.W2.bias)
    return z_D + torch.tanh(matrix(unit.W3.weight, z_D) + unit.W3.bias) * evaluated_D


def acted_on(gate: Any, x_D: Tensor, z_N: Tensor) -> Tensor:
    if isinstance(gate, EvaluatorAdjuster):
        return naive_eau(gate, z_N)
    if isinstance(gate, HeadGate):
        factors = [sigmoid(dot(row, x_D)) for row in gate.W]
        return torch.cat([factor * part for factor, part in zip(factors, z_N.chunk(len(factors)), strict=True)])
    return naive_gate(gate, x_D, len(z_N)) * z_N


GATED: dict[str, dict[str, Any]] = {
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


def on_all(gate: Any, x_BTD: Tensor, z_BTN: Tensor) -> Tensor:
    """What a gate makes of z, token by token."""
    found = [acted_on(gate, x, z) for x, z in zip(x_BTD.flatten(0, 1), z_BTN.flatten(0, 1), strict=True)]
    return torch.stack(found).view_as(z_BTN)


def gate_plain_network(plain: nn.Module, gated: nn.Module) -> None:
    """Put the gates of `gated` where their sites are in a network without, by hooks: on each projection, on what
    attention mixed, and on whole branches, whose input is that of their first projection."""
    owners = {name: module for name, module in gated.named_modules() if isinstance(module, Projections)}
    reads: dict[str, Tensor] = {}  # by branch, what its first projection read

    def after(name: str, module: Projections, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Any:
        ours, branch = owners[name], name.rpartition(".")[0]
        is_last = name.endswith(("output", "down"))
        if not is_last and not name.endswith("key_value"):
            reads[branch] = inputs[0]
        found = [
            on_all(ours.gate(site.name), inputs[0], z) if site.name in ours.gates else z
            for site, z in zip(ours.sites, outputs, strict=True)
        ]
        path = getattr(gated.get_submodule(branch.rpartition(".")[0]), branch.rpartition(".")[2] + "_path")
        if is_last and path is not None:
            found = [on_all(path.gate(path.sites[0].name), reads[branch], found[0])]
        return tuple(found)

    def before_output(name: str, module: Projections, inputs: tuple[Tensor, ...]) -> Any:
        branch = name.rpartition(".")[0]
        asked_by = owners.get(f"{branch}.qkv", owners.get(f"{branch}.query"))
        if not name.endswith("output") or asked_by is None or "sdpa" not in asked_by.gates:
            return None
        return (on_all(asked_by.gate("sdpa"), reads[branch], inputs[0]),)

    for name, module in plain.named_modules():
        if isinstance(module, Projections):
            module.register_forward_pre_hook(partial(before_output, name))
            module.register_forward_hook(partial(after, name))


@torch.no_grad()
@pytest.mark.parametrize("options", GATED.values(), ids=list(GATED))
def test_gates_act_where_their_sites_are(options):
    wiring = wiring_of(options)
    gated = pair_model(wiring, trained=True).eval()
    plain = pair_model(replace(wiring, gates={}), trained=True).eval()
    left = plain.load_state_dict(gated.state_dict(), strict=False)
    assert not left.missing_keys
    assert left.unexpected_keys
    gate_plain_network(plain, gated)
    close(gated(SOURCE, TARGET), plain(SOURCE, TARGET))


@pytest.mark.parametrize("method", ["post-ln", "pre-ln"])
def test_torch_computes_the_same(method):
    """nn.Transformer with our weights, in evaluation: the stream that the head reads."""
    settings = PAIRS.model_copy(update={"norm_eps": 1e-5})  # torch's
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


def test_weights_of_attention_that_dropout_is_on_are_those_of_fused_attention():
    q, k, v = (normal(3, 4, 7, 6, seed=seed) for seed in range(3))
    for given in ({"mask": (SOURCE != 0)[:, None, None, :]}, {"mask": None, "causal": True}):
        close(attention_weights(q, k, **given) @ v, attend(q, k, v, **given))
