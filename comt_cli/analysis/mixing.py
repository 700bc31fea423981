"""How residual connections mix several streams, or what earlier blocks put out, at every junction of a language
model, and how its attention mixes keys and values of earlier blocks with its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from torch import Tensor

from comt_cli.analysis.text import Observation
from comt_cli.analysis.watch import watch
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded
from comt_cli.layers.residual.base import Branch, ResidualConnection, State, Streams
from comt_cli.layers.shared_values import SharedValues

_MATRICES = ("mix", "write", "heads")
"""Weights with a line for every target."""


def mixes(loaded: Loaded) -> bool:
    """Whether a residual connection of a network of tokens, or its attention, says what it mixes."""
    by_connections = any(type(each).mixing is not ResidualConnection.mixing for each in _connections(loaded))
    return by_connections or any(shared.mixing() for _, _, shared in _shared_values(loaded))


def _connections(loaded: Loaded) -> list[ResidualConnection]:
    return [joint.connection for blocks in loaded.model.stacks.values() for block in blocks for joint in block.joints]


def _shared_values(loaded: Loaded) -> list[tuple[str, int, SharedValues]]:
    """What attention reads of earlier blocks, with the stack and the block from 0 that it is in."""
    return [
        (stack, layer, module)
        for stack, blocks in loaded.model.stacks.items()
        for layer, block in enumerate(blocks)
        for module in block.modules()
        if isinstance(module, SharedValues)
    ]


def mixing(loaded: Loaded, on: Observation) -> pd.DataFrame:
    """The weights of all mixtures on the observed tokens.

    Rows `stack, layer` (from 1), `part` (the branch), `weight` (its name), `target` and `source` (from 0), `mean` and
    `std` over the tokens; and where there are several streams `dispersion`, how far those that the junction is handed
    are from their mean, |H - mean| / |H|: 0 where all are one, and the mechanism is dead.

    Raises:
        UserError: nothing is mixed (says what the model is); see also `watch`.
    """
    if not mixes(loaded):
        raise UserError(f"{loaded.name} mixes no streams, outputs or values: it holds {loaded.description}")
    connections = _connections(loaded)
    with recorded_states(connections) as states:
        watch(loaded, on.inputs)
    found: list[tuple[str, int, str, dict[str, Tensor]]] = []
    with torch.no_grad():
        for connection, state in zip(connections, states, strict=True):
            at, weights = connection.junction, dict(connection.mixing(state))
            if isinstance(state, Streams):
                apart_BTnD = state.x - state.x.mean(-2, keepdim=True)
                weights["dispersion"] = (apart_BTnD.norm(dim=(-1, -2)) / state.x.norm(dim=(-1, -2)))[..., None]
            found.append((at.stack, at.layer, at.part, weights))
        found += [(stack, layer, "attention", shared.mixing()) for stack, layer, shared in _shared_values(loaded)]
    rows = []
    for stack, layer, part, each in found:
        for name, weight in each.items():
            numbers = _by_token(weight, 2 if name in _MATRICES else 1)
            means, spreads = numbers.mean(0), numbers.std(0, unbiased=False)
            for target in range(means.shape[0]):
                for source in range(means.shape[1]):
                    number = means[target, source].item(), spreads[target, source].item()
                    rows.append((stack, layer + 1, part, name, target, source, *number))
    return pd.DataFrame(rows, columns=["stack", "layer", "part", "weight", "target", "source", "mean", "std"])


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
