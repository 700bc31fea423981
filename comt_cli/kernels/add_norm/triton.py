"""The stream plus a gated site, and its RMSNorm; and the gradients from those of both.

Shapes as in `kernels.triton.gates`, and D channels of the stream and of the site. With zhat the gated site:
    y = x + zhat     yhat = y rstd     n = yhat gain     rstd = 1 / sqrt(mean(y^2) + epsilon)
    dx = dzhat = dy + rstd (dn gain - yhat mean(dn gain yhat))     dgain = sum over rows of dn yhat
y is rounded to the type of x before anything is computed from it, so that the backward pass, which reads y, sees the
same.

Without a channel gate a program owns whole rows, and nothing is read twice. With one it walks along its rows and
reads y again; but for few rows, as in decoding, whose logits are sums of R products. The backward pass then takes the
rows' means first, and then owns channels, as in `gates`.
"""

# Triton knows tuples as long as it can count, and builds them by adding.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment,unreachable"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.operators import unit_stride
from comt_cli.kernels.triton import gates, launch
from comt_cli.kernels.triton.sums import Parts
from comt_cli.kernels.triton.tiles import Tile

FEW_ROWS = 64
"""Up to so many rows, as in decoding, have a program each: programs of several rows would leave a GPU idle."""

WIDEST_ROW = 16384
"""The widest row that a program keeps in its registers."""


