"""Residual connections against the equations of the papers, written out a token at a time (`naive`)."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from naive import ONE_STREAM, close, naive_connection, normal, shaken, sigmoid
from torch import nn

from comt_cli.layers.residual.base import ResidualConnection, ResidualSite, State
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
