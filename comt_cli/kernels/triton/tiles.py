"""The tiles of the kernels: the default of each, those that `comt bench kernels --tune` tries, and those it found.

Kinds of gates: `none`, `scalar` (CoMT's), `channel` (Transponder's, with or without a scalar factor).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["none", "scalar", "channel"]


class Tile(NamedTuple):
    """Rows and channels that a program handles at a time, and its warps.

    resident: programs launched for each multiprocessor, which walk down the rows; 0: one program for every tile.
    registers: the most that a thread may take; None: as many as there are.
    """

    rows: int
    channels: int
    warps: int
    resident: int = 0
    registers: int | None = None


Key = tuple[str, Kind, int]
"""A kernel's name (`swiglu`, `swiglu_backward` ...), its gates, and the width of its widest site."""

TILES: dict[tuple[str, Kind], tuple[Tile, ...]] = {}
"""Of each kernel the tiles to try; the first is the default."""

_tuned: dict[Key, Tile] = {}


def use(tuned: Mapping[Key, Tile]) -> None:
    """Takes these tiles in place of the defaults, from now on, in this process."""
    _tuned.clear()
    _tuned.update(tuned)


def tile(kernel: str, kind: Kind, width: int) -> Tile:
    """The tile of a launch."""
    return _tuned.get((kernel, kind, width)) or TILES[kernel, kind][0]
