"""The residual connections of three small blocks, without a model around them."""

from __future__ import annotations

from functools import partial

import torch
from naive import normal, shaken
from torch import Tensor, nn

from comt_cli.layers.residual.base import Junction, ResidualConnection
from comt_cli.methods.base import residual_connection

D, LAYERS, EPSILON = 6, 3, 1e-3
COUNT = 2 * LAYERS


def connections_of(name: str, width: int = D, **options) -> list[ResidualConnection]:
    """Without initial values."""
    connections: list[ResidualConnection] = []
    for index in range(COUNT):
        part = ("attention", "mlp")[index % 2]
        before = connections[-1:] if index % 2 else ()
        norm = partial(nn.RMSNorm, width, eps=EPSILON)
        junction = Junction(width, "decoder", index, COUNT, index // 2, LAYERS, part, norm, before)
        connections.append(residual_connection(name)(junction, **options))
    return connections


def stack(name: str, **options) -> tuple[list[ResidualConnection], nn.Module | None]:
    """As if trained a little, in float64, and the read-out."""
    connections = [shaken(each) for each in connections_of(name, **options)]
    read_out = connections[-1].read_out(connections[-1].junction.norm)
    return connections, None if read_out is None else shaken(read_out)


MIX = [normal(D, D, seed=10 + k) for k in range(COUNT)]


def branch(k: int, h: Tensor, *ways: Tensor) -> Tensor:
    """Of three ways, if there are, each has another part."""
    others = sum(way @ MIX[(k + 1 + i) % COUNT] for i, way in enumerate(ways))
    return torch.tanh(h @ MIX[k] + others)
