"""One gated site, zhat, or two of them joined as silu(gate) * up; and the gradients from those of the result.

Shapes as in `gates`, and F channels of a site. With a, b the gated sites, zhat of gate and up:
    h = a sigmoid(a) b     da = dh b s (1 + a (1 - s))     db = dh a s     s = sigmoid(a)
The backward pass reads the product again and gates it anew: nothing is kept but what ungated sites keep.
"""

# Triton knows tuples as long as it can count, and builds them by adding.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment,unreachable"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.triton import gates, launch
from comt_cli.kernels.triton.sums import Parts
from comt_cli.kernels.triton.tiles import Tile


def forward(layout: launch.Layout, tile: Tile, of: slice, product_TC: Tensor, out_TF: Tensor, padded: int) -> None:
    """Writes the site of a layout that the slice names, or its two, into the first `padded` columns of `out_TF`."""
    sites, rows = layout.sites[of], (product_TC, out_TF)
    columns, (first, F) = launch.cdiv(padded, tile.channels), sites[0][:2]
    groups, blocks = launch.groups(product_TC, tile, columns)
    layout.run(
        _sites,
        (columns, groups),
        rows,
        layout.gate(sites[0]),
        layout.gate(sites[-1]),
        tuple(each.stride(0) for each in rows),
        (len(product_TC), first, F, padded, blocks),
        tile=tile,
        rows=rows,
        columns=(first, F, padded),
        JOINS=len(sites) == 2,
        FILLED=padded > F,
    )


def backward(parts: Parts, of: slice, product_TC: Tensor, G_TF: Tensor, dproduct_TC: Tensor) -> None:
    """Writes the columns of these sites of dproduct, and the parts of their gates' gradients, for G = dL/d`out`."""
    layout, rows = parts.layout, (product_TC, G_TF, dproduct_TC)
    sites = layout.sites[of]
    first, F = sites[0][:2]
    layout.run(
        _sites_backward,
        (parts.columns[of][0], parts.groups),
        rows,
        layout.gate(sites[0]),
        layout.gate(sites[-1]),
        parts.tensors,
        tuple(each.stride(0) for each in rows),
        (len(product_TC), first, F, parts.blocks, layout.channels),
        tuple(parts.firsts[of]),
        tile=parts.tile,
        rows=rows,
        columns=(first, F),
        JOINS=len(sites) == 2,
    )


