"""The sums of what groups of rows have written, each into memory of its own: of several tensors in one launch.

Shapes: G groups, K elements of one group's part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 3
"""Tensors of one launch."""

BLOCK_GROUPS, BLOCK_COLUMNS = 64, 32


def add_groups(parts: Sequence[Tensor]) -> list[Tensor]:
    """The sum over the first dimension of each tensor, [G, ...] in fp32, in a fixed order; zeros where G is 0.

    All have the same G, and there are `MOST` of them at most.
    """
    if not parts:
        return []
    G = len(parts[0])
    if G == 1:
        return [part[0] for part in parts]
    totals = [part.new_empty(part.shape[1:]) for part in parts]
    columns = max(total.numel() for total in totals)
    missing = [None] * (MOST - len(parts))
    if columns:
        with torch.cuda.device_of(parts[0]):
            _add_groups[triton.cdiv(columns, BLOCK_COLUMNS), len(parts)](
                (*(part.contiguous() for part in parts), *missing),
                (*totals, *missing),
                (*(total.numel() for total in totals), *missing),
                G,
                BG=min(BLOCK_GROUPS, triton.next_power_of_2(max(1, G))),
                BK=BLOCK_COLUMNS,
            )
    return totals


@triton.jit
def _add_groups(parts, totals, sizes, G, BG: tl.constexpr, BK: tl.constexpr):
    """BK columns of one tensor."""
    which = tl.program_id(1)
    if which == 0:
        _add_columns(parts[0], totals[0], sizes[0], G, BG, BK)
    if parts[1] is not None and which == 1:
        _add_columns(parts[1], totals[1], sizes[1], G, BG, BK)
    if parts[2] is not None and which == 2:
        _add_columns(parts[2], totals[2], sizes[2], G, BG, BK)


@triton.jit
def _add_columns(parts_ptr, total_ptr, K, G, BG: tl.constexpr, BK: tl.constexpr):
    columns = tl.program_id(0) * BK + tl.arange(0, BK)
    inside_K = columns < K
    total = tl.zeros([BG, BK], tl.float32)
    for first in range(0, G, BG):
        groups = first + tl.arange(0, BG)
        inside = (groups < G)[:, None] & inside_K[None, :]
        at = groups.to(tl.int64)[:, None] * K + columns[None, :]
        total += tl.load(parts_ptr + at, mask=inside, other=0.0)
    tl.store(total_ptr + columns, tl.sum(total, 0), mask=inside_K)
