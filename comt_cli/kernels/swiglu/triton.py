"""silu(gate) * up of two gated sites, and the gradients from those of the result.

Shapes as in `gates`, and F channels of each site. With a, b the gated halves, zhat of gate and up:
    h = a sigmoid(a) b     da = dh b s (1 + a (1 - s))     db = dh a s     s = sigmoid(a)
The backward pass reads the product again and gates it anew: nothing is kept but what an ungated SwiGLU keeps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.gates import (
    aligned,
    gate_gradient,
    prepare,
    sigmoid,
    store_du,
    store_dws,
    tile_gate,
    zero_columns,
)


def swiglu(product_TC: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    """Return h, [T, padded], in the type of the product, with zeros from column `width` on. See `reference`."""
    product_TC = launch.unit_stride(product_TC)
    T, gates = len(product_TC), launch.Gates(modulation, [width, width])
    h_TF = product_TC.new_empty(T, padded)
    if T == 0:
        return h_TF
    tile = launch.options("swiglu", width, gates.rank, product_TC.dtype, T)
    shares, span = launch.spans(T, padded, tile)
    with torch.cuda.device_of(product_TC):
        _swiglu[triton.cdiv(T, tile.rows), shares](
            *(gates.source(product_TC, site) for site in gates.sites),
            h_TF,
            (product_TC.stride(0), h_TF.stride(0)),
            (T, width, padded, span),
            gates.scale,
            **gates.constants(tile, product_TC, h_TF, channels=(width, padded)),
        )
    return h_TF


def swiglu_backward(
    dh_TF: Tensor, product_TC: Tensor, modulation: Modulation, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dproduct, [T, C], in the type of the product, and dWc and dws in fp32."""
    dh_TF, product_TC = launch.unit_stride(dh_TF), launch.unit_stride(product_TC)
    (T, C), gates = product_TC.shape, launch.Gates(modulation, [width, width])
    tile = launch.options("swiglu_backward", width, gates.rank, product_TC.dtype, T)
    count, blocks = launch.groups(product_TC, tile, gates)
    sums = launch.Sums(gates, count)
    dproduct_TC = product_TC.new_empty(T, C)
    if T == 0:
        return dproduct_TC, *sums.total(product_TC)
    with torch.cuda.device_of(product_TC):
        _swiglu_backward[(count,)](
            *((gates.source(product_TC, site), sums.target(dproduct_TC, site)) for site in gates.sites),
            dh_TF,
            dproduct_TC,
            (product_TC.stride(0), dh_TF.stride(0), dproduct_TC.stride(0)),
            (T, width, blocks),
            (gates.used, C),
            gates.scale,
            **gates.constants(tile, product_TC, dh_TF, dproduct_TC, channels=(width,)),
        )
    return dproduct_TC, *sums.total(product_TC)


