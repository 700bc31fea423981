"""The end of an operation's backward pass: du and dws from parts of e Wc and rowsum(h), and sums over groups of
rows.

Shapes: G groups, K elements of one group's part; the others as in `gates`, and B blocks of channels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.gates import load_p, load_ws, sigmoid
from comt_cli.kernels.triton.tiles import Tile

MOST = 3
"""Tensors of one launch."""

BLOCK_GROUPS, BLOCK_COLUMNS = 64, 32


def add_groups(parts: Sequence[Tensor]) -> list[Tensor]:
    """The sum over the first dimension of each tensor, [G, ...] in fp32, in a fixed order; zeros where G is 0. There
    are `MOST` tensors at most."""
    if not parts:
        return []
    assert len(parts) <= MOST
    totals = [part.new_empty(part.shape[1:]) for part in parts]
    columns = max(total.numel() for total in totals)
    missing = [None] * (MOST - len(parts))
    most = max(len(part) for part in parts)
    launch.run(
        _add_groups,
        (launch.cdiv(columns, BLOCK_COLUMNS), len(parts)),
        (*(part.contiguous() for part in parts), *missing),
        (*totals, *missing),
        (*(total.numel() for total in totals), *missing),
        (*(len(part) for part in parts), *missing),
        tile=Tile(min(BLOCK_GROUPS, triton.next_power_of_2(max(1, most))), BLOCK_COLUMNS, 4),
    )
    return totals


@triton.jit
def _add_groups(parts, totals, sizes, groups, BT: tl.constexpr, BN: tl.constexpr):
    """BN columns of one tensor."""
    which = tl.program_id(1)
    if which == 0:
        _add_columns(parts[0], totals[0], sizes[0], groups[0], BT, BN)
    if parts[1] is not None and which == 1:
        _add_columns(parts[1], totals[1], sizes[1], groups[1], BT, BN)
    if parts[2] is not None and which == 2:
        _add_columns(parts[2], totals[2], sizes[2], groups[2], BT, BN)


@triton.jit
def _add_columns(parts_ptr, total_ptr, K, G, BT: tl.constexpr, BN: tl.constexpr):
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    inside_K = columns < K
    total = tl.zeros([BT, BN], tl.float32)
    for first in range(0, G, BT):
        groups = first + tl.arange(0, BT)
        inside = (groups < G)[:, None] & inside_K[None, :]
        at = groups.to(tl.int64)[:, None] * K + columns[None, :]
        total += tl.load(parts_ptr + at, mask=inside, other=0.0)
    tl.store(total_ptr + columns, tl.sum(total, 0), mask=inside_K)


class Parts:
    """Parts that an operation's backward kernel, whose programs own blocks of channels, leaves to be added.

    Attributes:
        dWc_GMR: dWc of each group of rows; None without a channel gate.
        dp_BTR, total_BT: e Wc and rowsum(h) of each block of channels, those of the first gated site first. e Wc is
            rounded to bf16 where activations have 16 bits, as the factors of its sums are.
        columns, firsts: the blocks of channels of each site, and the first of them.
        groups, blocks: of rows, and the row blocks of each.
    """

    def __init__(
        self, layout: launch.Layout, tile: Tile, like_TC: Tensor, together: Callable[[Sequence[int]], int] = max
    ) -> None:
        """`together`: how many programs share a row block in one launch, of the blocks of each site."""
        new, fp32 = like_TC.new_empty, torch.float32
        T, R, Wc, ws = len(like_TC), layout.rank, layout.Wc, layout.ws
        self.layout, self.tile = layout, tile
        self.columns = [launch.cdiv(site.width, tile.channels) for site in layout.sites]
        self.groups, self.blocks = launch.groups(like_TC, tile, together(self.columns))
        counts = [count * site.gated for count, site in zip(self.columns, layout.sites, strict=True)]
        *self.firsts, B = itertools.accumulate(counts, initial=0)
        self.ends = tuple(itertools.accumulate(filter(None, counts)))
        self.dWc_GMR = None if Wc is None else new((self.groups, *Wc.shape), dtype=fp32)
        narrow = fp32 if like_TC.dtype == fp32 else torch.bfloat16
        self.dp_BTR = None if Wc is None else new((B, T, R), dtype=narrow)
        self.total_BT = None if ws is None else new((B, T), dtype=fp32)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The tensors that a kernel writes: dWc, and the parts."""
        return self.dWc_GMR, (self.dp_BTR, self.total_BT)

    def finish(self, u_TC: Tensor, u: int, dproduct_TC: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Writes du, and zeros into the columns of dproduct behind it. Returns dWc, dws (of no elements where there
        is no such matrix), and the sums over the groups of `others`. The u begin at column `u` of u_TC."""
        layout, T = self.layout, len(dproduct_TC)
        S, R = len(self.ends), layout.rank
        dws_GSR = None
        if S:
            BL = layout.lanes
            tile = Tile(min(128, 2048 // BL), 0, 4)
            programs = launch.cdiv(T, tile.rows)
            dws_GSR = None if layout.ws is None else dproduct_TC.new_empty((programs, S, R), dtype=torch.float32)
            launch.run(
                _finish,
                (programs, S),
                (u_TC, dproduct_TC),
                (self.dp_BTR, self.total_BT),
                (layout.ws, dws_GSR),
                (u_TC.stride(0), dproduct_TC.stride(0)),
                (T, u, layout.width, layout.used, dproduct_TC.shape[1]),
                self.ends,
                tile=tile,
                R=R,
                BL=BL,
                SITES=S,
            )
        elif dproduct_TC.shape[1] > layout.used:
            dproduct_TC[:, layout.used :].zero_()
        parts = (self.dWc_GMR, dws_GSR, *others)
        sums = iter(add_groups([part for part in parts if part is not None]))
        return tuple(dproduct_TC.new_empty(0, dtype=torch.float32) if part is None else next(sums) for part in parts)


@triton.jit
def _finish(
    rows_of, parts, scalar, strides, sizes, ends, BT: tl.constexpr, R: tl.constexpr, BL: tl.constexpr,
    SITES: tl.constexpr,
):  # fmt: skip
    """du of BT rows of a site, and their part of dws. The last site's programs write the zeros behind all du."""
    u_ptr, dproduct_ptr = rows_of
    dp_ptr, total_ptr = parts
    ws_ptr, dws_ptr = scalar
    T, u, width, used, columns = sizes
    program, site = tl.program_id(0), tl.program_id(1)
    row = program.to(tl.int64) * BT
    rows, lane = tl.arange(0, BT), tl.arange(0, BL)
    inside_T = rows < T - row
    inside = inside_T[:, None] & (lane < R)[None, :]
    p = load_p(u_ptr + row * strides[0] + u + site * R, strides[0], inside_T, R, BL)
    first, last = 0, ends[0]
    for i in tl.static_range(1, SITES):
        first = tl.where(site == i, ends[i - 1], first)
        last = tl.where(site == i, ends[i], last)
    dp = tl.zeros([BT, BL], tl.float32)
    total = tl.zeros([BT], tl.float32)
    for block in tl.range(first, last, loop_unroll_factor=4):
        at = row + block * (T + 0 * row)  # in 64 bits
        if dp_ptr is not None:
            dp += tl.load(dp_ptr + (at + rows)[:, None] * R + lane[None, :], mask=inside, other=0.0).to(tl.float32)
        if ws_ptr is not None:
            total += tl.load(total_ptr + at + rows, mask=inside_T, other=0.0)
    if ws_ptr is not None:
        ws = load_ws(ws_ptr, site, R, BL)
        es = total * (1 - sigmoid(tl.sum(p * ws[None, :], 1)))
        dp += es[:, None] * ws[None, :]
        dws = tl.sum(tl.where(inside, es[:, None] * p, 0.0), 0)
        tl.store(dws_ptr + (program * SITES + site) * R + lane, dws, mask=lane < R)
    target = dproduct_ptr + (row + rows)[:, None] * strides[1]
    tl.store(target + width + site * R + lane[None, :], dp * p * (1 - p), mask=inside)
    if site == SITES - 1:
        for start in range(used, columns, BL):
            behind = start + lane
            inside = inside_T[:, None] & (behind < columns)[None, :]
            tl.store(target + behind[None, :], tl.zeros([BT, BL], tl.float32), mask=inside)
