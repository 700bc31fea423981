"""The residual connections of three small blocks, without a model around them."""

from __future__ import annotations

from functools import partial

import torch
from naive import normal, shaken
from torch import Tensor, nn

from comt_cli.layers.residual.base import ResidualConnection, ResidualSite
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
        site = ResidualSite(width, "decoder", index, COUNT, index // 2, LAYERS, part, norm, before)
        connections.append(residual_connection(name)(site, **options))
    return connections


def stack(name: str, **options) -> tuple[list[ResidualConnection], nn.Module | None]:
    """As if trained a little, in float64, and the output aggregation."""
    connections = [shaken(each) for each in connections_of(name, **options)]
    aggregation = connections[-1].output_aggregation(connections[-1].site.norm)
    return connections, None if aggregation is None else shaken(aggregation)


MIX = [normal(D, D, seed=10 + k) for k in range(COUNT)]


def branch(k: int, h: Tensor, *kv: Tensor) -> Tensor:
    """Of three inputs, if there are, each has another part."""
    others = sum(each @ MIX[(k + 1 + i) % COUNT] for i, each in enumerate(kv))
    return torch.tanh(h @ MIX[k] + others)
