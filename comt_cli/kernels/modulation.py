"""The gates of one matrix product, as arguments of the kernels. Shapes as in `reference`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Bottleneck(NamedTuple):
    """One gate: `scale * sigmoid(p Wc^T) * scale * sigmoid(p ws^T)`, p = sigmoid(u). Wc: [N, R] or None, ws: [1, R] or
    None."""

    Wc: Tensor | None
    ws: Tensor | None
    scale: float


class Modulation(NamedTuple):
    """The gates of all sites of a product: `Wc`, [Mg, R], and `ws`, [S, R], hold those of the gated sites under each
    other. Copies, not the parameters themselves: they may be used after the parameters were given back (FSDP)."""

    Wc: Tensor | None
    ws: Tensor | None
    scale: float
    rank: int
    gated: tuple[bool, ...]


def modulation_of(gates: Sequence[Bottleneck | None]) -> Modulation | None:
    """One `Modulation` for the gates of a product's sites (None: no gate there); None if they differ in kind."""
    present = [gate for gate in gates if gate is not None]
    gated = tuple(gate is not None for gate in gates)
    if not present:
        return Modulation(None, None, 1.0, 0, gated)
    if len({(gate.Wc is None, gate.ws is None, gate.scale, _rank(gate)) for gate in present}) > 1:
        return None
    channel = [gate.Wc for gate in present if gate.Wc is not None]
    scalar = [gate.ws for gate in present if gate.ws is not None]
    return Modulation(
        torch.cat(channel) if channel else None,
        torch.cat(scalar) if scalar else None,
        present[0].scale,
        _rank(present[0]),
        gated,
    )


def _rank(gate: Bottleneck) -> int:
    matrix = gate.Wc if gate.Wc is not None else gate.ws
    assert matrix is not None
    return matrix.shape[1]