@triton.jit
def _swiglu(
    gate_site,
    up_site,
    h_ptr,
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
    a_ptr, ua_ptr, Wca_ptr, wsa_ptr = gate_site
    b_ptr, ub_ptr, Wcb_ptr, wsb_ptr = up_site
    T, F, padded, span = sizes
    F = aligned(F, UNIT)  # whole vectors lie inside or outside
    padded = aligned(padded, UNIT)
    product_stride = aligned(strides[0], UNIT)
    h_stride = aligned(strides[1], UNIT)
    row = tl.program_id(0).to(tl.int64) * BT
    rows = tl.arange(0, BT)
    inside_T = rows < T - row
    a_ptr += row * product_stride
    b_ptr += row * product_stride
    h_ptr += row * h_stride
    gate_a = prepare(ua_ptr + row * product_stride, product_stride, Wca_ptr, wsa_ptr, inside_T, R, BR, TYPE)
    gate_b = prepare(ub_ptr + row * product_stride, product_stride, Wcb_ptr, wsb_ptr, inside_T, R, BR, TYPE)
    share = tl.program_id(1) * span
    for tile in range(share, share + span):
        channels = tile * BN + tl.arange(0, BN)
        inside_N = channels < F
        inside = inside_T[:, None] & inside_N[None, :]
        z = rows[:, None] * product_stride + channels[None, :]
        a = tl.load(a_ptr + z, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + z, mask=inside, other=0.0).to(tl.float32)
        a *= tile_gate(channels, inside_N, gate_a, Wca_ptr, wsa_ptr, scale, R, BR, TYPE)[0]
        b *= tile_gate(channels, inside_N, gate_b, Wcb_ptr, wsb_ptr, scale, R, BR, TYPE)[0]
        h = tl.where(inside, a * sigmoid(a) * b, 0.0)
        written = inside_T[:, None] & (channels < padded)[None, :]
        tl.store(h_ptr + rows[:, None] * h_stride + channels[None, :], h, mask=written)


@triton.jit
def _swiglu_backward(  # noqa: PLR0915 - one walk along a row
    gate_site,
    up_site,
    dh_ptr,
    dproduct_ptr,
    strides,
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
    """A group of `blocks` row blocks, all channels of both sites."""
    a_ptr, ua_ptr, Wca_ptr, wsa_ptr = gate_site[0]
    b_ptr, ub_ptr, Wcb_ptr, wsb_ptr = up_site[0]
    da_ptr, dua_ptr, dWca_ptr, dWca_stride, dwsa_ptr, dwsa_stride = gate_site[1]
    db_ptr, dub_ptr, dWcb_ptr, dWcb_stride, dwsb_ptr, dwsb_stride = up_site[1]
    T, F, blocks = sizes
    F = aligned(F, UNIT)
    product_stride = aligned(strides[0], UNIT)
    dh_stride = aligned(strides[1], UNIT)
    dproduct_stride = aligned(strides[2], UNIT)
    group = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, BT)
    if dWca_ptr is not None:
        dWca_ptr += group * dWca_stride
    if dWcb_ptr is not None:
        dWcb_ptr += group * dWcb_stride
    dwsa = tl.zeros([BR], tl.float32)
    dwsb = tl.zeros([BR], tl.float32)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        source = row * product_stride
        target = row * dproduct_stride
        dh_row = dh_ptr + row * dh_stride
        gate_a = prepare(ua_ptr + source, product_stride, Wca_ptr, wsa_ptr, inside_T, R, BR, TYPE)
        gate_b = prepare(ub_ptr + source, product_stride, Wcb_ptr, wsb_ptr, inside_T, R, BR, TYPE)
        dpa = tl.zeros([BT, BR], tl.float32)
        dpb = tl.zeros([BT, BR], tl.float32)
        total_a = tl.zeros([BT], tl.float32)
        total_b = tl.zeros([BT], tl.float32)
        for start in range(0, F, BN):
            channels = start + tl.arange(0, BN)
            inside_N = channels < F
            inside = inside_T[:, None] & inside_N[None, :]
            z = rows[:, None] * product_stride + channels[None, :]
            a = tl.load(a_ptr + source + z, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(b_ptr + source + z, mask=inside, other=0.0).to(tl.float32)
            dh = tl.load(dh_row + rows[:, None] * dh_stride + channels[None, :], mask=inside, other=0.0)
            dh = dh.to(tl.float32)
            tile_a = tile_gate(channels, inside_N, gate_a, Wca_ptr, wsa_ptr, scale, R, BR, TYPE)
            tile_b = tile_gate(channels, inside_N, gate_b, Wcb_ptr, wsb_ptr, scale, R, BR, TYPE)
            a *= tile_a[0]
            b *= tile_b[0]
            s = sigmoid(a)
            da = dh * b * s * (1 + a * (1 - s))
            db = dh * a * s
            dz = rows[:, None] * dproduct_stride + channels[None, :]
            tl.store(da_ptr + target + dz, da * tile_a[0], mask=inside)
            dpa, total_a = gate_gradient(
                da * a,
                channels,
                inside_T,
                inside_N,
                gate_a,
                tile_a,
                dpa,
                total_a,
                Wca_ptr,
                wsa_ptr,
                dWca_ptr,
                block > 0,
                R,
                BR,
                TYPE,
            )
            tl.store(db_ptr + target + dz, db * tile_b[0], mask=inside)
            dpb, total_b = gate_gradient(
                db * b,
                channels,
                inside_T,
                inside_N,
                gate_b,
                tile_b,
                dpb,
                total_b,
                Wcb_ptr,
                wsb_ptr,
                dWcb_ptr,
                block > 0,
                R,
                BR,
                TYPE,
            )
        du = dua_ptr + target
        dwsa = store_du(du, dproduct_stride, inside_T, gate_a, dpa, total_a, dwsa, Wca_ptr, wsa_ptr, R, BR)
        du = dub_ptr + target
        dwsb = store_du(du, dproduct_stride, inside_T, gate_b, dpb, total_b, dwsb, Wcb_ptr, wsb_ptr, R, BR)
        zero_columns(dproduct_ptr + target, dproduct_stride, inside_T, rest[0], rest[1], BR)
        tl.debug_barrier()  # the next block reads what other threads have added to dWc
    store_dws(dwsa_ptr, dwsa_stride, dwsa, R, BR)
    store_dws(dwsb_ptr, dwsb_stride, dwsb, R, BR)
