"""Batch normalisation with CoMT's gates: the backward pass. Shapes and the forward pass are in
`__init__`.

With dm = dy where y > 0, else 0 (without a ReLU: dm = dy), w = weight, and sums over pixels p or channels c:
    dskip = dm    dbias = sum_p dm    dweight = sum_p g dm n
    the pixel gate reads n, so that n has a second way to y:
        dg = sum_c dm w n        dl = dg g (1 - g)            db_k = sum_p dl s_k
        dt_k = dl b_k s_k (1 - s_k)                           dA_k = sum_p dt_k n
        dn = g w dm + sum_k dt_k A_k                          (without the gate: dn = w dm)
    mean and variance are functions of all of z:
        dz = rstd (dn - S1 / P - n S2 / P)    S1 = sum_p dn    S2 = sum_p dn n
    the window gate:
        dproduct = gw dz         dlw = gw (1 - gw) sum_c dz product
        du_j = dlw window_j p_j (1 - p_j)    dwindow_j = sum_p dlw p_j    p = sigmoid(u)

Two passes over product, dy and y. S1 and S2 need dn of all pixels, and dn a pixel's whole row, which looks like a pass
more; but they follow from sums that the first pass takes anyway:
    S1 = w sum_p g dm + sum_k A_k sum_p dt_k              S2 = w dweight + sum_k A_k dA_k
The first pass takes all sums over pixels and writes dt and g, R + 1 numbers a pixel; the second writes dproduct and
dskip. A program owns rows, so that its sums over channels stay in its registers. Rows of more than `WHOLE` channels
with a pixel gate take a third pass, before the others, for dt and g.

Sums over pixels: a program writes those of its own rows, and the parts are added in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.modulated_norm.triton import common
from comt_cli.kernels.modulated_norm.triton.common import (
    PROGRAMS,
    Operands,
    Tile,
    add_up,
    groups,
    load_first,
    load_statistics,
    load_tile,
    load_weight,
    operands,
    store_tile,
    window_gate,
    zero_columns,
)
from comt_cli.kernels.modulated_norm.triton.sums import Norm, argument, load_dm, load_rows, strides, sums_over_pixels
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.gates import aligned_each, sigmoid
from comt_cli.kernels.triton.sums import add_groups


def modulated_norm_backward(
    dy_PC: Tensor,
    y_PC: Tensor | None,
    product_PK: Tensor,
    u_PH: Tensor | None,
    window_H: Tensor | None,
    A_RC: Tensor | None,
    b_R: Tensor | None,
    weight_C: Tensor | None,
    mean_C: Tensor,
    var_C: Tensor,
    relu: bool,
    epsilon: float,
    has_skip: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of product, [P, K], in its type; of window, A, b, weight and bias, in fp32; of skip, [P, C],
    in the type of dy; and of u. What there is not has a gradient of shape (0,): u's is in the product's.

    `y_PC` is needed where there is a ReLU, ValueError otherwise. Columns of the product behind its C + H get zeros.
    Without a ReLU, dskip is a copy of dy: who can use dy itself need not ask for it.
    """
    if relu and y_PC is None:
        raise ValueError("the gradient of a ReLU needs the output y, which is None")
    given = operands(product_PK, u_PH, window_H, A_RC, b_R, weight_C, len(mean_C))
    product_PK, dy_PC = given.product_PK, launch.unit_stride(dy_PC)
    y_PC = launch.unit_stride(y_PC) if relu and y_PC is not None else None
    norm = mean_C.contiguous(), var_C.contiguous(), given.weight_C
    incoming = [dy_PC] if y_PC is None else [dy_PC, y_PC]
    with torch.cuda.device_of(product_PK):
        sums, dA_RC, db_R, dweight_C, dbias_C, rows_PR = sums_over_pixels(given, norm, incoming, epsilon)
        dproduct_PK, dskip_PC, dwindow_H = _of_pixels(given, norm, incoming, sums, rows_PR, epsilon, has_skip)

    def nothing() -> Tensor:
        return mean_C.new_empty(0, dtype=torch.float32)  # a new one each time: an operator's results share no storage

    return (
        dproduct_PK,
        nothing() if window_H is None or dwindow_H is None else dwindow_H.view(window_H.shape),
        nothing() if dA_RC is None else dA_RC,
        nothing() if b_R is None or db_R is None else db_R.view(b_R.shape),
        nothing() if weight_C is None else dweight_C,
        dbias_C,
        dy_PC.new_empty(0) if dskip_PC is None else dskip_PC,
        dy_PC.new_empty(0),
    )