@triton.jit
def _sites(
    tensors, gate, up, strides, sizes, scale, JOINS: tl.constexpr, FILLED: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BN channels in a group of `blocks` row blocks, in tiles of W."""
    product_ptr, out_ptr = tensors
    TYPE: tl.constexpr = product_ptr.dtype.element_ty
    stride, out_stride = gates.aligned_each(strides, UNIT)
    T, first, F, padded, blocks = sizes
    first, F, padded = gates.aligned(first, UNIT), gates.aligned(F, UNIT), gates.aligned(padded, UNIT)
    column, group = tl.program_id(0) * BN, tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BT)
    Wa = gates.matrices(gate, column, F, BN // W, R, TYPE)
    if JOINS:
        Wb = gates.matrices(up, column, F, BN // W, R, TYPE)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        source, target = product_ptr + row * stride, out_ptr + row * out_stride
        za = ()
        zb = ()
        for i in tl.static_range(BN // W):
            channels = column + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (channels < F)[None, :]
            z_ptr = source + first + rows[:, None] * stride + channels[None, :]
            za = za + (tl.load(z_ptr, mask=inside, other=0.0),)
            if JOINS:
                zb = zb + (tl.load(z_ptr + F, mask=inside, other=0.0),)
        gate_rows = gates.row_gate(source, stride, gate, inside_T, scale, R, BL, TYPE)
        if JOINS:
            up_rows = gates.row_gate(source, stride, up, inside_T, scale, R, BL, TYPE)
        for i in tl.static_range(BN // W):
            channels = column + i * W + tl.arange(0, W)
            out = za[i].to(tl.float32) * gates.tile_gate(gate, gate_rows, Wa[2 * i], TYPE)[1]
            if JOINS:
                b = zb[i].to(tl.float32) * gates.tile_gate(up, up_rows, Wb[2 * i], TYPE)[1]
                out = out * gates.sigmoid(out) * b
            if FILLED:
                out = tl.where((channels < F)[None, :], out, 0.0)
            written = inside_T[:, None] & (channels < padded)[None, :]
            tl.store(target + rows[:, None] * out_stride + channels[None, :], out, mask=written)


@triton.jit
def _sites_backward(  # noqa: PLR0915 - one walk down the rows
    tensors, gate, up, sums, strides, sizes, firsts, scale, JOINS: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BN channels in a group of `blocks` row blocks, in tiles of W."""
    product_ptr, G_ptr, dproduct_ptr = tensors
    dWc_ptr, parts = sums
    TYPE: tl.constexpr = product_ptr.dtype.element_ty
    stride, G_stride, dz_stride = gates.aligned_each(strides, UNIT)
    T, first, F, blocks, Mg = sizes
    first, F = gates.aligned(first, UNIT), gates.aligned(F, UNIT)
    column, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BT)
    Wa, dWa = gates.matrices(gate, column * BN, F, BN // W, R, TYPE), gates.no_sums(gate, BN // W)
    if JOINS:
        Wb, dWb = gates.matrices(up, column * BN, F, BN // W, R, TYPE), gates.no_sums(up, BN // W)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        source, G_rows, target = product_ptr + row * stride, G_ptr + row * G_stride, dproduct_ptr + row * dz_stride
        gate_rows = gates.row_gate(source, stride, gate, inside_T, scale, R, BL, TYPE)
        dpa, ha = gates.no_sum(gate, BT), tl.zeros([BT], tl.float32)
        dWa_then = dWa
        dWa = ()
        if JOINS:
            up_rows = gates.row_gate(source, stride, up, inside_T, scale, R, BL, TYPE)
            dpb, hb = gates.no_sum(up, BT), tl.zeros([BT], tl.float32)
            dWb_then = dWb
            dWb = ()
        for i in tl.static_range(BN // W):
            channels = column * BN + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (channels < F)[None, :]
            z_ptr = source + first + rows[:, None] * stride + channels[None, :]
            dz_ptr = target + first + rows[:, None] * dz_stride + channels[None, :]
            za = tl.load(z_ptr, mask=inside, other=0.0).to(tl.float32)
            G = tl.load(G_rows + rows[:, None] * G_stride + channels[None, :], mask=inside, other=0.0).to(tl.float32)
            ta, fa = gates.tile_gate(gate, gate_rows, Wa[2 * i], TYPE)
            dza = G * fa
            if JOINS:
                zb = tl.load(z_ptr + F, mask=inside, other=0.0).to(tl.float32)
                tb, fb = gates.tile_gate(up, up_rows, Wb[2 * i], TYPE)
                a, b = za * fa, zb * fb
                s = gates.sigmoid(a)
                Gs = G * s
                dza = Gs * b * (1 + a * (1 - s)) * fa
                dzb = Gs * a * fb
                tl.store(dz_ptr + F, dzb, mask=inside)
            tl.store(dz_ptr, dza, mask=inside)
            h = dza * za
            dp, dW = gates.gate_gradient(gate, gate_rows, h, ta, Wa[2 * i + 1], TYPE)
            dpa += dp
            ha += tl.sum(h, 1)
            dWa = dWa + (dWa_then[i] + dW,)
            if JOINS:
                h = dzb * zb
                dp, dW = gates.gate_gradient(up, up_rows, h, tb, Wb[2 * i + 1], TYPE)
                dpb += dp
                hb += tl.sum(h, 1)
                dWb = dWb + (dWb_then[i] + dW,)
        gates.store_parts(gate, parts, firsts[0] + column, T, row, dpa, ha, inside_T, R)
        if JOINS:
            gates.store_parts(up, parts, firsts[1] + column, T, row, dpb, hb, inside_T, R)
    gates.store_sums(gate, dWc_ptr, group, Mg, column * BN, F, dWa, BN // W, R)
    if JOINS:
        gates.store_sums(up, dWc_ptr, group, Mg, column * BN, F, dWb, BN // W, R)
