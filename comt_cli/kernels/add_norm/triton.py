"""The stream plus a gated site, and its RMSNorm; and the gradients from those of both.

Shapes as in `gates`, and D channels of the stream and of the site. With zhat the gated site:
    y = x + zhat     yhat = y rstd     n = yhat gain     rstd = 1 / sqrt(mean(y^2) + epsilon)
    dx = dzhat = dy + rstd (dn gain - yhat mean(dn gain yhat))     dgain = sum over rows of dn yhat
y is rounded to the type of x before anything is computed from it, so that the backward pass, which reads y, sees the
same. A row is walked along twice, the first time for its mean; or it is one tile, and y stays in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.gates import (
    add_up,
    aligned,
    gate_gradient,
    prepare,
    store_du,
    store_dws,
    tile_gate,
    zero_columns,
)


def add_norm(
    x_TD: Tensor, product_TC: Tensor, modulation: Modulation, gain_D: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, [T, D], in the type of x; n, [T, D], in that of the product; rstd, [T], in fp32."""
    x_TD, product_TC, gain_D = launch.unit_stride(x_TD), launch.unit_stride(product_TC), gain_D.contiguous()
    T, D = x_TD.shape
    gates = launch.Gates(modulation, [D])
    y_TD, n_TD = x_TD.new_empty(T, D), product_TC.new_empty(T, D)
    rstd_T = x_TD.new_empty(T, dtype=torch.float32)
    if T == 0:
        return y_TD, n_TD, rstd_T
    tile = launch.options("add_norm", D, gates.rank, product_TC.dtype, T)
    with torch.cuda.device_of(product_TC):
        _add_norm[(triton.cdiv(T, tile.rows),)](
            gates.source(product_TC, gates.sites[0]),
            x_TD,
            gain_D,
            (y_TD, n_TD, rstd_T),
            (product_TC.stride(0), x_TD.stride(0)),
            T,
            D,
            epsilon,
            gates.scale,
            IS_WHOLE=tile.channels >= D,
            **gates.constants(tile, product_TC, x_TD),
        )
    return y_TD, n_TD, rstd_T


