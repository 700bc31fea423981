"""Every site's columns times its gate, and the gradients: the form for sites whose consumer has no kernel of its own.

Shapes and equations as in `gates`. One launch for a gated site; what is not gated is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.gates import aligned, gate_gradient, prepare, store_du, store_dws, tile_gate


def modulate(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    """Return zhat, [T, M], in the type of the product. See `reference`."""
    product_TC = launch.unit_stride(product_TC)
    T, gates = len(product_TC), launch.Gates(modulation, widths)
    zhat_TM = product_TC.new_empty(T, gates.width)
    with torch.cuda.device_of(product_TC):
        for site in gates.sites if T else ():
            if not site.gated:
                zhat_TM[:, site.columns] = product_TC[:, site.columns]
                continue
            tile = launch.options("modulate", site.width, gates.rank, product_TC.dtype, T)
            shares, span = launch.spans(T, site.width, tile)
            _modulate[triton.cdiv(T, tile.rows), shares](
                gates.source(product_TC, site),
                zhat_TM[:, site.columns],
                (product_TC.stride(0), zhat_TM.stride(0)),
                (T, site.width, span),
                gates.scale,
                **gates.constants(tile, product_TC, zhat_TM),
            )
    return zhat_TM


def modulate_backward(
    G_TM: Tensor, product_TC: Tensor, modulation: Modulation, widths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dproduct, [T, C], in the type of the product, and dWc and dws in fp32, for G = dL/dzhat."""
    G_TM, product_TC = launch.unit_stride(G_TM), launch.unit_stride(product_TC)
    (T, C), gates = product_TC.shape, launch.Gates(modulation, widths)
    tile = launch.options("modulate_backward", max(widths), gates.rank, product_TC.dtype, T)
    count, blocks = launch.groups(product_TC, tile, gates)
    sums = launch.Sums(gates, count)
    dproduct_TC = product_TC.new_empty(T, C)
    dproduct_TC[:, gates.used :].zero_()
    with torch.cuda.device_of(product_TC):
        for site in gates.sites if T else ():
            if not site.gated:
                dproduct_TC[:, site.columns] = G_TM[:, site.columns]
                continue
            _modulate_backward[(count,)](
                gates.source(product_TC, site),
                G_TM[:, site.columns],
                sums.target(dproduct_TC, site),
                (product_TC.stride(0), product_TC.stride(0), G_TM.stride(0), dproduct_TC.stride(0)),
                (T, site.width, blocks),
                gates.scale,
                **gates.constants(tile, product_TC, G_TM, dproduct_TC),
            )
    return dproduct_TC, *sums.total(product_TC)


@triton.jit
def _modulate(
    site,
    zhat_ptr,
    strides,
    sizes,
    scale,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    UNIT: tl.constexpr,
):
    """`span` tiles of a row block."""
    z_ptr, u_ptr, Wc_ptr, ws_ptr = site
    T, N, span = sizes
    product_stride = aligned(strides[0], UNIT)
    zhat_stride = aligned(strides[1], UNIT)
    row = tl.program_id(0).to(tl.int64) * BT
    rows = tl.arange(0, BT)
    inside_T = rows < T - row
    z_ptr += row * product_stride
    zhat_ptr += row * zhat_stride
    gate = prepare(u_ptr + row * product_stride, product_stride, Wc_ptr, ws_ptr, inside_T, R, BR, TYPE)
    share = tl.program_id(1) * span
    for tile in range(share, share + span):
        channels = tile * BN + tl.arange(0, BN)
        inside_N = channels < N
        inside = inside_T[:, None] & inside_N[None, :]
        z = tl.load(z_ptr + rows[:, None] * product_stride + channels[None, :], mask=inside, other=0.0)
        zhat = z.to(tl.float32) * tile_gate(channels, inside_N, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)[0]
        tl.store(zhat_ptr + rows[:, None] * zhat_stride + channels[None, :], zhat, mask=inside)


@triton.jit
def _modulate_backward(
    site,
    G_ptr,
    gradients,
    strides,
    sizes,
    scale,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    UNIT: tl.constexpr,
):
    """A group of `blocks` row blocks, all channels."""
    z_ptr, u_ptr, Wc_ptr, ws_ptr = site
    dz_ptr, du_ptr, dWc_ptr, dWc_stride, dws_ptr, dws_stride = gradients
    T, N, blocks = sizes
    z_stride = aligned(strides[0], UNIT)
    u_stride = strides[1]
    G_stride = aligned(strides[2], UNIT)
    dproduct_stride = aligned(strides[3], UNIT)
    group = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, BT)
    if dWc_ptr is not None:
        dWc_ptr += group * dWc_stride
    dws = tl.zeros([BR], tl.float32)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        G_row = G_ptr + row * G_stride
        z_row = z_ptr + row * z_stride
        dz_row = dz_ptr + row * dproduct_stride
        gate = prepare(u_ptr + row * u_stride, u_stride, Wc_ptr, ws_ptr, inside_T, R, BR, TYPE)
        dp = tl.zeros([BT, BR], tl.float32)
        total = tl.zeros([BT], tl.float32)
        for start in range(0, N, BN):
            channels = start + tl.arange(0, BN)
            inside_N = channels < N
            inside = inside_T[:, None] & inside_N[None, :]
            G = tl.load(G_row + rows[:, None] * G_stride + channels[None, :], mask=inside, other=0.0)
            z = tl.load(z_row + rows[:, None] * z_stride + channels[None, :], mask=inside, other=0.0)
            tile = tile_gate(channels, inside_N, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)
            dz = G.to(tl.float32) * tile[0]
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
        tl.debug_barrier()  # the next block reads what other threads have added to dWc
    store_dws(dws_ptr, dws_stride, dws, R, BR)
