"""Residual connections and shared values against the equations of the papers (`naive`)."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from method_cases import SETTINGS, TOKENS, built, wiring_of
from naive import ONE_STREAM, close, naive_connection, naive_smear, naive_value, normal, shaken, sigmoid
from same_bits import Reason, assert_same_bits
from torch import Tensor, nn

from comt_cli.layers.convolution import EPSILON, MapLayerNorm
from comt_cli.layers.residual.base import ResidualConnection, ResidualSite, State
from comt_cli.layers.residual.scaled import GatedShare, SelfAdaptiveScaling
from comt_cli.layers.shared_values import LayerRouter, SingleValue, ValueResidual
from comt_cli.layers.smear import Smear
from comt_cli.layers.value_embedding import ValueEmbedding
from comt_cli.methods.base import residual_connection


def connection_at(name: str, layer: int, branch: str, **options) -> ResidualConnection:
    index = 2 * (layer - 1) + (branch == "mlp")
    site = ResidualSite(6, "decoder", index, 16, layer - 1, 8, branch, partial(nn.RMSNorm, 6, eps=1e-3))
    return shaken(residual_connection(name)(site, **options))


@pytest.mark.parametrize("name", ONE_STREAM)
# The first block has nothing behind it, the third all that a connection remembers, the last is beyond Mix-LN's quarter.
@pytest.mark.parametrize(("layer", "branch_name"), [(1, "attention"), (3, "mlp"), (8, "attention")])
def test_residual_connections(name, layer, branch_name):
    small = {"rank": 3} if name in ("laurel-lr", "laurel-pa", "laurel-rw-lr") else {}
    connection = connection_at(name, layer, branch_name, **small)
    mix = normal(6, 6, seed=3)
    x_BTD = normal(2, 3, 6)
    behind = 2 * (layer - 1) + (branch_name == "mlp")
    remembered = getattr(connection, "history", 1) - 1
    past = tuple(normal(2, 3, 6, seed=20 + j) for j in range(min(remembered, behind)))

    def branch(h):
        return torch.tanh(h @ mix)

    state = connection.step(State(x_BTD, past), branch)
    for b in range(2):
        for t in range(3):
            earlier = [each[b, t] for each in past]
            expected = naive_connection(name, connection, x_BTD[b, t], branch, 1e-3, layer, 8, earlier)
            close(state.stream[b, t], expected)
    # What the next one sees: this input, then the newest of the earlier ones.
    assert [id(kept) for kept in state.sources] == [id(kept) for kept in (x_BTD, *past)[:remembered]]


def test_the_other_readings_of_a_connection():
    """`sigmoid` for LAuReL's weights; the sublayer's output, or both, for the gate of GRC."""
    x_BTD, s_BTD = normal(2, 3, 6), normal(2, 3, 6, seed=1)
    connection = connection_at("laurel-rw", 1, "mlp", bound="sigmoid")
    a, b = (sigmoid(z) for z in connection.weights.value.tolist())
    close(connection(x_BTD, lambda _: s_BTD), a * s_BTD + b * x_BTD)
    for reads, read in (("sublayer", s_BTD), ("both", torch.cat([x_BTD, s_BTD], dim=-1))):
        connection = connection_at("grc", 1, "mlp", reads=reads)
        g = torch.sigmoid(read @ connection.gate.weight.T + connection.gate.bias)
        close(connection(x_BTD, lambda _: s_BTD), x_BTD + g * s_BTD)


def test_a_quarter_of_the_blocks_is_post_norm_in_mix_ln():
    norm = partial(nn.RMSNorm, 4)
    for layers, post in ((4, 1), (12, 3), (24, 6), (6, 2), (10, 3), (1, 0)):
        sites = [ResidualSite(4, "decoder", 2 * i + 1, 2 * layers, i, layers, "mlp", norm) for i in range(layers)]
        found = [residual_connection("mix-ln")(site).ends_in_norm for site in sites]
        assert found == [number < post for number in range(layers)]


def test_values_of_the_first_block():
    """Against the two equations, with numbers for tensors."""
    for mixing, expected in (
        (ValueResidual(1, 0.25, 2.0), 0.25 * 3 + 2 * 5),
        (shaken(ValueResidual(1, learned=True)), None),
        (SingleValue(1), 5),
    ):
        kept = []
        k, v_1 = torch.full((1, 2, 3, 4), 7.0).double(), torch.full((1, 2, 3, 4), 5.0).double()
        assert_same_bits(type(mixing)(0)(k, v_1, kept)[1], v_1, Reason.MOVED)
        own = v_1 * 0.6 if mixing.has_values else None
        found_k, found_v = mixing(k, own, kept)
        a, b = (0.0, 0.0) if expected is not None else (0.5 + mixing.shares.value).tolist()
        assert found_k is k
        close(found_v, torch.full_like(v_1, 3 * a + 5 * b if expected is None else expected))


def test_routed_keys_and_values():
    routers, kept = [shaken(LayerRouter(layer, 2)) for layer in range(3)], []
    raw = [(normal(1, 2, 3, 4, seed=2 * layer), normal(1, 2, 3, 4, seed=2 * layer + 1)) for layer in range(3)]
    for layer, router in enumerate(routers):
        found = router(*raw[layer], kept)
        for which in range(2):
            heads = [raw[earlier][which][0, head] for earlier in range(layer + 1) for head in range(2)]
            for head in range(2):
                expected = raw[layer][which][0, head]
                if layer:
                    expected = expected + sum(router.router[head, j].item() * h for j, h in enumerate(heads))
                close(found[which][0, head], expected)


def test_value_embeddings():
    """Each head has its gate and its part of the token's row."""
    module = shaken(ValueEmbedding(6, 2, 3, vocabulary=5, scale=1.5, channels=4))
    v_BKTE, x_BTD, tokens_BT = normal(2, 2, 4, 3), normal(2, 4, 6, seed=1), torch.tensor([[0, 4, 4, 2], [3, 1, 0, 2]])
    found = module(v_BKTE, x_BTD, tokens_BT)
    for b in range(2):
        for t in range(4):
            row = module.table.weight[tokens_BT[b, t]]
            for head in range(2):
                of_head = row[3 * head : 3 * head + 3]
                close(
                    found[b, head, t], naive_value(v_BKTE[b, head, t], x_BTD[b, t], module.gate.W[head], of_head, 1.5)
                )