def add_norm(
    x_TD: Tensor, product_TC: Tensor, modulation: Modulation, gain_D: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, [T, D], in the type of x; n, [T, D], in that of the product; rstd, [T], in fp32."""
    rows = product_TC, x_TD = unit_stride(product_TC), unit_stride(x_TD)
    (T, D), layout = x_TD.shape, launch.Layout(modulation, x_TD.shape[1:])
    y_TD, n_TD = x_TD.new_empty(T, D), product_TC.new_empty(T, D)
    rstd_T = x_TD.new_empty(T, dtype=torch.float32)
    tile = layout.tile("add_norm", product_TC.dtype)
    by_rows = layout.kind != "channel" or T <= FEW_ROWS
    if by_rows:
        tile = _of_rows(tile, D, one=T <= FEW_ROWS)
    layout.run(
        _add_norm_rows if by_rows else _add_norm,
        (launch.cdiv(T, tile.rows),),
        (*rows, gain_D.contiguous(), y_TD, n_TD, rstd_T),
        layout.gate(layout.sites[0]),
        tuple(each.stride(0) for each in rows),
        (T, D),
        epsilon,
        tile=tile,
        rows=rows,
        columns=(D,),
    )
    return y_TD, n_TD, rstd_T


def add_norm_backward(
    dy_TD: Tensor, dn_TD: Tensor, y_TD: Tensor, rstd_T: Tensor, product_TC: Tensor | None, modulation: Modulation,
    gain_D: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return dx, [T, D], in the type of y; dproduct, [T, C], in the product's; dWc, dws and dgain, [D], in fp32.

    Without the product dproduct is dx, and what is returned for it has no elements: for one without gates, of D
    columns, in the type of x.
    """
    is_dx = product_TC is None
    given = y_TD if product_TC is None else product_TC, dy_TD, dn_TD, y_TD
    source_TC, dy_TD, dn_TD, y_TD = (unit_stride(each) for each in given)
    rstd_T, gain_D = rstd_T.contiguous(), gain_D.contiguous()
    (T, D), layout = y_TD.shape, launch.Layout(modulation, y_TD.shape[1:])
    dx_TD = y_TD.new_empty(T, D)
    dproduct_TC = dx_TD if is_dx else source_TC.new_empty(source_TC.shape)
    tile, mean_T = layout.tile("add_norm_backward", source_TC.dtype), None
    if layout.kind == "channel":
        mean_T = _means(dn_TD, y_TD, rstd_T, gain_D)
    else:
        tile = _of_rows(tile, D)
    parts = Parts(layout, tile, source_TC)
    dgain_GD = gain_D.new_empty(parts.groups, D, dtype=torch.float32)
    rows = source_TC, dy_TD, dn_TD, y_TD, dproduct_TC
    layout.run(
        _add_norm_backward_rows if mean_T is None else _add_norm_backward,
        (parts.groups, *parts.columns),
        (*rows[:4], rstd_T, mean_T, gain_D),
        (dx_TD, None if is_dx else dproduct_TC, dgain_GD),
        layout.gate(layout.sites[0]),
        parts.tensors,
        tuple(each.stride(0) for each in rows),
        (T, D, parts.blocks),
        tile=tile,
        rows=rows,
        columns=(D,),
    )
    dgates = parts.finish(source_TC, D, dproduct_TC, dgain_GD)
    return dx_TD, dx_TD.new_empty(0) if is_dx else dproduct_TC, *dgates


def _of_rows(tile: Tile, D: int, *, one: bool = False) -> Tile:
    """The tile with as many rows of D channels as it is for; or with one, of which a thread has 8 channels or more."""
    width = max(16, triton.next_power_of_2(D))
    if width > WIDEST_ROW:
        raise ValueError(f"rows of {D} channels: a program takes at most {WIDEST_ROW}")
    if one:
        return tile._replace(rows=1, channels=width, warps=max(1, min(16, width // 256)))
    return tile._replace(rows=max(1, tile.channels // width), channels=width)


def _means(dn_TD: Tensor, y_TD: Tensor, rstd_T: Tensor, gain_D: Tensor) -> Tensor:
    """rstd^3 mean(dn gain y), [T]: of which y takes dx nearer."""
    (T, D), strides = y_TD.shape, (dn_TD.stride(0), y_TD.stride(0))
    mean_T, tile = torch.empty_like(rstd_T), _of_rows(Tile(0, 4096, 4), D)
    tensors, unit = (dn_TD, y_TD, rstd_T, gain_D, mean_T), math.gcd(launch.LONGEST_VECTOR, *strides, D)
    launch.run(_store_means, (launch.cdiv(T, tile.rows),), tensors, strides, (T, D), tile=tile, UNIT=unit)
    return mean_T


@triton.jit
def _store_norm(n_ptr, gain_ptr, y, rstd, channels, D, inside):
    """Writes n of a tile y. `n_ptr` is that of its rows."""
    gain = tl.load(gain_ptr + channels, mask=channels < D, other=0.0).to(tl.float32)
    n = y.to(tl.float32) * rstd[:, None] * gain[None, :]
    tl.store(n_ptr + tl.arange(0, y.shape[0])[:, None] * D + channels[None, :], n, mask=inside)


@triton.jit
def _whole_rows_factor(gate, rows_ptr, stride, channels, inside_N, inside_T, scale, R: tl.constexpr, BL: tl.constexpr):
    """The factor of whole rows, [BT, BN] or [BT, 1]. A channel gate's logits are sums of R products: the tensor cores
    take 16 rows."""
    factor = tl.full([inside_T.shape[0], 1], 1.0, tl.float32)
    if gate[1] is not None or gate[3] is not None:
        p = gates.load_p(rows_ptr + gate[0], stride, inside_T, R, BL)
        factor = gates.scalar_factor(gate, p, scale, R, BL)[:, None]
        if gate[1] is not None:
            lane = tl.arange(0, BL)
            logits = tl.zeros([inside_T.shape[0], inside_N.shape[0]], tl.float32)
            for r in tl.static_range(R):
                p_r = tl.sum(tl.where((lane == r)[None, :], p, 0.0), 1)
                Wc_r = tl.load(gate[1] + (gate[2] + channels) * R + r, mask=inside_N, other=0.0).to(tl.float32)
                logits += p_r[:, None] * Wc_r[None, :]
            factor = factor * (scale * gates.sigmoid(logits))
    return factor


@triton.jit
def _add_norm_rows(
    tensors, gate, strides, sizes, epsilon, scale,
    BT: tl.constexpr, BN: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BT whole rows."""
    product_ptr, x_ptr, gain_ptr, y_ptr, n_ptr, rstd_ptr = tensors
    stride, x_stride = gates.aligned_each(strides, UNIT)
    T, D = sizes
    D = gates.aligned(D, UNIT)
    row = tl.program_id(0).to(tl.int64) * BT
    rows, channels = tl.arange(0, BT), tl.arange(0, BN)
    inside_T, inside_N = rows < T - row, channels < D
    inside = inside_T[:, None] & inside_N[None, :]
    source = product_ptr + row * stride
    z = tl.load(source + rows[:, None] * stride + channels[None, :], mask=inside, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + (row + rows)[:, None] * x_stride + channels[None, :], mask=inside, other=0.0)
    factor = _whole_rows_factor(gate, source, stride, channels, inside_N, inside_T, scale, R, BL)
    y = (x.to(tl.float32) + z * factor).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + (row + rows)[:, None] * D + channels[None, :], y, mask=inside)
    rstd = 1 / tl.sqrt(tl.sum(y.to(tl.float32) * y.to(tl.float32), 1) / D + epsilon)
    _store_norm(n_ptr + row * D, gain_ptr, y, rstd, channels, D, inside)
    tl.store(rstd_ptr + row + rows, rstd, mask=inside_T)


@triton.jit
def _add_norm(
    tensors, gate, strides, sizes, epsilon, scale,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BT rows whose site has a channel gate, BN channels at a time in tiles of W."""
    product_ptr, x_ptr, gain_ptr, y_ptr, n_ptr, rstd_ptr = tensors
    TYPE: tl.constexpr = product_ptr.dtype.element_ty
    stride, x_stride = gates.aligned_each(strides, UNIT)
    T, D = sizes
    D = gates.aligned(D, UNIT)
    row = tl.program_id(0).to(tl.int64) * BT
    rows = tl.arange(0, BT)
    inside_T = rows < T - row
    source = product_ptr + row * stride
    x_rows, y_rows = x_ptr + row * x_stride, y_ptr + row * D
    of_rows = gates.row_gate(source, stride, gate, inside_T, scale, R, BL, TYPE)
    squares = tl.zeros([BT], tl.float32)
    for first in range(0, D, BN):
        read = ()
        for i in tl.static_range(BN // W):
            channels = first + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (channels < D)[None, :]
            read = read + (tl.load(source + rows[:, None] * stride + channels[None, :], mask=inside, other=0.0),)
            read = read + (tl.load(x_rows + rows[:, None] * x_stride + channels[None, :], mask=inside, other=0.0),)
        for i in tl.static_range(BN // W):
            channels = first + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (channels < D)[None, :]
            order = first + i * W + gates.ordered_channels()
            logits = gates.logit_matrix(gate, order, order < D, R, TYPE)
            zhat = read[2 * i].to(tl.float32) * gates.tile_gate(gate, of_rows, logits, TYPE)[1]
            y = (read[2 * i + 1].to(tl.float32) + zhat).to(y_ptr.dtype.element_ty)
            tl.store(y_rows + rows[:, None] * D + channels[None, :], y, mask=inside)
            squares += tl.sum(y.to(tl.float32) * y.to(tl.float32), 1)
    rstd = 1 / tl.sqrt(squares / D + epsilon)
    tl.debug_barrier()  # y comes back from memory, perhaps to another thread than wrote it
    for first in range(0, D, BN):
        channels = first + tl.arange(0, BN)
        inside = inside_T[:, None] & (channels < D)[None, :]
        y = tl.load(y_rows + rows[:, None] * D + channels[None, :], mask=inside, other=0.0)
        _store_norm(n_ptr + row * D, gain_ptr, y, rstd, channels, D, inside)
    tl.store(rstd_ptr + row + rows, rstd, mask=inside_T)


@triton.jit
def _store_means(tensors, strides, sizes, BT: tl.constexpr, BN: tl.constexpr, UNIT: tl.constexpr):
    """The means of BT whole rows."""
    dn_ptr, y_ptr, rstd_ptr, gain_ptr, mean_ptr = tensors
    T, D = sizes
    D = gates.aligned(D, UNIT)
    rows = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    channels = tl.arange(0, BN)
    inside = (rows < T)[:, None] & (channels < D)[None, :]
    dn = tl.load(dn_ptr + rows[:, None] * gates.aligned(strides[0], UNIT) + channels[None, :], mask=inside, other=0.0)
    y = tl.load(y_ptr + rows[:, None] * gates.aligned(strides[1], UNIT) + channels[None, :], mask=inside, other=0.0)
    gain = tl.load(gain_ptr + channels, mask=channels < D, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + rows, mask=rows < T, other=0.0)
    sums = tl.sum(dn.to(tl.float32) * gain[None, :] * y.to(tl.float32), 1)
    tl.store(mean_ptr + rows, sums / D * rstd * rstd * rstd, mask=rows < T)


@triton.jit
def _add_norm_backward(  # noqa: PLR0915 - one walk down the rows
    tensors, results, gate, sums, strides, sizes, scale,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BN channels, of a site with a channel gate, in a group of `blocks` row blocks, in tiles of W."""
    product_ptr, dy_ptr, dn_ptr, y_ptr, rstd_ptr, mean_ptr, gain_ptr = tensors
    dx_ptr, dproduct_ptr, dgain_ptr = results
    dWc_ptr, parts = sums
    TYPE: tl.constexpr = product_ptr.dtype.element_ty
    stride, dy_stride, dn_stride, y_stride, dz_stride = gates.aligned_each(strides, UNIT)
    T, D, blocks = sizes
    D = gates.aligned(D, UNIT)
    group, column = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = tl.arange(0, BT)
    matrices = gates.matrices(gate, column * BN, D, BN // W, R, TYPE)
    dWc = gates.no_sums(gate, BN // W)
    dgain = ()
    for _ in tl.static_range(BN // W):
        dgain = dgain + (tl.zeros([BT, W], tl.float32),)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        source, target, dx_rows = product_ptr + row * stride, dproduct_ptr + row * dz_stride, dx_ptr + row * D
        dy_rows, dn_rows, y_rows = dy_ptr + row * dy_stride, dn_ptr + row * dn_stride, y_ptr + row * y_stride
        at = rows[:, None]
        rstd = tl.load(rstd_ptr + row + rows, mask=inside_T, other=0.0)[:, None]
        mean = tl.load(mean_ptr + row + rows, mask=inside_T, other=0.0)[:, None]
        of_rows = gates.row_gate(source, stride, gate, inside_T, scale, R, BL, TYPE)
        dp = gates.no_sum(gate, BT)
        total = tl.zeros([BT], tl.float32)
        dWc_then, dgain_then = dWc, dgain
        dWc = ()
        dgain = ()
        for i in tl.static_range(BN // W):
            channels = column * BN + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (channels < D)[None, :]
            across = channels[None, :]
            dn = tl.load(dn_rows + at * dn_stride + across, mask=inside, other=0.0).to(tl.float32)
            y = tl.load(y_rows + at * y_stride + across, mask=inside, other=0.0).to(tl.float32)
            dy = tl.load(dy_rows + at * dy_stride + across, mask=inside, other=0.0).to(tl.float32)
            z = tl.load(source + at * stride + across, mask=inside, other=0.0).to(tl.float32)
            gain = tl.load(gain_ptr + channels, mask=channels < D, other=0.0).to(tl.float32)
            t, factor = gates.tile_gate(gate, of_rows, matrices[2 * i], TYPE)
            dn *= rstd
            dx = dy + dn * gain[None, :] - y * mean
            dz = dx * factor
            tl.store(dx_rows + at * D + across, dx, mask=inside)
            tl.store(target + at * dz_stride + across, dz, mask=inside)
            h = dz * z
            more, dW = gates.gate_gradient(gate, of_rows, h, t, matrices[2 * i + 1], TYPE)
            dp += more
            total += tl.sum(h, 1)
            dWc = dWc + (dWc_then[i] + dW,)
            dgain = dgain + (dgain_then[i] + dn * y,)
        gates.store_parts(gate, parts, column, T, row, dp, total, inside_T, R)
    gates.store_sums(gate, dWc_ptr, group, D, column * BN, D, dWc, BN // W, R)
    for i in tl.static_range(BN // W):
        channels = column * BN + i * W + tl.arange(0, W)
        tl.store(dgain_ptr + group * D + channels, tl.sum(dgain[i], 0), mask=channels < D)


@triton.jit
def _add_norm_backward_rows(
    tensors, results, gate, sums, strides, sizes, scale,
    BT: tl.constexpr, BN: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """A group of `blocks` row blocks, BT whole rows each."""
    product_ptr, dy_ptr, dn_ptr, y_ptr, rstd_ptr, _, gain_ptr = tensors
    dx_ptr, dproduct_ptr, dgain_ptr = results
    stride, dy_stride, dn_stride, y_stride, dz_stride = gates.aligned_each(strides, UNIT)
    T, D, blocks = sizes
    D = gates.aligned(D, UNIT)
    group = tl.program_id(0).to(tl.int64)
    rows, channels = tl.arange(0, BT), tl.arange(0, BN)
    gain = tl.load(gain_ptr + channels, mask=channels < D, other=0.0).to(tl.float32)[None, :]
    across = channels[None, :]
    dgain = tl.zeros([BT, BN], tl.float32)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        inside = inside_T[:, None] & (channels < D)[None, :]
        at = (row + rows)[:, None]
        source = product_ptr + row * stride
        dn = tl.load(dn_ptr + at * dn_stride + across, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + at * y_stride + across, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at * dy_stride + across, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row + rows, mask=inside_T, other=0.0)[:, None]
        yhat = y * rstd
        both = dn * yhat
        dgain += both
        mean = tl.sum(both * gain, 1)[:, None] / D
        dx = dy + rstd * (dn * gain - yhat * mean)
        tl.store(dx_ptr + at * D + across, dx, mask=inside)
        dz = dx * gates.row_gate(source, stride, gate, inside_T, scale, R, BL, tl.float32)[2][:, None]
        if dproduct_ptr is not None:
            tl.store(dproduct_ptr + at * dz_stride + across, dz, mask=inside)
        if gate[3] is not None:
            z = tl.load(source + rows[:, None] * stride + across, mask=inside, other=0.0).to(tl.float32)
            total = tl.sum(tl.where(inside, dz * z, 0.0), 1)
            tl.store(sums[1][1] + row + rows, total, mask=inside_T)
    tl.store(dgain_ptr + group * D + channels, tl.sum(dgain, 0), mask=channels < D)
