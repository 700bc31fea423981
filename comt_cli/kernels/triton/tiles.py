"""The tiles of the kernels: the default of each, those that `comt bench kernels --tune` tries, and those it found.

Kinds of gates: `none`, `scalar` (CoMT's), `channel` (Transponder's, with or without a scalar factor).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["none", "scalar", "channel"]

MOST_CHANNEL_RANK = 8
"""The widest bottleneck of a channel gate: p and what its rounding lost are 16 columns, the depth of one product."""


class Tile(NamedTuple):
    """Rows and channels that a program handles at a time, and its warps.

    rows: 0 stands for a kernel of whole rows, which takes as many as make up `channels` elements.
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

_WALKERS = (Tile(32, 64, 2, 4), Tile(16, 64, 1, 8))
_WIDE = (Tile(8, 512, 4), Tile(16, 256, 4), Tile(32, 128, 4))
_WIDE_WALKERS = (Tile(16, 128, 4, 4), Tile(16, 256, 4, 4), Tile(32, 128, 4, 2))

TILES: dict[tuple[str, Kind], tuple[Tile, ...]] = {
    ("heads", "channel"): (Tile(16, 64, 1, 16, 128), Tile(16, 128, 1, 12, 168), Tile(32, 64, 2, 8, 128)),
    ("heads", "scalar"): _WIDE,
    ("heads", "none"): _WIDE,
    ("heads_backward", "channel"): (Tile(32, 64, 2, 6, 168), Tile(16, 64, 1, 12, 168), Tile(16, 64, 1, 8)),
    ("heads_backward", "scalar"): (Tile(16, 128, 4, 8), Tile(16, 256, 4, 4)),
    ("heads_backward", "none"): (Tile(16, 128, 4, 8), Tile(16, 256, 4, 4)),
    ("swiglu", "channel"): (Tile(32, 64, 2, 8, 128), Tile(16, 64, 1, 16, 128)),
    ("swiglu", "scalar"): _WIDE,
    ("swiglu", "none"): _WIDE,
    ("swiglu_backward", "channel"): _WALKERS,
    ("swiglu_backward", "scalar"): _WIDE_WALKERS,
    ("swiglu_backward", "none"): (Tile(16, 256, 4, 4), Tile(32, 128, 4, 2)),
    ("add_norm", "channel"): (Tile(16, 128, 1), Tile(32, 64, 2)),
    ("add_norm", "scalar"): (Tile(0, 2048, 4), Tile(0, 4096, 4)),
    ("add_norm", "none"): (Tile(0, 2048, 4), Tile(0, 4096, 4)),
    ("add_norm_backward", "channel"): _WALKERS,
    ("add_norm_backward", "scalar"): (Tile(0, 8192, 16, 1), Tile(0, 4096, 4, 8), Tile(0, 1024, 4, 8)),
    ("add_norm_backward", "none"): (Tile(0, 2048, 4, 8), Tile(0, 4096, 4, 8), Tile(0, 1024, 4, 8)),
    ("modulate", "channel"): (Tile(32, 64, 2, 8, 128), Tile(16, 64, 1, 16, 128)),
    ("modulate", "scalar"): _WIDE,
    ("modulate", "none"): _WIDE,
    ("modulate_backward", "channel"): _WALKERS,
    ("modulate_backward", "scalar"): _WIDE_WALKERS,
    ("modulate_backward", "none"): _WIDE_WALKERS,
}
"""Of each kernel the tiles to try; the first is the default. At 60m it was the quickest of its prototype's tiles that
an H200 measured (results/bench/nvidia-h200/prototype-kernels.csv), where there are any such. With a channel gate a warp
has 16 rows: with fewer, several would compute the same logits, and 64 rows in four warps would make products of a warp
group."""

_tuned: dict[Key, Tile] = {}


def use(tuned: Mapping[Key, Tile]) -> None:
    """Takes these tiles in place of the defaults, from now on, in this process."""
    _tuned.clear()
    _tuned.update(tuned)


def tile(kernel: str, kind: Kind, width: int) -> Tile:
    """The tile of a launch."""
    return _tuned.get((kernel, kind, width)) or TILES[kernel, kind][0]
