"""The first pass of `backward`: sums over pixels, and dt and g of every pixel. Formulas and shapes are there."""

# ruff: noqa: SIM300 - a type in capitals is an argument here, not the constant to compare with
# ruff: noqa: RUF005 - Triton builds tuples by adding
# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.modulated_norm.triton import common
from comt_cli.kernels.modulated_norm.triton.common import (
    COLUMNS,
    PARTS,
    PROGRAMS,
    Operands,
    add_each,
    first_layer,
    groups,
    load_statistics,
    load_tile,
    load_weight,
    nothing_yet,
    second_layer,
    window_gate,
)
from comt_cli.kernels.triton.gates import aligned_each, matmul, sigmoid

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
"""What the kernels can store."""

SUMS = 528
"""Programs of the first pass, at most: each leaves R + 3 numbers for each of its channels."""


class Given(NamedTuple):
    """What both passes of the backward pass begin with.

    tensors: the first argument of all kernels: product and window gate; dy and y; mean, var and weight; the pixel gate.
    strides: from row to row of the product, of dy and of y. rows: dy, and y where there is a ReLU.
    """

    of: Operands
    tensors: tuple[Tensor | None, ...]
    strides: tuple[int, int, int]
    rows: list[Tensor]
    epsilon: float


def sums_over_pixels(
    given: Given,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor, Tensor | None]:
    """S1 / P and S2 / P, [2, C]; dA, db, dweight and dbias; and dt and g of each pixel, [P, R + 1]."""
    of, first, strides, rows, epsilon = given
    (P, C, _), R, pixel = of.sizes, of.R, of.R > 0
    new = given.tensors[5].new_empty  # type: ignore[union-attr]  # as the mean: fp32
    size = of.tile("sums")
    whole, shares = pixel and size.channels >= C, triton.cdiv(C, size.channels)
    count, blocks = groups(P, size, SUMS, shares)
    parts_GSC = new(count, R + 3, C)
    rows_PR, row_parts_G2R, row_count = (new(P, R + 1) if pixel else None), None, count
    if pixel:
        if not whole:
            walk = of.tile("rows")
            row_count, row_blocks = groups(P, walk, PROGRAMS)
        row_parts_G2R = new(row_count, 2, R)
    if pixel and not whole:
        results = rows_PR, row_parts_G2R
        of.run(_rows, (row_count,), first, results, strides, of.sizes, row_blocks, epsilon, tile=walk, rows=rows)
    of.run(
        _sums,
        (shares, count),
        first,
        (parts_GSC, rows_PR, row_parts_G2R),
        strides,
        of.sizes,
        blocks,
        epsilon,
        IS_WHOLE=whole,
        BR=max(common.LEAST_DOT, triton.next_power_of_2(R)),
        TYPE=TYPES[of.product_PK.dtype],
        tile=size,
        rows=rows,
    )
    sums_2C, dweight_C, dbias_C = new(2, C), new(C), new(C)
    dA_RC, db_R = (new(R, C), new(R)) if pixel else (None, None)
    with torch.cuda.device_of(of.product_PK):
        _totals[(triton.cdiv(C, COLUMNS),)](
            (parts_GSC, row_parts_G2R),
            (of.weight_C, of.pixel[0]),
            (sums_2C, dbias_C, dweight_C, dA_RC, db_R),
            P,
            C,
            (count, row_count),
            R=R,
            BG=PARTS,
            BN=COLUMNS,
            num_warps=4,
        )
    return sums_2C, dA_RC, db_R, dweight_C, dbias_C, rows_PR


# ---- the kernels


@triton.jit
def load_dm(dy_ptr, dy_stride, y_ptr, y_stride, channels, inside_T, inside_N):
    """The gradient before the ReLU, [BT, BN]. Where y is NaN it passes, as PyTorch's does."""
    dm = load_tile(dy_ptr, dy_stride, channels, inside_T, inside_N)
    if y_ptr is not None:
        dm = tl.where(load_tile(y_ptr, y_stride, channels, inside_T, inside_N) <= 0, 0.0, dm)
    return dm


@triton.jit
def _pixel_gradient(t, dg, b_ptr, inside_T, R: tl.constexpr):
    """g, [BT]; dt, and what the rows add to db, R vectors [BT] each. From t, R vectors, and dg, [BT]."""
    g = second_layer(t, b_ptr, R)
    dl = tl.where(inside_T, dg * g * (1 - g), 0.0)
    dt, db = (), ()
    for k in tl.static_range(R):
        s = sigmoid(t[k])
        dt = dt + (dl * tl.load(b_ptr + k).to(tl.float32) * s * (1 - s),)
        db = db + (dl * s,)
    return g, dt, db


