"""How the kernels are launched: tile sizes, what a program covers, and the memory that gradients are summed in.

Shapes: T rows, C columns of the product, M of them its sites', S gated sites, R bottleneck columns, G groups of rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton.sums import add_groups

FORWARD_PROGRAMS = 1056
"""A forward kernel has at least so many programs, where it has the tiles: eight for each of an H200's 132
processors."""

PROCESSORS = 132
"""An H200's multiprocessors: those of a device that is no GPU, where kernels are interpreted or only compiled."""

REGISTERS = 65536
"""A multiprocessor's, which the programs that run on it at a time divide among their threads."""

MOST_REGISTERS = 256
"""Those that a thread takes of them where `Options` do not say: the most there are."""

UNGATED_REGISTERS = 64
"""And about those of a backward kernel without a channel gate."""

FEW_ROWS = 64
"""Up to so many rows, as decoding has, `add_norm` has a program for each; with more, programs of 16 fill a GPU."""

WIDEST_ROW = 4096
"""The widest row that such a program keeps in its registers."""

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
"""What the kernels can store."""

LEAST_DOT = 16
"""The smallest side of a product that the tensor cores take."""


LONGEST_VECTOR = 8
"""Elements that a thread moves at once, if it is known that every row starts at a multiple of them."""


@dataclass(frozen=True)
class Options:
    """Rows and channels of a tile, the warps of a program, and how many tiles' loads are under way at a time.

    `registers` are the most that a thread may take where there is a channel gate, if it would take more.
    """

    rows: int
    channels: int
    warps: int
    stages: int
    registers: int | None = None


TILES = {
    "modulate": Options(64, 64, 4, 2),
    "heads": Options(64, 32, 4, 2),
    "swiglu": Options(64, 32, 4, 2),
    "add_norm": Options(16, 128, 4, 2),
    "modulate_backward": Options(64, 32, 4, 2, 168),
    "heads_backward": Options(64, 16, 4, 2),
    "swiglu_backward": Options(64, 16, 4, 2, 168),
    "add_norm_backward": Options(64, 16, 4, 2, 168),
}
"""For 16-bit storage and a bottleneck of at most 16. Those of a backward kernel have 16 rows for each of four warps: a
tensor core product gives a warp 16 rows, so with fewer rows several warps would compute the same logits; and several
programs of four warps on a multiprocessor do not wait at the same barriers, as one of many warps does. 168 registers a
thread let three such programs run instead of two: at models' widths, on Hopper (compute capability 9.0), up to 15 are
spilled for that around a row, none along it. heads_backward would spill 100, some along the rows of 48-wide heads.
These are counts of compiled code, not measurements (`results/bench/hopper-counts.md`). Tiles of add_norm have few rows,
since a program returns to its rows, which should still be in the cache by then."""


