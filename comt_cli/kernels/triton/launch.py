"""Launches of the kernels: the places of sites and gates, the division of rows, and a launch that costs little.

Shapes: T rows, C columns of the product, M of them its sites', S gated sites, R bottleneck columns, G groups of rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton.tiles import MOST_CHANNEL_RANK, Kind, Tile, tile

PROCESSORS = 132
"""An H200's multiprocessors: those of a device that is no GPU, where kernels are interpreted or only compiled."""

MOST_GROUPS = 65535
"""Of a grid's second dimension (CUDA programming guide, table of compute capabilities)."""

GATED_TILE = 32
"""Channels of a tile that has a channel gate (see `gates`)."""

LONGEST_VECTOR = 8
"""Elements that a thread moves at once, if it is known that every row starts at a multiple of them."""


class Site(NamedTuple):
    """The place of a site: its columns of the product, its u's columns behind all sites, its rows of Wc and of ws."""

    first: int
    width: int
    gated: bool
    u: int
    channel: int
    scalar: int


@functools.cache
def _sites(widths: tuple[int, ...], gated: tuple[bool, ...], rank: int) -> tuple[Site, ...]:
    found, first, channel, scalar = [], 0, 0, 0
    for width, has in zip(widths, gated, strict=True):
        found.append(Site(first, width, has, scalar * rank, channel, scalar))
        first, channel, scalar = first + width, channel + width * has, scalar + has
    return tuple(found)


class Layout:
    """The sites of a product, and their gates as the kernels want them: without gaps between the rows.

    Attributes:
        width: columns of the sites, M.
        used: of the sites and of what the gates read, M + S R.
        channels: rows of Wc; 0 without a channel gate.
        lanes: 8 with a channel gate, else R rounded up to a power of two.
    """

    def __init__(self, modulation: Modulation, widths: Sequence[int]) -> None:
        self.Wc, self.ws = (None if W is None else W.contiguous() for W in (modulation.Wc, modulation.ws))
        self.scale, self.rank = modulation.scale, modulation.rank
        self.sites = _sites(tuple(widths), tuple(modulation.gated), modulation.rank)
        self.width = sum(widths)
        self.channels = 0 if self.Wc is None else len(self.Wc)
        self.used = self.width + modulation.columns
        gated = any(modulation.gated)
        self.kind: Kind = "none" if not gated else "scalar" if self.Wc is None else "channel"
        if self.kind == "channel" and self.rank > MOST_CHANNEL_RANK:
            raise ValueError(f"a channel gate of rank {self.rank}: the kernels take at most {MOST_CHANNEL_RANK}")
        self.lanes = MOST_CHANNEL_RANK if self.kind == "channel" else max(2, triton.next_power_of_2(self.rank))

    def gate(self, site: Site, u: int | None = None) -> tuple[Any, ...]:
        """A kernel's arguments for a site's gate: the first column of its u, in the product or behind column `u` of
        another tensor; Wc and its first row there; ws and its row. None stands for a matrix that a site lacks."""
        Wc, ws = (self.Wc, self.ws) if site.gated else (None, None)
        return (self.width if u is None else u) + site.u, Wc, site.channel, ws, site.scalar

    def tile(self, kernel: str, dtype: torch.dtype) -> Tile:
        """The tile of a kernel, by its name. Those of channel gates are made for bf16: in other types a gate takes more
        registers, since products in fp32 are not for the tensor cores, and sigmoids are exact."""
        found = tile(kernel, self.kind, max(site.width for site in self.sites))
        if dtype == torch.bfloat16 or self.kind != "channel":
            return found
        return found._replace(rows=16, warps=1, registers=None)

    def run(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        *arguments: Any,
        tile: Tile,
        rows: Sequence[Tensor],
        columns: Sequence[int],
        **constants: Any,
    ) -> None:
        """Launches a kernel with its arguments, the gates' scale last. A program takes its channels W at a time. UNIT
        divides the row strides of the tensors `rows`, and these columns."""
        unit = math.gcd(LONGEST_VECTOR, *(tensor.stride(0) for tensor in rows), *columns)
        width = GATED_TILE if self.kind == "channel" else tile.channels
        constants = {"W": width, "R": self.rank, "BL": self.lanes, "UNIT": unit, **constants}
        run(kernel, grid, *arguments, self.scale, tile=tile, **constants)


def cdiv(number: int, by: int) -> int:
    """The quotient rounded up. Triton's own function costs the host a microsecond more."""
    return -(-number // by)


@functools.cache
def processors(device: torch.device) -> int:
    """The multiprocessors of a GPU."""
    if device.type != "cuda":
        return PROCESSORS
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def groups(rows_TN: Tensor, tile: Tile, columns: int = 1) -> tuple[int, int]:
    """The number of groups of a tensor's rows, and the row blocks of each.

    As many as run at a time where `columns` programs share a row block. Where programs do not stay, each has one block,
    or a few if there would be more groups than a grid takes.
    """
    blocks = cdiv(len(rows_TN), tile.rows)
    programs = processors(rows_TN.device) * tile.resident // columns if tile.resident else MOST_GROUPS
    each = cdiv(max(1, blocks), max(1, programs))
    return cdiv(blocks, each), each


_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def run(kernel: Any, grid: tuple[int, ...], *arguments: Any, tile: Tile, **constants: Any) -> None:
    """Launches a kernel with its arguments, which are numbers, or tuples of tensors, numbers and None, the first of
    them tensors; and with its constants by name. Without programs, as for no rows, nothing is launched.

    Triton looks at each argument anew at every launch, for some 50 us of the host's time. What it looks at are types,
    multiples of 16 in addresses and numbers, and constants. So these are a key, under which what it compiled is kept.
    """
    if 0 in grid:
        return
    device = arguments[0][0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            run(kernel, grid, *arguments, tile=tile, **constants)
        return
    looked_at = [kernel, device.index, tile, *constants.values()]
    _look(arguments, looked_at)
    key = tuple(looked_at)
    known = _compiled.get(key)
    if known is None:
        constants = {"BT": tile.rows, "BN": tile.channels, **constants}
        named = {name: constants[name] for name in kernel.arg_names[len(arguments) :]}
        compiled = kernel[grid](*arguments, **named, num_warps=tile.warps, num_stages=1, maxnreg=tile.registers)
        if compiled is not None:  # nothing was compiled where it is interpreted
            _compiled[key] = compiled, tuple(named.values())
        return
    compiled, values = known
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    first, second, third = (*grid, 1, 1)[:3]
    how = compiled.function, compiled.packed_metadata, None, None, None
    compiled.run(first, second, third, stream, *how, *arguments, *values)


def _look(arguments: Sequence[Any], found: list[Any]) -> None:
    """Appends what Triton may compile another kernel for."""
    for each in arguments:
        if type(each) is tuple:
            _look(each, found)
        elif type(each) is int:
            kind = 1 if each == 1 else 16 if each % 16 == 0 else 0
            found.append(kind if each < 2**31 else kind + 64)
        elif isinstance(each, Tensor):
            found.append(each.dtype)
            found.append(each.data_ptr() % 16)
        else:
            found.append(type(each))