@triton.jit
def _store_rows(rows_ptr, inside_T, g, dt, R: tl.constexpr):
    """Writes dt and g of a row block."""
    rows_ptr += tl.arange(0, inside_T.shape[0]) * (R + 1)
    for k in tl.static_range(R):
        tl.store(rows_ptr + k, dt[k], mask=inside_T)
    tl.store(rows_ptr + R, g, mask=inside_T)


@triton.jit
def load_rows(rows_ptr, inside_T, R: tl.constexpr):
    """g and dt of a row block, [BT] and R vectors [BT]."""
    rows_ptr += tl.arange(0, inside_T.shape[0]) * (R + 1)
    dt = ()
    for k in tl.static_range(R):
        dt = dt + (tl.load(rows_ptr + k, mask=inside_T, other=0.0),)
    return tl.load(rows_ptr + R, mask=inside_T, other=0.0), dt


@triton.jit
def _store_row_parts(parts_ptr, db, dt, R: tl.constexpr):
    """Writes a group's sums over pixels of db and dt, from R vectors [BT] each."""
    for k in tl.static_range(R):
        tl.store(parts_ptr + k, tl.sum(db[k], 0))
        tl.store(parts_ptr + R + k, tl.sum(dt[k], 0))


@triton.jit
def _columns(vectors, BT: tl.constexpr, R: tl.constexpr, BR: tl.constexpr):
    """R vectors [BT] as the rows of a tile, [BR, BT], above zeros."""
    lane = tl.arange(0, BR)[:, None]
    tile = tl.zeros([BR, BT], tl.float32)
    for k in tl.static_range(R):
        tile = tl.where(lane == k, vectors[k][None, :], tile)
    return tile