def _of_pixels(
    given: Operands,
    norm: Norm,
    incoming: list[Tensor],
    sums_2C: Tensor,
    rows_PR: Tensor | None,
    epsilon: float,
    has_skip: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dproduct, dskip and dwindow."""
    P, C, H = given.sizes
    K = given.product_PK.shape[1]
    size: Tile = common.tile("gradient", C, rows_PR is not None, given.product_PK.dtype)
    tiles = triton.cdiv(C, size.channels)  # of a row: the window gate's gradient is a sum along it
    shares = tiles if given.window_H is None and triton.cdiv(P, size.rows) < common.BUSY else 1
    count, blocks = groups(P, size, PROGRAMS, shares)
    dproduct_PK = given.product_PK.new_empty(P, K)
    dskip_PC = incoming[0].new_empty(P, C) if has_skip else None
    parts_GH = None if given.window_H is None else sums_2C.new_empty(count, H)
    _gradient[(count, shares)](
        argument(given, norm, incoming),
        (sums_2C, rows_PR),
        (dproduct_PK, dproduct_PK[:, C:], dskip_PC, parts_GH),
        (*strides(given, incoming), K),
        (P, C, H),
        (C + H, K),
        (blocks, tiles // shares),
        epsilon,
        **given.constants(size, [dproduct_PK, *incoming]),
        **given.pixel_constants,
    )
    return dproduct_PK, dskip_PC, None if parts_GH is None else add_groups([parts_GH])[0]


@triton.jit
def _gradient(
    given,
    known,
    results,
    strides,
    sizes,
    rest,
    counts,
    epsilon,
    R: tl.constexpr,
    BH: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    UNIT: tl.constexpr,
):
    """`span` tiles of dproduct and dskip of a group of `blocks` row blocks, and their part of dwindow."""
    z_ptr, u_ptr, window_ptr, dy_ptr, y_ptr, mean_ptr, var_ptr, weight_ptr, A_ptr, _ = given
    sums_ptr, rows_ptr = known
    dz_ptr, du_ptr, dskip_ptr, parts_ptr = results
    stride, dy_stride, y_stride, dstride = aligned_each(strides, UNIT)
    P, C, H = sizes
    blocks, span = counts
    share = tl.program_id(1) * span
    group = tl.program_id(0).to(tl.int64)
    if parts_ptr is not None:
        parts_ptr += group * H
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = tl.arange(0, BT) < P - row
        gw = window_gate(u_ptr, stride, row, window_ptr, inside_T, H, BH)
        y_row = None if y_ptr is None else y_ptr + row * y_stride
        if A_ptr is not None:
            g, dt = load_rows(rows_ptr + row * (R + 1), inside_T, R)
        dgw = tl.zeros([BT], tl.float32)
        for tile in range(share, share + span):
            channels = tile * BN + tl.arange(0, BN)
            inside_N = channels < C
            mean, rstd = load_statistics(mean_ptr, var_ptr, channels, inside_N, epsilon)
            weight = load_weight(weight_ptr, channels, inside_N)
            first = tl.load(sums_ptr + channels, mask=inside_N, other=0.0)
            second = tl.load(sums_ptr + C + channels, mask=inside_N, other=0.0)
            product = load_tile(z_ptr + row * stride, stride, channels, inside_T, inside_N)
            n = (product * gw[:, None] - mean[None, :]) * rstd[None, :]
            dm = load_dm(dy_ptr + row * dy_stride, dy_stride, y_row, y_stride, channels, inside_T, inside_N)
            if dskip_ptr is not None:
                store_tile(dskip_ptr + row * C, C, channels, inside_T, inside_N, dm)
            dn = dm * weight[None, :]
            if A_ptr is not None:
                dn = dn * g[:, None]
                for k in tl.static_range(R):
                    dn += dt[k][:, None] * load_first(A_ptr, k, C, channels, inside_N)[None, :]
            dz = (dn - first[None, :] - n * second[None, :]) * rstd[None, :]
            if window_ptr is not None:
                dgw += tl.sum(dz * product, 1)  # outside, the product is zero
            store_tile(dz_ptr + row * dstride, dstride, channels, inside_T, inside_N, dz * gw[:, None])
        if window_ptr is not None:
            dlw = tl.where(inside_T, dgw * gw * (1 - gw), 0.0)
            for start in range(0, H, BH):
                columns = start + tl.arange(0, BH)
                inside_H = columns < H
                weights = tl.load(window_ptr + columns, mask=inside_H, other=0.0).to(tl.float32)
                p = sigmoid(load_tile(u_ptr + row * stride, stride, columns, inside_T, inside_H))
                du = dlw[:, None] * weights[None, :] * p * (1 - p)
                store_tile(du_ptr + row * dstride, dstride, columns, inside_T, inside_H, du)
                add_up(parts_ptr + columns, tl.sum(dlw[:, None] * p, 0), inside_H, block > 0)
            tl.debug_barrier()  # the next block reads what other threads have added to dwindow
        if share == 0:
            zero_columns(dz_ptr + row * dstride, dstride, inside_T, rest[0], rest[1], BH)
