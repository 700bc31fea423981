"""Every site's columns times its gate, and the gradients: the form for sites whose consumer has no kernel of its own.

Shapes and equations as in `gates`. One launch for a gated site; what is not gated is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.gates import aligned, apply_gate, gate_gradient, prepare, store_du, store_dws


def modulate(
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    widths: Sequence[int],
) -> Tensor:
    """Return zhat, [T, M], in the type of the product. See `reference.modulate`."""
    product_TC = launch.unit_stride(product_TC)
    T, M = len(product_TC), sum(widths)
    gates = launch.gates(Wc, ws, scale, rank)
    zhat_TM = product_TC.new_empty(T, M)
    with torch.cuda.device_of(product_TC):
        for site in launch.sites(rank, gated, widths) if T else ():
            if not site.gated:
                zhat_TM[:, site.columns] = product_TC[:, site.columns]
                continue
            tile = launch.options("modulate", site.width, rank, product_TC.dtype)
            shares, span = launch.spans(T, site.width, tile)
            _modulate[triton.cdiv(T, tile.rows), shares](
                (product_TC[:, site.columns], product_TC[:, M + site.u :], *gates.of(site)),
                zhat_TM[:, site.columns],
                (product_TC.stride(0), zhat_TM.stride(0)),
                (T, site.width, span),
                scale,
                **gates.constants(tile, product_TC, zhat_TM),
            )
    return zhat_TM


def modulate_backward(
    G_TM: Tensor,
    z_TM: Tensor,
    u_TU: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    widths: Sequence[int],
    columns: int,
    z_is_output: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dproduct, [T, columns], in the type of z, and dWc and dws in fp32, for G = dL/dzhat.

    Where `z_is_output`, z holds zhat instead: enough, since all that is needed of either is h = G zhat.
    """
    G_TM, z_TM, u_TU = (launch.unit_stride(tensor) for tensor in (G_TM, z_TM, u_TU))
    T, M = len(z_TM), sum(widths)
    gates = launch.gates(Wc, ws, scale, rank)
    tile = launch.options("modulate_backward", max(widths), rank, z_TM.dtype)
    count, blocks = launch.groups(T, tile, gates)
    sums = launch.Sums(gates, count)
    dproduct_TC = z_TM.new_empty(T, columns)
    dproduct_TC[:, M + sum(gated) * rank :].zero_()
    with torch.cuda.device_of(z_TM):
        for site in launch.sites(rank, gated, widths) if T else ():
            if not site.gated:
                dproduct_TC[:, site.columns] = G_TM[:, site.columns]
                continue
            _modulate_backward[(count,)](
                (z_TM[:, site.columns], u_TU[:, site.u :], *gates.of(site)),
                G_TM[:, site.columns],
                (dproduct_TC[:, site.columns], dproduct_TC[:, M + site.u :], *sums.of(site)),
                (z_TM.stride(0), u_TU.stride(0), G_TM.stride(0), dproduct_TC.stride(0)),
                (T, site.width, blocks),
                scale,
                Z_IS_OUTPUT=z_is_output,
                **gates.constants(tile, z_TM, G_TM, dproduct_TC),
            )
    return dproduct_TC, *sums.total(z_TM)


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
        zhat = apply_gate(z.to(tl.float32), channels, inside_N, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)
        tl.store(zhat_ptr + rows[:, None] * zhat_stride + channels[None, :], zhat, mask=inside)


@triton.jit
def _modulate_backward(
    site,
    G_ptr,
    gradients,
    strides,
    sizes,
    scale,
    Z_IS_OUTPUT: tl.constexpr,
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
            dz, dp, total = gate_gradient(
                G.to(tl.float32),
                z.to(tl.float32),
                channels,
                inside_T,
                inside_N,
                gate,
                dp,
                total,
                Wc_ptr,
                ws_ptr,
                dWc_ptr,
                block > 0,
                scale,
                Z_IS_OUTPUT,
                R,
                BR,
                TYPE,
            )
            tl.store(dz_row + rows[:, None] * dproduct_stride + channels[None, :], dz, mask=inside)
        du_row = du_ptr + row * dproduct_stride
        dws = store_du(du_row, dproduct_stride, inside_T, gate, dp, total, dws, Wc_ptr, ws_ptr, R, BR)
        tl.debug_barrier()  # the next block reads what other threads have added to dWc
    store_dws(dws_ptr, dws_stride, dws, R, BR)
