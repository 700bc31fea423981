"""How residual connections share out skip path and branch at every junction of a network of tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from comt_cli.analysis.residual_shares import SPAN, shares_of, summed_shares
from comt_cli.analysis.text import Observation
from comt_cli.analysis.watch import watch
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded
from comt_cli.layers.residual.base import ResidualConnection


def has_junction_shares(loaded: Loaded) -> bool:
    """Whether a residual connection of a network of tokens has learned shares."""
    return any(map(shares_of, _connections(loaded)))


def _connections(loaded: Loaded) -> list[ResidualConnection]:
    return [each.connection for blocks in loaded.model.stacks.values() for block in blocks for each in block.branches]


def junction_shares(loaded: Loaded, on: Observation) -> pd.DataFrame:
    """The shares (see `shares_of`) at every junction, stack by stack and in order of depth.

    Rows `stack, layer` (from 1), `part` (the branch), `share`, `mean` and `std` over the tokens, and where there is a
    number for every channel over these too; `tokens` (how many the junction's stack read). Junctions whose connection
    has learned no share have no row.

    Raises:
        UserError: no connection has learned a share (says what the model is); see also `watch`.
    """
    if not has_junction_shares(loaded):
        raise UserError(
            f"the residual connections of {loaded.name} have no learned shares: it holds {loaded.description}"
        )
    connections = _connections(loaded)

    def once() -> Iterator[None]:
        watch(loaded, on.inputs)
        yield

    sums = summed_shares(connections, once())
    rows = [
        (at.stack, at.layer + 1, at.part, name, *each.moments(), len(on.sequences[on.read_by(connection)].pieces))
        for connection, own in zip(connections, sums, strict=True)
        for name, each in own.items()
        for at in (connection.site,)
    ]
    return pd.DataFrame(rows, columns=["stack", "layer", "part", "share", "mean", "std", *SPAN, "tokens"])
