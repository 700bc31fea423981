"""Batch normalisation of a convolution's output with CoMT's gates before and behind it: the forward pass.

Shapes: P pixels of a batch, channels last; C channels, H hidden columns of the window gate, K >= C + H columns of the
product (what is behind those is nobody's), R hidden columns of the pixel gate; T and N: a tile's rows and channels.

    gw = sigmoid(sigmoid(u) . window)                u = product[:, C : C + H]; without a window gate: 1
    z = gw product[:, :C]    mean, var over the P pixels (biased)    n = (z - mean) rstd    rstd = 1 / sqrt(var + eps)
    t = n A^T    s = sigmoid(t)    g = sigmoid(s . b)                without a pixel gate: 1
    y = act(g weight n + bias + skip)                act: ReLU or nothing; weight: 1 where there is none

Two passes over the product: its statistics, and y. Both apply the window gate as they read; z, n and the gates are
never stored.

Statistics. Every lane of a program's tile keeps Welford's mean and sum of squared deviations of the pixels that it
meets; lanes, and then programs, are combined by Chan's formula, in a fixed order. Sums of z and z^2 would lose all
digits of the variance where the mean is large beside it, and sums about a shift do where the shift is an outlier;
this loses none, keeps as many numbers, and its four operations an element are hidden behind the memory.

The pixel gate needs whole rows. Up to `WHOLE` channels a row is one tile and stays in registers. Wider ones are walked
along twice, for t and for y; the second time they come from the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.modulated_norm.triton.backward import modulated_norm_backward
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
    store_tile,
    window_gate,
)
from comt_cli.kernels.operators import unit_stride
from comt_cli.kernels.triton.gates import aligned, aligned_each

__all__ = ["modulated_norm", "modulated_norm_backward"]


def modulated_norm(
    product_PK: Tensor, window_H: Tensor | None, A_RC: Tensor | None, b_R: Tensor | None,
    weight_C: Tensor | None, bias_C: Tensor, skip_PC: Tensor | None, relu: bool, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y, [P, C], in the product's type (fp32, bf16 or fp16); mean and biased variance, [C], in fp32.

    The rows of the product may lie apart; C and H follow from `bias_C` and `window_H`. Where the row strides of product
    and skip, and C, are multiples of 8 elements, a thread moves so many at a time: give the product padding columns.
    Raises ValueError where shapes do not fit, or where there is no pixel.
    """
    given = Operands(product_PK, window_H, A_RC, b_R, weight_C, len(bias_C))
    product_PK, (P, C, _) = given.product_PK, given.sizes
    skip_PC = None if skip_PC is None else unit_stride(skip_PC)
    y_PC = product_PK.new_empty(P, C)
    mean_C, var_C = (product_PK.new_empty(C, dtype=torch.float32) for _ in range(2))
    size = given.tile("statistics", pixel=False)
    shares = triton.cdiv(C, size.channels)
    count, blocks = groups(P, size, PROGRAMS, shares)
    parts_2GC = product_PK.new_empty(2, count, C, dtype=torch.float32)
    source, stride = given.source, product_PK.stride(0)
    given.run(_statistics, (shares, count), source, parts_2GC, stride, given.sizes, blocks, tile=size, rows=[])
    with torch.cuda.device_of(product_PK):
        _combine[(triton.cdiv(C, COLUMNS),)](
            parts_2GC, (mean_C, var_C), P, C, count, blocks * size.rows, BG=PARTS, BN=COLUMNS, num_warps=4
        )
    size = given.tile("apply")
    given.run(
        _apply,
        (triton.cdiv(P, size.rows),),
        source,
        (mean_C, var_C, given.weight_C, bias_C.contiguous()),
        tuple(given.pixel),
        skip_PC,
        y_PC,
        (stride, 0 if skip_PC is None else skip_PC.stride(0)),
        given.sizes,
        epsilon,
        RELU=relu,
        IS_WHOLE=size.channels >= C,
        tile=size,
        rows=[y_PC] if skip_PC is None else [y_PC, skip_PC],
    )
    return y_PC, mean_C, var_C


# ---- the kernels


