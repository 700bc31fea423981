"""How residual connections mix several streams, or what earlier blocks put out, at every junction of a language
model and behind the last, and how its attention mixes keys and values of earlier blocks with its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from comt_cli.analysis.text import Observation
from comt_cli.analysis.watch import hooked, watch
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded
from comt_cli.layers.learned import wide
from comt_cli.layers.residual.base import Branch, OutputAggregation, ResidualConnection, State
from comt_cli.layers.shared_values import SharedValues
from comt_cli.models.base import Model, TokenBlock

READ_OUT = "read-out"
"""The part that stands for what is made of the state behind a stack's last block."""
DISPERSION = "dispersion"
"""How far the streams that a junction is handed are from their mean, |H - mean| / |H|: 0 where all are one, and the
mechanism is dead. Of SiameseNorm's two, whose sizes tell nothing, as they are read, behind their norms."""
_MATRICES = ("mix", "write", "heads")
"""Weights with a line for every target."""


class Mixed(NamedTuple):
    """What one place of a network mixes: weights by name, as `ResidualConnection.mixing`, and `DISPERSION`, [B, T, 1],
    where there are several streams. Of a read-out `layer`, from 0, is the last."""

    stack: str
    layer: int
    part: str
    weights: dict[str, Tensor]


def mixes(loaded: Loaded) -> bool:
    """Whether a residual connection of a network of tokens, or its attention, says what it mixes."""
    by_connections = any(type(each).mixing is not ResidualConnection.mixing for each in _connections(loaded.model))
    return by_connections or any(shared.mixing() for _, _, shared in _shared_values(loaded.model))


def _connections(model: Model) -> list[ResidualConnection]:
    blocks = [block for stack in model.stacks.values() for block in stack if isinstance(block, TokenBlock)]
    return [branch.connection for block in blocks for branch in block.branches]


def _shared_values(model: Model) -> list[tuple[str, int, SharedValues]]:
    """What attention reads of earlier blocks, with the stack and the block from 0 that it is in."""
    return [
        (stack, layer, module)
        for stack, blocks in model.stacks.items()
        for layer, block in enumerate(blocks)
        for module in block.modules()
        if isinstance(module, SharedValues)
    ]


def mixing(loaded: Loaded, on: Observation) -> pd.DataFrame:
    """The weights of all mixtures on the observed tokens, in the order in which they are met.

    Rows `stack, layer` (from 1), `part` (the branch, or `READ_OUT`), `weight` (its name, or `DISPERSION`), `target` and
    `source` (from 0), `mean` and `std` over the tokens.

    Raises:
        UserError: nothing is mixed (says what the model is); see also `watch`.
    """
    if not mixes(loaded):
        raise UserError(f"{loaded.name} mixes no streams, outputs or values: it holds {loaded.description}")
    rows = []
    for place in mixtures(loaded.model, lambda: watch(loaded, on.inputs)):
        for name, weight in place.weights.items():
            numbers = _by_token(weight, 2 if name in _MATRICES else 1)
            means, spreads = numbers.mean(0), numbers.std(0, unbiased=False)
            for target in range(means.shape[0]):
                for source in range(means.shape[1]):
                    number = means[target, source].item(), spreads[target, source].item()
                    rows.append((place.stack, place.layer + 1, place.part, name, target, source, *number))
    return pd.DataFrame(rows, columns=["stack", "layer", "part", "weight", "target", "source", "mean", "std"])


def mixtures(model: Model, run: Callable[[], object]) -> list[Mixed]:
    """What every place of a network mixes when `run` runs it once, in the order of its blocks."""
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


def _by_token(weights: Tensor, dimensions: int) -> Tensor:
    """[tokens, targets, sources], one token where they do not depend on it."""
    weights = weights.double().cpu()
    if dimensions == 1:
        weights = weights.unsqueeze(-2)
    return weights.reshape(-1, *weights.shape[-2:])


@contextlib.contextmanager
def recorded_states(connections: Sequence[ResidualConnection]) -> Iterator[list[State]]:
    """In this context the states that the connections are handed are collected, in their order."""
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
