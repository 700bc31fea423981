"""Residual connections: how a block joins its skip path and its branch. One family a file; `methods.base` has the names
that recipes know them by."""

from __future__ import annotations

from comt_cli.layers.residual.base import (
    Branch,
    Junction,
    Pending,
    ResidualConnection,
    ResidualFactory,
    State,
    normalised,
    settled,
    stream_of,
)

__all__ = [
    "Branch",
    "Junction",
    "Pending",
    "ResidualConnection",
    "ResidualFactory",
    "State",
    "normalised",
    "settled",
    "stream_of",
]
