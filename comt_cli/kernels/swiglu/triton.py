"""silu(gate) * up of two gated sites, and the gradients from those of the result.

Shapes as in `kernels.triton.gates`, and F channels of each site. With a, b the gated halves, zhat of gate and up:
    h = a sigmoid(a) b     da = dh b s (1 + a (1 - s))     db = dh a s     s = sigmoid(a)
The backward pass reads the product again and gates it anew: nothing is kept but what an ungated SwiGLU keeps.
"""

# Triton knows tuples as long as it can count, and builds them by adding.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment,unreachable"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton import gates, launch
from comt_cli.kernels.triton.sums import Parts


def swiglu(product_TC: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    """Return h, [T, padded], in the type of the product, with zeros from column `width` on. See `reference`."""
    product_TC = launch.unit_stride(product_TC)
    T, layout = len(product_TC), launch.Layout(modulation, (width, width))
    h_TF = product_TC.new_empty(T, padded)
    if T:
        tile = layout.tile("swiglu", product_TC.dtype)
        columns = triton.cdiv(padded, tile.channels)
        groups, blocks = launch.groups(product_TC, tile, columns)
        launch.run(
            _swiglu,
            (columns, groups),
            (product_TC, h_TF),
            *(layout.gate(site) for site in layout.sites),
            (product_TC.stride(0), padded),
            (T, width, padded, blocks),
            layout.scale,
            tile=tile,
            FILLED=padded > width,
            **layout.constants(tile, product_TC, columns=(width, padded)),
        )
    return h_TF


def swiglu_backward(
    dh_TF: Tensor, product_TC: Tensor, modulation: Modulation, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dproduct, [T, C], in the type of the product, and dWc and dws in fp32."""
    dh_TF, product_TC = launch.unit_stride(dh_TF), launch.unit_stride(product_TC)
    T, layout = len(product_TC), launch.Layout(modulation, (width, width))
    tile = layout.tile("swiglu_backward", product_TC.dtype)
    columns = triton.cdiv(width, tile.channels)
    groups, blocks = launch.groups(product_TC, tile, columns)
    parts = Parts(layout, product_TC, groups, (columns, columns))
    dproduct_TC = product_TC.new_empty(product_TC.shape)
    if T:
        launch.run(
            _swiglu_backward,
            (columns, groups),
            (product_TC, dh_TF, dproduct_TC),
            *(layout.gate(site) for site in layout.sites),
            parts.tensors,
            (product_TC.stride(0), dh_TF.stride(0), dproduct_TC.stride(0)),
            (T, width, blocks, layout.channels, parts.firsts[1]),
            layout.scale,
            tile=tile,
            **layout.constants(tile, product_TC, dh_TF, dproduct_TC, columns=(width,)),
        )
    dWc, dws = parts.finish(product_TC, layout.width, dproduct_TC)
    return dproduct_TC, dWc, dws


@triton.jit
def _swiglu(
    tensors, gate, up, strides, sizes, scale, FILLED: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BN channels of both sites in a group of `blocks` row blocks, in tiles of W."""
    product_ptr, h_ptr = tensors
    TYPE: tl.constexpr = product_ptr.dtype.element_ty
    stride, h_stride = gates.aligned(strides[0], UNIT), gates.aligned(strides[1], UNIT)
    T, F, padded, blocks = sizes
    F, padded = gates.aligned(F, UNIT), gates.aligned(padded, UNIT)  # whole vectors lie inside or outside
    first, group = tl.program_id(0) * BN, tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BT)
    Wa = gates.matrices(gate, first, F, BN // W, R, TYPE)
    Wb = gates.matrices(up, first, F, BN // W, R, TYPE)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        source, target = product_ptr + row * stride, h_ptr + row * h_stride
        z = ()
        for i in tl.static_range(BN // W):
            channels = first + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (channels < F)[None, :]
            a_ptr = source + rows[:, None] * stride + channels[None, :]
            z = z + (tl.load(a_ptr, mask=inside, other=0.0), tl.load(a_ptr + F, mask=inside, other=0.0))
        gate_rows = gates.row_gate(source, stride, gate, inside_T, scale, R, BL, TYPE)
        up_rows = gates.row_gate(source, stride, up, inside_T, scale, R, BL, TYPE)
        for i in tl.static_range(BN // W):
            channels = first + i * W + tl.arange(0, W)
            a = z[2 * i].to(tl.float32) * gates.tile_gate(gate, gate_rows, Wa[2 * i], TYPE)[1]
            b = z[2 * i + 1].to(tl.float32) * gates.tile_gate(up, up_rows, Wb[2 * i], TYPE)[1]
            h = a * gates.sigmoid(a) * b
            if FILLED:
                h = tl.where((channels < F)[None, :], h, 0.0)
            written = inside_T[:, None] & (channels < padded)[None, :]
            tl.store(target + rows[:, None] * h_stride + channels[None, :], h, mask=written)


@triton.jit
def _swiglu_backward(  # noqa: PLR0915 - one walk down the rows
    tensors, gate, up, sums, strides, sizes, scale,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BN channels of both sites in a group of `blocks` row blocks, in tiles of W."""
    product_ptr, dh_ptr, dproduct_ptr = tensors
    dWc_ptr, parts = sums
    TYPE: tl.constexpr = product_ptr.dtype.element_ty
    stride, dh_stride, dz_stride = (
        gates.aligned(strides[0], UNIT),
        gates.aligned(strides[1], UNIT),
        gates.aligned(strides[2], UNIT),
    )
    T, F, blocks, Mg, up_parts = sizes
    F = gates.aligned(F, UNIT)
    column, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BT)
    Wa = gates.matrices(gate, column * BN, F, BN // W, R, TYPE)
    Wb = gates.matrices(up, column * BN, F, BN // W, R, TYPE)
    dWa = gates.no_sums(gate, BN // W)
    dWb = gates.no_sums(up, BN // W)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        source, dh_rows, target = product_ptr + row * stride, dh_ptr + row * dh_stride, dproduct_ptr + row * dz_stride
        gate_rows = gates.row_gate(source, stride, gate, inside_T, scale, R, BL, TYPE)
        up_rows = gates.row_gate(source, stride, up, inside_T, scale, R, BL, TYPE)
        dpa = gates.no_sum(gate, BT)
        dpb = gates.no_sum(up, BT)
        ha = tl.zeros([BT], tl.float32)
        hb = tl.zeros([BT], tl.float32)
        dWa_then, dWb_then = dWa, dWb
        dWa = ()
        dWb = ()
        for i in tl.static_range(BN // W):
            channels = column * BN + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (channels < F)[None, :]
            a_ptr = source + rows[:, None] * stride + channels[None, :]
            dh_at = dh_rows + rows[:, None] * dh_stride + channels[None, :]
            za = tl.load(a_ptr, mask=inside, other=0.0).to(tl.float32)
            zb = tl.load(a_ptr + F, mask=inside, other=0.0).to(tl.float32)
            dh = tl.load(dh_at, mask=inside, other=0.0).to(tl.float32)
            ta, fa = gates.tile_gate(gate, gate_rows, Wa[2 * i], TYPE)
            tb, fb = gates.tile_gate(up, up_rows, Wb[2 * i], TYPE)
            a, b = za * fa, zb * fb
            s = gates.sigmoid(a)
            dhs = dh * s
            dza = dhs * b * (1 + a * (1 - s)) * fa
            dzb = dhs * a * fb
            da_ptr = target + rows[:, None] * dz_stride + channels[None, :]
            tl.store(da_ptr, dza, mask=inside)
            tl.store(da_ptr + F, dzb, mask=inside)
            za, zb = dza * za, dzb * zb
            dp, dW = gates.gate_gradient(gate, gate_rows, za, ta, Wa[2 * i + 1], TYPE)
            dpa += dp
            dWa = dWa + (dWa_then[i] + dW,)
            dp, dW = gates.gate_gradient(up, up_rows, zb, tb, Wb[2 * i + 1], TYPE)
            dpb += dp
            dWb = dWb + (dWb_then[i] + dW,)
            ha += tl.sum(za, 1)
            hb += tl.sum(zb, 1)
        gates.store_parts(gate, parts, column, T, row, dpa, ha, inside_T, R)
        gates.store_parts(up, parts, up_parts + column, T, row, dpb, hb, inside_T, R)
    gates.store_sums(gate, dWc_ptr, group, Mg, column * BN, F, dWa, BN // W, R)
    gates.store_sums(up, dWc_ptr, group, Mg, column * BN, F, dWb, BN // W, R)
