"""Every site's columns times its gate, and the gradients: the form for sites whose consumer has no kernel of its own.

Shapes and equations as in `kernels.triton.gates`. One launch for a gated site; what is not gated is copied.
"""

# Triton knows tuples as long as it can count, and builds them by adding.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment,unreachable"

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton import gates, launch
from comt_cli.kernels.triton.sums import Parts


def modulate(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    """Return zhat, [T, M], in the type of the product. See `reference`."""
    product_TC = launch.unit_stride(product_TC)
    T, layout = len(product_TC), launch.Layout(modulation, widths)
    zhat_TM = product_TC.new_empty(T, layout.width)
    tile = layout.tile("modulate", product_TC.dtype)
    for site in layout.sites if T else ():
        if not site.gated:
            zhat_TM[:, site.columns] = product_TC[:, site.columns]
            continue
        columns = triton.cdiv(site.width, tile.channels)
        groups, blocks = launch.groups(product_TC, tile, columns)
        launch.run(
            _modulate,
            (columns, groups),
            (product_TC, zhat_TM),
            layout.gate(site),
            (product_TC.stride(0), layout.width),
            (T, site.width, site.first, blocks),
            layout.scale,
            tile=tile,
            **layout.constants(tile, product_TC, columns=(layout.width, site.width, site.first)),
        )
    return zhat_TM


def modulate_backward(
    G_TM: Tensor, product_TC: Tensor, modulation: Modulation, widths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dproduct, [T, C], in the type of the product, and dWc and dws in fp32, for G = dL/dzhat."""
    G_TM, product_TC = launch.unit_stride(G_TM), launch.unit_stride(product_TC)
    T, layout = len(product_TC), launch.Layout(modulation, widths)
    tile = layout.tile("modulate_backward", product_TC.dtype)
    columns = [triton.cdiv(width, tile.channels) for width in widths]
    groups, blocks = launch.groups(product_TC, tile, max(columns))
    parts = Parts(layout, product_TC, groups, columns)
    dproduct_TC = product_TC.new_empty(product_TC.shape)
    for site, count, first in zip(layout.sites, columns, parts.firsts, strict=True) if T else ():
        if not site.gated:
            dproduct_TC[:, site.columns] = G_TM[:, site.columns]
            continue
        launch.run(
            _modulate_backward,
            (count, groups),
            (product_TC, G_TM, dproduct_TC),
            layout.gate(site),
            parts.tensors,
            (product_TC.stride(0), G_TM.stride(0), dproduct_TC.stride(0)),
            (T, site.width, site.first, blocks, layout.channels, first),
            layout.scale,
            tile=tile,
            **layout.constants(tile, product_TC, G_TM, dproduct_TC, columns=(site.width, site.first)),
        )
    dWc, dws = parts.finish(product_TC, layout.width, dproduct_TC)
    return dproduct_TC, dWc, dws


@triton.jit
def _modulate(
    tensors, gate, strides, sizes, scale,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BN channels of a site in a group of `blocks` row blocks, in tiles of W."""
    product_ptr, zhat_ptr = tensors
    TYPE: tl.constexpr = product_ptr.dtype.element_ty
    stride, zhat_stride = gates.aligned(strides[0], UNIT), gates.aligned(strides[1], UNIT)
    T, N, first, blocks = sizes
    N, first = gates.aligned(N, UNIT), gates.aligned(first, UNIT)
    column, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BT)
    matrices = gates.matrices(gate, column * BN, N, BN // W, R, TYPE)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        source, target = product_ptr + row * stride, zhat_ptr + row * zhat_stride
        of_rows = gates.row_gate(source, stride, gate, inside_T, scale, R, BL, TYPE)
        for i in tl.static_range(BN // W):
            channels = column * BN + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (channels < N)[None, :]
            z = tl.load(source + first + rows[:, None] * stride + channels[None, :], mask=inside, other=0.0)
            zhat = z.to(tl.float32) * gates.tile_gate(gate, of_rows, matrices[2 * i], TYPE)[1]
            tl.store(target + first + rows[:, None] * zhat_stride + channels[None, :], zhat, mask=inside)


@triton.jit
def _modulate_backward(
    tensors, gate, sums, strides, sizes, scale,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BN channels of a site in a group of `blocks` row blocks, in tiles of W."""
    product_ptr, G_ptr, dproduct_ptr = tensors
    dWc_ptr, parts = sums
    TYPE: tl.constexpr = product_ptr.dtype.element_ty
    stride, G_stride, dz_stride = (
        gates.aligned(strides[0], UNIT),
        gates.aligned(strides[1], UNIT),
        gates.aligned(strides[2], UNIT),
    )
    T, N, first, blocks, Mg, first_part = sizes
    N, first = gates.aligned(N, UNIT), gates.aligned(first, UNIT)
    column, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BT)
    matrices = gates.matrices(gate, column * BN, N, BN // W, R, TYPE)
    dWc = gates.no_sums(gate, BN // W)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        source, G_rows, target = product_ptr + row * stride, G_ptr + row * G_stride, dproduct_ptr + row * dz_stride
        of_rows = gates.row_gate(source, stride, gate, inside_T, scale, R, BL, TYPE)
        dp = gates.no_sum(gate, BT)
        total = tl.zeros([BT], tl.float32)
        before = dWc
        dWc = ()
        for i in tl.static_range(BN // W):
            channels = column * BN + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (channels < N)[None, :]
            z = tl.load(source + first + rows[:, None] * stride + channels[None, :], mask=inside, other=0.0)
            G_at = G_rows + first + rows[:, None] * G_stride + channels[None, :]
            t, factor = gates.tile_gate(gate, of_rows, matrices[2 * i], TYPE)
            dz = tl.load(G_at, mask=inside, other=0.0).to(tl.float32) * factor
            tl.store(target + first + rows[:, None] * dz_stride + channels[None, :], dz, mask=inside)
            h = dz * z.to(tl.float32)
            more, dW = gates.gate_gradient(gate, of_rows, h, t, matrices[2 * i + 1], TYPE)
            dp += more
            dWc = dWc + (before[i] + dW,)
            total += tl.sum(h, 1)
        gates.store_parts(gate, parts, first_part + column, T, row, dp, total, inside_T, R)
    gates.store_sums(gate, dWc_ptr, group, Mg, column * BN, N, dWc, BN // W, R)