def add_norm_backward(
    dy_TD: Tensor,
    dn_TD: Tensor,
    y_TD: Tensor,
    rstd_T: Tensor,
    product_TC: Tensor | None,
    modulation: Modulation,
    gain_D: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return dx, [T, D], in the type of y; dproduct, [T, C], in the product's; dWc, dws and dgain, [D], in fp32.

    Without the product dproduct is dx, and what is returned for it has no elements: for one without gates, of D
    columns, in the type of x.
    """
    is_dx = product_TC is None
    product_TC = y_TD if product_TC is None else product_TC
    dy_TD, dn_TD, y_TD, product_TC = (launch.unit_stride(tensor) for tensor in (dy_TD, dn_TD, y_TD, product_TC))
    (T, C), D = product_TC.shape, y_TD.shape[-1]
    gates = launch.Gates(modulation, [D])
    tile = launch.options("add_norm_backward", D, gates.rank, product_TC.dtype, T)
    count, blocks = launch.groups(product_TC, tile, gates)
    sums = launch.Sums(gates, count)
    dgain_GD = gain_D.new_empty(count, D, dtype=torch.float32)
    dx_TD = y_TD.new_empty(T, D)
    dproduct_TC = dx_TD if is_dx else product_TC.new_empty(T, C)  # the same numbers are then written there twice
    if T:
        with torch.cuda.device_of(product_TC):
            _add_norm_backward[(count,)](
                gates.source(product_TC, gates.sites[0]),
                (dy_TD, dn_TD, y_TD, rstd_T.contiguous(), gain_D.contiguous()),
                sums.target(dproduct_TC, gates.sites[0]),
                (dx_TD, dgain_GD),
                (product_TC.stride(0), dproduct_TC.stride(0)),
                (dy_TD.stride(0), dn_TD.stride(0), y_TD.stride(0)),
                (T, D, blocks),
                (gates.used, C),
                gates.scale,
                **gates.constants(tile, product_TC, dproduct_TC, dy_TD, dn_TD, y_TD),
            )
    return dx_TD, dx_TD.new_empty(0) if is_dx else dproduct_TC, *sums.total_with(product_TC, dgain_GD)


@triton.jit
def _add_norm(
    site,
    x_ptr,
    gain_ptr,
    results,
    strides,
    T,
    D,
    epsilon,
    scale,
    IS_WHOLE: tl.constexpr,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    UNIT: tl.constexpr,
):
    """A row block."""
    z_ptr, u_ptr, Wc_ptr, ws_ptr = site
    y_ptr, n_ptr, rstd_ptr = results
    product_stride = aligned(strides[0], UNIT)
    x_stride = aligned(strides[1], UNIT)
    row = tl.program_id(0).to(tl.int64) * BT
    rows = tl.arange(0, BT)
    inside_T = rows < T - row
    z_ptr += row * product_stride
    x_ptr += row * x_stride
    y_ptr += row * D
    n_ptr += row * D
    gate = prepare(u_ptr + row * product_stride, product_stride, Wc_ptr, ws_ptr, inside_T, R, BR, TYPE)
    sources = z_ptr, x_ptr, product_stride, x_stride
    if IS_WHOLE:
        channels = tl.arange(0, BN)
        y = _joined(sources, y_ptr, D, channels, inside_T, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)
        rstd = 1 / tl.sqrt(tl.sum(y * y, 1) / D + epsilon)
        _store_norm(n_ptr, D, y, rstd, gain_ptr, channels, inside_T)
    else:
        squares = tl.zeros([BT], tl.float32)
        for start in range(0, D, BN):
            channels = start + tl.arange(0, BN)
            y = _joined(sources, y_ptr, D, channels, inside_T, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)
            squares += tl.sum(y * y, 1)
        rstd = 1 / tl.sqrt(squares / D + epsilon)
        tl.debug_barrier()  # y comes back from memory, perhaps to another thread than wrote it
        for start in range(0, D, BN):
            channels = start + tl.arange(0, BN)
            inside = inside_T[:, None] & (channels < D)[None, :]
            y = tl.load(y_ptr + rows[:, None] * D + channels[None, :], mask=inside, other=0.0).to(tl.float32)
            _store_norm(n_ptr, D, y, rstd, gain_ptr, channels, inside_T)
    tl.store(rstd_ptr + row + rows, rstd, mask=inside_T)


@triton.jit
def _joined(
    sources,
    y_ptr,
    D,
    channels,
    inside_T,
    gate,
    Wc_ptr,
    ws_ptr,
    scale,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
):
    """y of a tile, [BT, BN] in fp32, as it was rounded when written."""
    z_ptr, x_ptr, product_stride, x_stride = sources
    rows = tl.arange(0, inside_T.shape[0])
    inside_N = channels < D
    inside = inside_T[:, None] & inside_N[None, :]
    z = tl.load(z_ptr + rows[:, None] * product_stride + channels[None, :], mask=inside, other=0.0)
    x = tl.load(x_ptr + rows[:, None] * x_stride + channels[None, :], mask=inside, other=0.0)
    zhat = z.to(tl.float32) * tile_gate(channels, inside_N, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)[0]
    y = (x.to(tl.float32) + zhat).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + rows[:, None] * D + channels[None, :], y, mask=inside)
    return tl.where(inside, y.to(tl.float32), 0.0)


@triton.jit
def _store_norm(n_ptr, D, y, rstd, gain_ptr, channels, inside_T):
    """Writes n of a tile y."""
    rows = tl.arange(0, inside_T.shape[0])
    inside_N = channels < D
    gain = tl.load(gain_ptr + channels, mask=inside_N, other=0.0).to(tl.float32)
    n = y * rstd[:, None] * gain[None, :]
    tl.store(n_ptr + rows[:, None] * D + channels[None, :], n, mask=inside_T[:, None] & inside_N[None, :])


@triton.jit
def _add_norm_backward(  # noqa: PLR0915 - one walk along a row
    site,
    sources,
    gradients,
    results,
    strides,
    source_strides,
    sizes,
    rest,
    scale,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    UNIT: tl.constexpr,
):
    """A group of `blocks` row blocks."""
    z_ptr, u_ptr, Wc_ptr, ws_ptr = site
    dy_ptr, dn_ptr, y_ptr, rstd_ptr, gain_ptr = sources
    dz_ptr, du_ptr, dWc_ptr, dWc_stride, dws_ptr, dws_stride = gradients
    dx_ptr, dgain_ptr = results
    product_stride = aligned(strides[0], UNIT)
    dproduct_stride = aligned(strides[1], UNIT)
    dy_stride = aligned(source_strides[0], UNIT)
    dn_stride = aligned(source_strides[1], UNIT)
    y_stride = aligned(source_strides[2], UNIT)
    T, D, blocks = sizes
    group = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, BT)
    dgain_ptr += group * D
    if dWc_ptr is not None:
        dWc_ptr += group * dWc_stride
    dws = tl.zeros([BR], tl.float32)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        z_row = z_ptr + row * product_stride
        dz_row = dz_ptr + row * dproduct_stride
        dy_row = dy_ptr + row * dy_stride
        dn_row = dn_ptr + row * dn_stride
        y_row = y_ptr + row * y_stride
        dx_row = dx_ptr + row * D
        rstd = tl.load(rstd_ptr + row + rows, mask=inside_T, other=0.0)
        mean = tl.zeros([BT], tl.float32)
        for start in range(0, D, BN):
            channels = start + tl.arange(0, BN)
            inside_N = channels < D
            inside = inside_T[:, None] & inside_N[None, :]
            dn = tl.load(dn_row + rows[:, None] * dn_stride + channels[None, :], mask=inside, other=0.0)
            y = tl.load(y_row + rows[:, None] * y_stride + channels[None, :], mask=inside, other=0.0)
            gain = tl.load(gain_ptr + channels, mask=inside_N, other=0.0).to(tl.float32)
            yhat = y.to(tl.float32) * rstd[:, None]
            mean += tl.sum(tl.where(inside, dn.to(tl.float32) * gain[None, :] * yhat, 0.0), 1)
        mean = mean / D
        gate = prepare(u_ptr + row * product_stride, product_stride, Wc_ptr, ws_ptr, inside_T, R, BR, TYPE)
        dp = tl.zeros([BT, BR], tl.float32)
        total = tl.zeros([BT], tl.float32)
        for start in range(0, D, BN):
            channels = start + tl.arange(0, BN)
            inside_N = channels < D
            inside = inside_T[:, None] & inside_N[None, :]
            dn = tl.load(dn_row + rows[:, None] * dn_stride + channels[None, :], mask=inside, other=0.0)
            y = tl.load(y_row + rows[:, None] * y_stride + channels[None, :], mask=inside, other=0.0)
            dy = tl.load(dy_row + rows[:, None] * dy_stride + channels[None, :], mask=inside, other=0.0)
            z = tl.load(z_row + rows[:, None] * product_stride + channels[None, :], mask=inside, other=0.0)
            gain = tl.load(gain_ptr + channels, mask=inside_N, other=0.0).to(tl.float32)
            dn = dn.to(tl.float32)
            yhat = y.to(tl.float32) * rstd[:, None]
            dgain = tl.sum(tl.where(inside, dn * yhat, 0.0), 0)
            add_up(dgain_ptr + channels, dgain, inside_N, block > 0)
            dx = dy.to(tl.float32) + rstd[:, None] * (dn * gain[None, :] - yhat * mean[:, None])
            tl.store(dx_row + rows[:, None] * D + channels[None, :], dx, mask=inside)
            tile = tile_gate(channels, inside_N, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)
            dz = dx * tile[0]
            tl.store(dz_row + rows[:, None] * dproduct_stride + channels[None, :], dz, mask=inside)
            dp, total = gate_gradient(
                dz * z.to(tl.float32),
                channels,
                inside_T,
                inside_N,
                gate,
                tile,
                dp,
                total,
                Wc_ptr,
                ws_ptr,
                dWc_ptr,
                block > 0,
                R,
                BR,
                TYPE,
            )
        du_row = du_ptr + row * dproduct_stride
        dws = store_du(du_row, dproduct_stride, inside_T, gate, dp, total, dws, Wc_ptr, ws_ptr, R, BR)
        zero_columns(dz_row, dproduct_stride, inside_T, rest[0], rest[1], BR)
        tl.debug_barrier()  # the next block reads what other threads have added to dWc and dgain
    store_dws(dws_ptr, dws_stride, dws, R, BR)