@triton.jit
def _rows(
    given, results, strides, sizes, blocks, epsilon,
    R: tl.constexpr, BH: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """dt and g of a group of `blocks` row blocks, whose rows no tile holds; and their sums of dt and db."""
    z_ptr, u_ptr, window_ptr, dy_ptr, y_ptr, mean_ptr, var_ptr, weight_ptr, A_ptr, b_ptr = given
    rows_ptr, parts_ptr = results
    stride, dy_stride, y_stride = aligned_each(strides, UNIT)
    P, C, H = sizes
    group = tl.program_id(0).to(tl.int64)
    sum_dt = nothing_yet(BT, R)
    sum_db = nothing_yet(BT, R)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = tl.arange(0, BT) < P - row
        gw = window_gate(u_ptr, stride, row, window_ptr, inside_T, H, BH)
        y_row = None if y_ptr is None else y_ptr + row * y_stride
        t = nothing_yet(BT, R)
        dg = tl.zeros([BT], tl.float32)
        for start in range(0, C, BN):
            channels = start + tl.arange(0, BN)
            inside_N = channels < C
            mean, rstd = load_statistics(mean_ptr, var_ptr, channels, inside_N, epsilon)
            weight = load_weight(weight_ptr, channels, inside_N)
            z = load_tile(z_ptr + row * stride, stride, channels, inside_T, inside_N) * gw[:, None]
            n = (z - mean[None, :]) * rstd[None, :]
            dm = load_dm(dy_ptr + row * dy_stride, dy_stride, y_row, y_stride, channels, inside_T, inside_N)
            dg += tl.sum(dm * weight[None, :] * n, 1)
            t = add_each(t, first_layer(n, A_ptr, C, channels, inside_N, R), R)
        g, dt, db = _pixel_gradient(t, dg, b_ptr, inside_T, R)
        _store_rows(rows_ptr + row * (R + 1), inside_T, g, dt, R)
        sum_dt = add_each(sum_dt, dt, R)
        sum_db = add_each(sum_db, db, R)
    _store_row_parts(parts_ptr + group * 2 * R, sum_db, sum_dt, R)


@triton.jit
def _sums(
    given, results, strides, sizes, blocks, epsilon, IS_WHOLE: tl.constexpr, R: tl.constexpr, BR: tl.constexpr,
    BH: tl.constexpr, TYPE: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The sums of some channels over a group of `blocks` row blocks: of dm, g dm n, g dm and dt n, in this order.

    Where the tile holds whole rows (IS_WHOLE), also their dt and g, which are there already otherwise.
    """
    GRADIENT: tl.constexpr = tl.float32 if TYPE == tl.float32 else tl.bfloat16  # fp16 has not the range
    z_ptr, u_ptr, window_ptr, dy_ptr, y_ptr, mean_ptr, var_ptr, weight_ptr, A_ptr, b_ptr = given
    parts_ptr, rows_ptr, row_parts_ptr = results
    stride, dy_stride, y_stride = aligned_each(strides, UNIT)
    P, C, H = sizes
    group = tl.program_id(1).to(tl.int64)
    channels = tl.program_id(0) * BN + tl.arange(0, BN)
    inside_N = channels < C
    mean, rstd = load_statistics(mean_ptr, var_ptr, channels, inside_N, epsilon)
    dbias = tl.zeros([BT, BN], tl.float32)
    dweight = tl.zeros([BT, BN], tl.float32)
    if A_ptr is not None:
        gated = tl.zeros([BT, BN], tl.float32)
        dA = tl.zeros([BR, BN], tl.float32)
    if IS_WHOLE:
        weight = load_weight(weight_ptr, channels, inside_N)
        sum_dt = nothing_yet(BT, R)
        sum_db = nothing_yet(BT, R)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = tl.arange(0, BT) < P - row
        gw = window_gate(u_ptr, stride, row, window_ptr, inside_T, H, BH)
        y_row = None if y_ptr is None else y_ptr + row * y_stride
        z = load_tile(z_ptr + row * stride, stride, channels, inside_T, inside_N) * gw[:, None]
        n = (z - mean[None, :]) * rstd[None, :]
        dm = load_dm(dy_ptr + row * dy_stride, dy_stride, y_row, y_stride, channels, inside_T, inside_N)
        dbias += dm
        if A_ptr is not None:
            if IS_WHOLE:
                t = first_layer(n, A_ptr, C, channels, inside_N, R)
                g, dt, db = _pixel_gradient(t, tl.sum(dm * weight[None, :] * n, 1), b_ptr, inside_T, R)
                _store_rows(rows_ptr + row * (R + 1), inside_T, g, dt, R)
                sum_dt = add_each(sum_dt, dt, R)
                sum_db = add_each(sum_db, db, R)
            else:
                g, dt = load_rows(rows_ptr + row * (R + 1), inside_T, R)
            dA += matmul(_columns(dt, BT, R, BR), n, GRADIENT)
            dm = dm * g[:, None]
            gated += dm
        dweight += dm * n
    parts_ptr += group * (R + 3) * C
    tl.store(parts_ptr + channels, tl.sum(dbias, 0), mask=inside_N)
    tl.store(parts_ptr + C + channels, tl.sum(dweight, 0), mask=inside_N)
    if A_ptr is not None:
        tl.store(parts_ptr + 2 * C + channels, tl.sum(gated, 0), mask=inside_N)
        lane = tl.arange(0, BR)
        pointers = parts_ptr + (3 + lane[:, None]) * C + channels[None, :]
        tl.store(pointers, dA, mask=(lane < R)[:, None] & inside_N[None, :])
    if IS_WHOLE:
        _store_row_parts(row_parts_ptr + group * 2 * R, sum_db, sum_dt, R)


@triton.jit
def _total(ptr, stride, count, channels, inside_N, BG: tl.constexpr):
    """The sum of `count` vectors that lie `stride` apart, [BN]."""
    BN: tl.constexpr = inside_N.shape[0]
    total = tl.zeros([BG, BN], tl.float32)
    for start in range(0, count, BG):
        inside_G = start + tl.arange(0, BG) < count
        total += load_tile(ptr + start * stride, stride, channels, inside_G, inside_N)
    return tl.sum(total, 0)


@triton.jit
def _totals(parts, layers, results, P, C, counts, R: tl.constexpr, BG: tl.constexpr, BN: tl.constexpr):
    """Adds up the parts of some channels, and finds their S1 / P and S2 / P."""
    parts_ptr, row_parts_ptr = parts
    weight_ptr, A_ptr = layers
    sums_ptr, dbias_ptr, dweight_ptr, dA_ptr, db_ptr = results
    count, row_count = counts
    channels = tl.program_id(0) * BN + tl.arange(0, BN)
    inside_N = channels < C
    stride = (R + 3) * C
    dbias = _total(parts_ptr, stride, count, channels, inside_N, BG)
    dweight = _total(parts_ptr + C, stride, count, channels, inside_N, BG)
    weight = load_weight(weight_ptr, channels, inside_N)
    tl.store(dbias_ptr + channels, dbias, mask=inside_N)
    tl.store(dweight_ptr + channels, dweight, mask=inside_N)
    first = weight * dbias
    second = weight * dweight
    if A_ptr is not None:
        first = weight * _total(parts_ptr + 2 * C, stride, count, channels, inside_N, BG)
        one = tl.zeros([1], tl.int32)
        for k in range(R):
            A = tl.load(A_ptr + k * C + channels, mask=inside_N, other=0.0).to(tl.float32)
            dA = _total(parts_ptr + (3 + k) * C, stride, count, channels, inside_N, BG)
            tl.store(dA_ptr + k * C + channels, dA, mask=inside_N)
            first += A * _total(row_parts_ptr + R + k, 2 * R, row_count, one, one == 0, BG)
            second += A * dA
            if tl.program_id(0) == 0:
                tl.store(db_ptr + k + one, _total(row_parts_ptr + k, 2 * R, row_count, one, one == 0, BG))
    tl.store(sums_ptr + channels, first / P, mask=inside_N)
    tl.store(sums_ptr + C + channels, second / P, mask=inside_N)