@triton.jit
def _statistics(
    source, parts_ptr, product_stride, sizes, blocks,
    BH: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations of some channels over a group of `blocks` row blocks."""
    z_ptr, u_ptr, window_ptr = source
    P, C, H = sizes
    stride = aligned(product_stride, UNIT)
    channels = tl.program_id(0) * BN + tl.arange(0, BN)
    group = tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BT)
    inside_N = channels < C
    count = tl.zeros([BT], tl.float32)
    mean = tl.zeros([BT, BN], tl.float32)
    squares = tl.zeros([BT, BN], tl.float32)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < P - row
        gate = window_gate(u_ptr, stride, row, window_ptr, inside_T, H, BH)
        z = load_tile(z_ptr + row * stride, stride, channels, inside_T, inside_N) * gate[:, None]
        count += inside_T.to(tl.float32)
        deviation = z - mean
        mean += deviation * tl.where(inside_T, 1 / tl.maximum(count, 1.0), 0.0)[:, None]
        squares += tl.where(inside_T[:, None], deviation * (z - mean), 0.0)
    middle = tl.sum(count[:, None] * mean, 0) / tl.sum(count, 0)
    apart = mean - middle[None, :]
    squared = tl.sum(squares + count[:, None] * apart * apart, 0)
    parts_ptr += group * C
    tl.store(parts_ptr + channels, middle, mask=inside_N)
    tl.store(parts_ptr + tl.num_programs(1).to(tl.int64) * C + channels, squared, mask=inside_N)


@triton.jit
def _combine(parts_ptr, results, P, C, count, each, BG: tl.constexpr, BN: tl.constexpr):
    """Mean and variance of some channels from those of `count` groups, of `each` rows but for the last."""
    mean_ptr, var_ptr = results
    channels = tl.program_id(0) * BN + tl.arange(0, BN)
    inside_N = channels < C
    total = tl.zeros([BG, BN], tl.float32)
    for start in range(0, count, BG):
        group = start + tl.arange(0, BG)
        rows = tl.minimum(each, P - group * each).to(tl.float32)
        middle = load_tile(parts_ptr + start * C, C, channels, group < count, inside_N)
        total += tl.where((group < count)[:, None], rows[:, None] * middle, 0.0)
    mean = tl.sum(total, 0) / P
    total = tl.zeros([BG, BN], tl.float32)
    for start in range(0, count, BG):
        group = start + tl.arange(0, BG)
        rows = tl.minimum(each, P - group * each).to(tl.float32)
        apart = load_tile(parts_ptr + start * C, C, channels, group < count, inside_N) - mean[None, :]
        squares = load_tile(parts_ptr + (count + start) * C, C, channels, group < count, inside_N)
        total += tl.where((group < count)[:, None], squares + rows[:, None] * apart * apart, 0.0)
    tl.store(mean_ptr + channels, mean, mask=inside_N)
    tl.store(var_ptr + channels, tl.sum(total, 0) / P, mask=inside_N)


@triton.jit
def _apply(
    source, norm, pixel, skip_ptr, y_ptr, strides, sizes, epsilon, RELU: tl.constexpr, IS_WHOLE: tl.constexpr,
    R: tl.constexpr, BH: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """y of a row block."""
    z_ptr, u_ptr, window_ptr = source
    mean_ptr, var_ptr, weight_ptr, bias_ptr = norm
    A_ptr, b_ptr = pixel
    P, C, H = sizes
    stride, skip_stride = aligned_each(strides, UNIT)
    row = tl.program_id(0).to(tl.int64) * BT
    inside_T = tl.arange(0, BT) < P - row
    z_ptr += row * stride
    y_ptr += row * C
    if skip_ptr is not None:
        skip_ptr += row * skip_stride
    gw = window_gate(u_ptr, stride, row, window_ptr, inside_T, H, BH)
    g = tl.full([BT], 1.0, tl.float32)
    if A_ptr is not None and not IS_WHOLE:
        t = nothing_yet(BT, R)
        for start in range(0, C, BN):
            channels = start + tl.arange(0, BN)
            inside_N = channels < C
            mean, rstd = load_statistics(mean_ptr, var_ptr, channels, inside_N, epsilon)
            z = load_tile(z_ptr, stride, channels, inside_T, inside_N) * gw[:, None]
            n = (z - mean[None, :]) * rstd[None, :]
            t = add_each(t, first_layer(n, A_ptr, C, channels, inside_N, R), R)
        g = second_layer(t, b_ptr, R)
    for start in range(0, C, BN):
        channels = start + tl.arange(0, BN)
        inside_N = channels < C
        mean, rstd = load_statistics(mean_ptr, var_ptr, channels, inside_N, epsilon)
        weight = load_weight(weight_ptr, channels, inside_N)
        bias = tl.load(bias_ptr + channels, mask=inside_N, other=0.0).to(tl.float32)
        z = load_tile(z_ptr, stride, channels, inside_T, inside_N) * gw[:, None]
        n = (z - mean[None, :]) * rstd[None, :]
        if IS_WHOLE and A_ptr is not None:
            g = second_layer(first_layer(n, A_ptr, C, channels, inside_N, R), b_ptr, R)
        m = n * g[:, None] * weight[None, :] + bias[None, :]
        if skip_ptr is not None:
            m += load_tile(skip_ptr, skip_stride, channels, inside_T, inside_N)
        if RELU:
            m = tl.where(m < 0, 0.0, m)  # a NaN stays
        store_tile(y_ptr, C, channels, inside_T, inside_N, m)