def options(kernel: str, width: int, rank: int, dtype: torch.dtype, rows: int) -> Options:
    """The options of a kernel, by its name, for `rows` rows of sites `width` wide with a bottleneck of `rank`.

    A measured table can take this function's place.
    """
    narrow, forward = rank <= LEAST_DOT, not kernel.endswith("_backward")
    if kernel == "add_norm" and rows <= FEW_ROWS and width <= WIDEST_ROW and narrow:
        channels = max(LEAST_DOT, triton.next_power_of_2(width))
        return Options(1, channels, max(1, channels // 256), 1)  # 8 channels a thread, or threads double each other
    if dtype == torch.float32:  # products in fp32 are not for the tensor cores, and take more registers
        if not narrow:
            return Options(16, 16, 8, 1)
        return Options(32, 32, 4, 2) if forward else Options(16, 64 if kernel == "add_norm_backward" else 32, 4, 2)
    if not narrow:
        return Options(32 if rank <= 64 else 16, 16, 8, 1)
    if kernel == "add_norm" and width >= 1024:
        return Options(16, 256, 8, 2)
    return TILES[kernel]


@dataclass(frozen=True)
class Site:
    """Where a site stands: its columns of the product, its u's columns, its rows of the packed Wc and ws."""

    first: int
    width: int
    gated: bool
    u: int
    channel: int
    scalar: int

    @property
    def columns(self) -> slice:
        """Its columns of the product."""
        return slice(self.first, self.first + self.width)


def sites(modulation: Modulation, widths: Sequence[int]) -> list[Site]:
    """The sites of a product. `u` counts from the first u column."""
    found, first, channel, scalar = [], 0, 0, 0
    for width, gated in zip(widths, modulation.gated, strict=True):
        found.append(Site(first, width, gated, scalar * modulation.rank, channel, scalar))
        first, channel, scalar = first + width, channel + width * gated, scalar + gated
    return found


class Gates:
    """The sites of a product, and their gates as the kernels want them: without gaps between the rows.

    Attributes:
        width: columns of the sites, M.
        used: of the sites and of what the gates read, M + S R.
    """

    def __init__(self, modulation: Modulation, widths: Sequence[int]) -> None:
        self.Wc, self.ws = (None if W is None else W.contiguous() for W in (modulation.Wc, modulation.ws))
        self.scale, self.rank = modulation.scale, modulation.rank
        self.sites, self.width = sites(modulation, widths), sum(widths)
        self.used = self.width + modulation.columns

    def matrices(self, site: Site) -> tuple[Tensor | None, Tensor | None]:
        """The site's rows of Wc and ws; None where it has no such gate."""
        Wc_NR = self.Wc[site.channel :] if site.gated and self.Wc is not None else None
        ws_1R = self.ws[site.scalar :] if site.gated and self.ws is not None else None
        return Wc_NR, ws_1R

    def source(self, product_TC: Tensor, site: Site) -> tuple[Tensor | None, ...]:
        """What a kernel reads of a site: its z and its u in the product, and its rows of Wc and ws."""
        return product_TC[:, site.columns], product_TC[:, self.width + site.u :], *self.matrices(site)

    def constants(self, tile: Options, *activations: Tensor, channels: Sequence[int] = ()) -> dict[str, Any]:
        """What all kernels are compiled for. UNIT divides the row strides of the `activations`, and `channels`."""
        return {
            "R": self.rank,
            "BR": max(LEAST_DOT, triton.next_power_of_2(self.rank)),
            "TYPE": TYPES[activations[0].dtype],
            "BT": tile.rows,
            "BN": tile.channels,
            "UNIT": math.gcd(LONGEST_VECTOR, *(tensor.stride(0) for tensor in activations), *channels),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            "maxnreg": None if self.Wc is None else tile.registers,
        }


def unit_stride(tensor: Tensor) -> Tensor:
    """The tensor, or a copy whose columns lie side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def spans(rows: int, channels: int, tile: Options, sites: int = 1) -> tuple[int, int]:
    """How many programs share a row block's channels in a forward kernel, and the tiles of each."""
    tiles = triton.cdiv(channels, tile.channels)
    blocks = triton.cdiv(rows, tile.rows) * sites
    span = triton.cdiv(tiles, min(tiles, triton.cdiv(FORWARD_PROGRAMS, blocks)))
    return triton.cdiv(tiles, span), span


@functools.cache
def processors(device: torch.device) -> int:
    """The multiprocessors of a GPU."""
    if device.type != "cuda":
        return PROCESSORS
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def backward_programs(device: torch.device, tile: Options, gates: Gates) -> int:
    """How many programs a backward kernel has at most: as many as run at a time.

    More would cost where there is a channel gate: every program writes a dWc, which are read again to be added.
    """
    registers = UNGATED_REGISTERS if gates.Wc is None else tile.registers or MOST_REGISTERS
    return processors(device) * max(1, REGISTERS // (32 * tile.warps * registers))


def groups(rows_TN: Tensor, tile: Options, gates: Gates, sites: int = 1) -> tuple[int, int]:
    """How many groups of a tensor's rows a backward kernel has, and the row blocks of each.

    Each group sums a dWc of its own; together they stay below `MOST_SUMS` bytes.
    """
    blocks = triton.cdiv(len(rows_TN), tile.rows)
    programs = backward_programs(rows_TN.device, tile, gates)
    if gates.Wc is not None and gates.Wc.numel():
        programs = max(1, min(programs, MOST_SUMS * sites // (4 * gates.Wc.numel())))
    each = max(1, triton.cdiv(blocks * sites, programs))
    return triton.cdiv(blocks, each), each


MOST_SUMS = 2**28
"""Bytes that all groups' sums may take: a wide bottleneck on a wide projection would otherwise take gigabytes."""


class Sums:
    """dWc and dws in parts: every group of rows fills its own, and `total` adds them in a fixed order."""

    def __init__(self, gates: Gates, groups: int) -> None:
        self.width = gates.width
        self.dWc_GMR, self.dws_GSR = (
            None if weight is None else weight.new_empty((groups, *weight.shape), dtype=torch.float32)
            for weight in (gates.Wc, gates.ws)
        )

    def target(self, dproduct_TC: Tensor, site: Site) -> tuple[Tensor | int | None, ...]:
        """What a kernel writes of a site: its dz and its du; its rows of dWc in the first group, and how far they are
        from one group to the next; and the same of dws."""
        dWc = None if self.dWc_GMR is None or not site.gated else self.dWc_GMR[:, site.channel :]
        dws = None if self.dws_GSR is None or not site.gated else self.dws_GSR[:, site.scalar :]
        sums = dWc, 0 if dWc is None else dWc.stride(0), dws, 0 if dws is None else dws.stride(0)
        return dproduct_TC[:, site.columns], dproduct_TC[:, self.width + site.u :], *sums

    def total(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """dWc and dws; tensors of shape (0,), where `like` is, for what there is not."""
        dWc, dws, *_ = self._totals(like)
        return dWc, dws

    def total_with(self, like: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and in the same launch the sum of `other`, parts with the groups first."""
        dWc, dws, total = self._totals(like, other)
        return dWc, dws, total

    def _totals(self, like: Tensor, *others: Tensor) -> list[Tensor]:
        parts = (self.dWc_GMR, self.dws_GSR, *others)
        sums = iter(add_groups([part for part in parts if part is not None]))
        return [like.new_empty(0, dtype=torch.float32) if part is None else next(sums) for part in parts]