def test_the_gate_of_a_value_embedding_reads_what_values_are_made_of():
    model, seen = shaken(built(wiring_of({"name": "value-embeddings", "residual": "mudd"}))), {}
    block = model.blocks[-1]
    block.attention_connection.value_norm.register_forward_hook(lambda _, __, x_BTD: seen.update(made_of=x_BTD))
    block.attention.value_embedding.register_forward_hook(lambda _, given, __: seen.update(read=given[1]))
    model(TOKENS)
    assert_same_bits(seen["read"], seen["made_of"], Reason.MOVED)


def test_smear():
    module, e_BTD = shaken(Smear(6, channels=4)), normal(2, 4, 6)
    found = module(e_BTD)
    for b in range(2):
        close(found[b, 0], e_BTD[b, 0])
        for t in range(1, 4):
            expected = naive_smear(e_BTD[b, t], e_BTD[b, t - 1], module.gate.W[0], module.share.value.item())
            close(found[b, t], expected)


def test_every_second_block_has_a_table_the_last_included():
    for layers, every, expected in ((4, 2, [1, 3]), (5, 2, [0, 2, 4]), (4, 1, [0, 1, 2, 3]), (4, 9, [3])):
        model = built(
            wiring_of({"name": "value-embeddings", "every": every}), SETTINGS.model_copy(update={"layers": layers})
        )
        tables = [block.attention.value_embedding for block in model.blocks]
        assert [layer for layer, table in enumerate(tables) if table is not None] == expected
        assert all(table.table.weight.shape == (61, 24) for table in tables if table is not None)


MAP_SITE = ResidualSite(3, "blocks", 0, 4, 0, 4, "map", nn.Identity)


def gate_of(gate: nn.Module, *both: Tensor, reads: str) -> Tensor:
    """Eq. 2 followed by a sigmoid, or Table 6's single layer, of every pixel or of the mean over all."""
    read = torch.cat([each.mean((1, 2), keepdim=True) if reads == "pooled" else each for each in both], -1)
    hidden = read if gate.hidden is None else torch.tanh(read @ gate.hidden.weight.T + gate.hidden.bias)
    return torch.sigmoid(hidden @ gate.output.weight.T + gate.output.bias)


@pytest.mark.parametrize(
    ("gate", "reads", "over", "gamma"),
    [
        ("two-layer", "pooled", "sample", "product"),
        ("two-layer", "pixel", "pixel", "free"),
        ("single-layer", "pixel", "sample", "product"),
        ("single-layer", "pooled", "pixel", "free"),
    ],
)
def test_the_readings_of_sas_on_maps(gate, reads, over, gamma):
    norm = partial(MapLayerNorm, over=over)
    connection = shaken(SelfAdaptiveScaling(MAP_SITE, gate=gate, reads=reads, norm=norm, gamma=gamma))
    x_BHWC, F_BHWC = normal(2, 2, 3, 3), normal(2, 2, 3, 3, seed=1)
    total, dims = x_BHWC + F_BHWC, (1, 2, 3) if over == "sample" else 3
    centred = total - total.mean(dims, keepdim=True)
    n = connection.norm.weight * centred / (centred.square().mean(dims, keepdim=True) + EPSILON).sqrt()
    gates = connection.alpha_gate, connection.beta_gate, connection.gamma_gate
    a, b, c = (None if each is None else gate_of(each, x_BHWC, F_BHWC, reads=reads) for each in gates)
    c = (1 - a) * (1 - b) if gamma == "product" else c
    expected = a * x_BHWC + b * F_BHWC + c * (n + connection.norm.bias)
    close(connection(x_BHWC, lambda _: F_BHWC), expected)


@pytest.mark.parametrize("gate", ["two-layer", "single-layer"])
@pytest.mark.parametrize("reads", ["pooled", "pixel"])
def test_one_scaling_gate(gate, reads):
    connection = shaken(GatedShare(MAP_SITE, gate=gate, reads=reads))
    x_BHWC, F_BHWC = normal(2, 2, 3, 3), normal(2, 2, 3, 3, seed=1)
    g = gate_of(connection.gate, x_BHWC, F_BHWC, reads=reads)
    close(connection(x_BHWC, lambda _: F_BHWC), g * F_BHWC + (1 - g) * x_BHWC)
