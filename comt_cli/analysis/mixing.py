"""Mixtures of streams, of earlier outputs, and of keys and values of earlier blocks, in one forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from comt_cli.analysis.observed import hooked
from comt_cli.exchange.loaded import Loaded
from comt_cli.layers.learned import wide
from comt_cli.layers.residual.base import Branch, OutputAggregation, ResidualConnection, State
from comt_cli.layers.shared_values import SharedValues
from comt_cli.models.base import Model, TokenBlock

READ_OUT = "read-out"
"""The part of what is read behind a stack's last block."""
DISPERSION = "dispersion"
"""Distance of the streams at a residual add from their mean, |H - mean| / |H|: 0 where all are one. SiameseNorm's two
streams are taken behind the norms that they are read through."""


class Mixed(NamedTuple):
    """The mixtures at one place of a network: weights by name, as `ResidualConnection.mixing`, and `DISPERSION`,
    [B, T, 1], where there are several streams. `layer` is from 0; a read-out's is the last."""

    stack: str
    layer: int
    part: str
    weights: dict[str, Tensor]


def mixes(loaded: Loaded) -> bool:
    """Whether a residual connection of a network of tokens, or its attention, has mixing weights."""
    if any(type(each).mixing is not ResidualConnection.mixing for each in _connections(loaded.model)):
        return True
    return any(shared.mixing() for _, _, shared in _shared_values(loaded.model))


def _connections(model: Model) -> list[ResidualConnection]:
    blocks = [block for stack in model.stacks.values() for block in stack if isinstance(block, TokenBlock)]
    return [branch.connection for block in blocks for branch in block.branches]


def _shared_values(model: Model) -> list[tuple[str, int, SharedValues]]:
    """The modules that mix values of earlier blocks into attention, with their stack and block (from 0)."""
    return [
        (stack, layer, module)
        for stack, blocks in model.stacks.items()
        for layer, block in enumerate(blocks)
        for module in block.modules()
        if isinstance(module, SharedValues)
    ]


def mixtures(model: Model, run: Callable[[], object]) -> list[Mixed]:
    """All mixtures of a network when `run` runs it once, in the order of its blocks."""
    connections = _connections(model)
    aggregations = [module for module in model.modules() if isinstance(module, OutputAggregation)]
    read: dict[OutputAggregation, State] = {}

    def reading(aggregation: OutputAggregation, inputs: tuple[State, ...], _: object) -> None:
        read[aggregation] = inputs[0]

    with recorded_states(connections) as states, hooked((each, reading) for each in aggregations):
        run()
    with torch.no_grad():
        found = [Mixed(stack, layer, "attention", each.mixing()) for stack, layer, each in _shared_values(model)]
        for connection, state in zip(connections, states, strict=True):
            at, weights = connection.site, dict(connection.mixing(state))
            streams_BTnD = connection.side_by_side(state)
            if streams_BTnD is not None:
                streams_BTnD = wide(streams_BTnD)
                apart_BTnD = streams_BTnD - streams_BTnD.mean(-2, keepdim=True)
                weights[DISPERSION] = (apart_BTnD.norm(dim=(-1, -2)) / streams_BTnD.norm(dim=(-1, -2)))[..., None]
            found.append(Mixed(at.stack, at.layer, at.part, weights))
        for aggregation, state in read.items():
            at = aggregation.site
            found.append(Mixed(at.stack, at.layer, READ_OUT, dict(aggregation.mixing(state))))
    order = list(model.stacks)
    return sorted(found, key=lambda place: (order.index(place.stack), place.layer))


@contextlib.contextmanager
def recorded_states(connections: Sequence[ResidualConnection]) -> Iterator[list[State]]:
    """In this context the input states of the connections are collected, in their order."""
    states: list[State] = []

    def recording(connection: ResidualConnection) -> None:
        step = connection.step

        def recorded(state: State, branch: Branch) -> State:
            states.append(state)
            return step(state, branch)

        connection.step = recorded  # type: ignore[method-assign]

    for connection in connections:
        recording(connection)
    try:
        yield states
    finally:
        for connection in connections:
            del connection.step
