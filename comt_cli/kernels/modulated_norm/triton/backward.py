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

import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.modulated_norm.triton import common
from comt_cli.kernels.modulated_norm.triton.common import (
    PROGRAMS,
    Operands,
    groups,
    load_first,
    load_statistics,
    load_tile,
    load_weight,
    store_tile,
    window_gate,
)
from comt_cli.kernels.modulated_norm.triton.sums import Given, load_dm, load_rows, sums_over_pixels
from comt_cli.kernels.operators import unit_stride
from comt_cli.kernels.triton.gates import aligned_each, sigmoid
from comt_cli.kernels.triton.sums import add_groups


def modulated_norm_backward(
    dy_PC: Tensor, y_PC: Tensor | None, product_PK: Tensor, window_H: Tensor | None, A_RC: Tensor | None,
    b_R: Tensor | None, weight_C: Tensor | None, mean_C: Tensor, var_C: Tensor, relu: bool, epsilon: float,
    has_skip: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of product, [P, K], in its type; of window, A, b, weight and bias, in fp32; and of skip,
    [P, C], in the type of dy. What there is not has a gradient of shape (0,).

    `y_PC` is needed where there is a ReLU, ValueError otherwise. Columns of the product behind its C + H get zeros.
    Without a ReLU, dskip is a copy of dy: who can use dy itself need not ask for it.
    """
    if relu and y_PC is None:
        raise ValueError("the gradient of a ReLU needs the output y, which is None")
    of = Operands(product_PK, window_H, A_RC, b_R, weight_C, len(mean_C))
    rows = [unit_stride(each) for each in ([dy_PC, y_PC] if relu and y_PC is not None else [dy_PC])]
    tensors = *of.source, *rows, *([None] if len(rows) == 1 else []), mean_C.contiguous(), var_C.contiguous()
    strides = of.product_PK.stride(0), rows[0].stride(0), rows[-1].stride(0)
    given = Given(of, (*tensors, of.weight_C, *of.pixel), strides, rows, epsilon)
    sums_2C, dA_RC, db_R, dweight_C, dbias_C, rows_PR = sums_over_pixels(given)
    dproduct_PK, dskip_PC, dwindow_H = _of_pixels(given, sums_2C, rows_PR, has_skip)

    def there(gradient: Tensor | None, of: Tensor | None, like: Tensor = mean_C) -> Tensor:
        # Nothing is a new tensor each time: an operator's results share no storage.
        return like.new_empty(0) if gradient is None or of is None else gradient.view(of.shape)

    of_parameters = (
        there(dwindow_H, window_H), there(dA_RC, A_RC), there(db_R, b_R), there(dweight_C, weight_C), dbias_C
    )  # fmt: skip
    return dproduct_PK, *of_parameters, there(dskip_PC, dskip_PC, dy_PC)


def _of_pixels(
    given: Given, sums_2C: Tensor, rows_PR: Tensor | None, has_skip: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dproduct, dskip and dwindow."""
    of, (P, C, H), K = given.of, given.of.sizes, given.of.product_PK.shape[1]
    size = of.tile("gradient")
    tiles = triton.cdiv(C, size.channels)  # of a row: the window gate's gradient is a sum along it
    shares = tiles if H == 0 and triton.cdiv(P, size.rows) < common.BUSY else 1
    count, blocks = groups(P, size, PROGRAMS, shares)
    dproduct_PK = of.product_PK.new_empty(P, K)
    dskip_PC = given.rows[0].new_empty(P, C) if has_skip else None
    parts_GH = sums_2C.new_empty(count, H) if H else None
    of.run(
        _gradient,
        (count, shares),
        given.tensors,
        (sums_2C, rows_PR),
        (dproduct_PK, dproduct_PK[:, C:], dskip_PC, parts_GH),
        (*given.strides, K),
        of.sizes,
        (C + H, K),
        (blocks, tiles // shares),
        given.epsilon,
        tile=size,
        rows=[dproduct_PK, *given.rows],
    )
    return dproduct_PK, dskip_PC, None if parts_GH is None else add_groups([parts_GH])[0]


@triton.jit
def _gradient(  # noqa: PLR0915 - one walk down the rows
    given, known, results, strides, sizes, rest, counts, epsilon,
    R: tl.constexpr, BH: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
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
                pointers, dwindow, again = parts_ptr + columns, tl.sum(dlw[:, None] * p, 0), block > 0
                before = tl.load(pointers, mask=inside_H & again, other=0.0)
                tl.store(pointers, dwindow + before, mask=inside_H)
            tl.debug_barrier()  # the next block reads what other threads have added to dwindow
        if share == 0:  # zeros behind: gradients of what no kernel reads
            target = dz_ptr + row * dstride
            for start in range(rest[0], rest[1], BH):
                columns = start + tl.arange(0, BH)
                inside = inside_T[:, None] & (columns < rest[1])[None, :]
                zeros = tl.zeros([BT, BH], tl.float32)
                tl.store(target + tl.arange(0, BT)[:, None] * dstride + columns[None, :], zeros, mask=inside)
