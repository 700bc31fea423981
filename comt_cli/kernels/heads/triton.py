"""Queries, keys and values: gated, q and k rotated (RoPE), in one launch; and the gradients from those of the outputs.

Shapes as in `gates`, and P positions, E half the width of a head. Channels i and i + E of a head turn together:
    q1 = a cos - b sin     q2 = b cos + a sin     of a, b = zhat1, zhat2
A tile is BN such pairs, taken across the heads of a site: two tiles of channels, so that nothing is shuffled. The
backward pass needs no z: turning q and dq back gives zhat and its gradient, and h is their product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.gates import aligned, gate_gradient, prepare, store_du, store_dws, tile_gate, zero_columns


def heads(
    product_TC: Tensor, modulation: Modulation, cos_PE: Tensor, sin_PE: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, [T, heads 2 E], k and v, [T, kv_heads 2 E], and a copy of u, [T, S R]. See `reference`."""
    product_TC, cos_PE, sin_PE = (launch.unit_stride(tensor) for tensor in (product_TC, cos_PE, sin_PE))
    T, E = len(product_TC), cos_PE.shape[-1]
    widths = [2 * E * each for each in (heads, kv_heads, kv_heads)]
    gates = launch.Gates(modulation, widths)
    qkv = [product_TC.new_empty(T, width) for width in widths]
    u_TU = product_TC.new_empty(T, modulation.columns)
    q_TN, k_TN, v_TN = qkv
    if T == 0:
        return q_TN, k_TN, v_TN, u_TU
    tile = launch.options("heads", widths[0], gates.rank, product_TC.dtype, T)
    shares, span = launch.spans(T, max(heads, kv_heads) * E, tile, len(widths))
    q, k, v = (
        (*gates.source(product_TC, site), out_TN, u_TU[:, site.u :], site.width // 2)
        for site, out_TN in zip(gates.sites, qkv, strict=True)
    )
    with torch.cuda.device_of(product_TC):
        _heads[triton.cdiv(T, tile.rows), shares, len(widths)](
            q,
            k,
            v,
            (cos_PE, sin_PE, cos_PE.stride(0), sin_PE.stride(0), len(cos_PE)),
            (product_TC.stride(0), u_TU.stride(0)),
            (T, span),
            gates.scale,
            E=E,
            **gates.constants(tile, product_TC, *qkv),
        )
    return q_TN, k_TN, v_TN, u_TU


def heads_backward(
    dq_TN: Tensor,
    dk_TN: Tensor,
    dv_TN: Tensor,
    q_TN: Tensor,
    k_TN: Tensor,
    v_TN: Tensor,
    u_TU: Tensor,
    modulation: Modulation,
    cos_PE: Tensor,
    sin_PE: Tensor,
    heads: int,
    kv_heads: int,
    columns: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dproduct, [T, columns], in the type of q, and dWc and dws in fp32. q, k, v and u are `heads`' outputs."""
    gradients = [launch.unit_stride(tensor) for tensor in (dq_TN, dk_TN, dv_TN)]
    outputs = [launch.unit_stride(tensor) for tensor in (q_TN, k_TN, v_TN)]
    u_TU, cos_PE, sin_PE = (launch.unit_stride(tensor) for tensor in (u_TU, cos_PE, sin_PE))
    T, E = len(q_TN), cos_PE.shape[-1]
    gates = launch.Gates(modulation, [2 * E * each for each in (heads, kv_heads, kv_heads)])
    tile = launch.options("heads_backward", gates.sites[0].width, gates.rank, q_TN.dtype, T)
    count, blocks = launch.groups(q_TN, tile, gates, len(gates.sites))
    sums = launch.Sums(gates, count)
    dproduct_TC = q_TN.new_empty(T, columns)
    if T == 0:
        return dproduct_TC, *sums.total(q_TN)
    q, k, v = (
        (
            (out_TN, u_TU[:, site.u :], *gates.matrices(site), G_TN),
            sums.target(dproduct_TC, site),
            out_TN.stride(0),
            G_TN.stride(0),
            site.width // 2,
        )
        for site, out_TN, G_TN in zip(gates.sites, outputs, gradients, strict=True)
    )
    with torch.cuda.device_of(q_TN):
        _heads_backward[count, len(gates.sites)](
            q,
            k,
            v,
            dproduct_TC,
            (cos_PE, sin_PE, cos_PE.stride(0), sin_PE.stride(0), len(cos_PE)),
            (u_TU.stride(0), dproduct_TC.stride(0)),
            (T, blocks),
            (gates.used, columns),
            gates.scale,
            E=E,
            **gates.constants(tile, q_TN, dproduct_TC, *gradients, *outputs),
        )
    return dproduct_TC, *sums.total(q_TN)


@triton.jit
def _turn(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _pairs(tile, pairs, BN: tl.constexpr, E: tl.constexpr):
    """The angle, the first channel of each pair of a tile, and whether there is such a pair."""
    pair = tile * BN + tl.arange(0, BN)
    return pair % E, pair // E * (2 * E) + pair % E, pair < pairs


@triton.jit
def _angles(tables, positions, angle, inside):
    """cos and sin of a tile's pairs, in fp32."""
    cos_ptr, sin_ptr, cos_stride, sin_stride, _ = tables
    cos = tl.load(cos_ptr + positions[:, None] * cos_stride + angle[None, :], mask=inside, other=0.0)
    sin = tl.load(sin_ptr + positions[:, None] * sin_stride + angle[None, :], mask=inside, other=0.0)
    return cos.to(tl.float32), sin.to(tl.float32)


@triton.jit
def _site(
    site,
    tables,
    strides,
    sizes,
    scale,
    ROTATED: tl.constexpr,
    E: tl.constexpr,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    UNIT: tl.constexpr,
):
    """`span` tiles of a row block of one site."""
    z_ptr, u_ptr, Wc_ptr, ws_ptr, out_ptr, u_copy_ptr, pairs = site
    T, span = sizes
    product_stride = aligned(strides[0], UNIT)
    out_stride = 2 * pairs
    row = tl.program_id(0).to(tl.int64) * BT
    rows = tl.arange(0, BT)
    inside_T = rows < T - row
    z_ptr += row * product_stride
    u_ptr += row * product_stride
    out_ptr += row * out_stride
    positions = (row + rows) % tables[4]
    gate = prepare(u_ptr, product_stride, Wc_ptr, ws_ptr, inside_T, R, BR, TYPE)
    share = tl.program_id(1)
    if Wc_ptr is not None or ws_ptr is not None:  # noqa: SIM102 - known when the kernel is compiled, the other is not
        if share == 0:
            lane = tl.arange(0, BR)
            copied = inside_T[:, None] & (lane < R)[None, :]
            u = tl.load(u_ptr + rows[:, None] * product_stride + lane[None, :], mask=copied, other=0.0)
            tl.store(u_copy_ptr + row * strides[1] + rows[:, None] * strides[1] + lane[None, :], u, mask=copied)
    for tile in range(share * span, share * span + span):
        angle, channels, inside_N = _pairs(tile, pairs, BN, E)
        inside = inside_T[:, None] & inside_N[None, :]
        z = z_ptr + rows[:, None] * product_stride + channels[None, :]
        a = tl.load(z, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(z + E, mask=inside, other=0.0).to(tl.float32)
        a *= tile_gate(channels, inside_N, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)[0]
        b *= tile_gate(channels + E, inside_N, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)[0]
        if ROTATED:
            cos, sin = _angles(tables, positions, angle, inside)
            a, b = _turn(a, b, cos, sin)
        out = out_ptr + rows[:, None] * out_stride + channels[None, :]
        tl.store(out, a, mask=inside)
        tl.store(out + E, b, mask=inside)


@triton.jit
def _heads(
    q,
    k,
    v,
    tables,
    strides,
    sizes,
    scale,
    E: tl.constexpr,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Every site has programs of its own: the third number of the grid."""
    site = tl.program_id(2)
    if site == 0:
        _site(q, tables, strides, sizes, scale, True, E, R, BR, TYPE, BT, BN, UNIT)
    elif site == 1:
        _site(k, tables, strides, sizes, scale, True, E, R, BR, TYPE, BT, BN, UNIT)
    else:
        _site(v, tables, strides, sizes, scale, False, E, R, BR, TYPE, BT, BN, UNIT)


@triton.jit
def _site_backward(
    site,
    tables,
    strides,
    sizes,
    scale,
    ROTATED: tl.constexpr,
    E: tl.constexpr,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    UNIT: tl.constexpr,
):
    """A group of `blocks` row blocks of one site."""
    activations, gradients, out_stride, G_stride, pairs = site
    out_ptr, u_ptr, Wc_ptr, ws_ptr, G_ptr = activations
    dz_ptr, du_ptr, dWc_ptr, dWc_stride, dws_ptr, dws_stride = gradients
    u_stride = strides[0]
    dproduct_stride = aligned(strides[1], UNIT)
    out_stride = aligned(out_stride, UNIT)
    G_stride = aligned(G_stride, UNIT)
    T, blocks = sizes
    group = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, BT)
    if dWc_ptr is not None:
        dWc_ptr += group * dWc_stride
    dws = tl.zeros([BR], tl.float32)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        G_row = G_ptr + row * G_stride
        out_row = out_ptr + row * out_stride
        dz_row = dz_ptr + row * dproduct_stride
        positions = (row + rows) % tables[4]
        gate = prepare(u_ptr + row * u_stride, u_stride, Wc_ptr, ws_ptr, inside_T, R, BR, TYPE)
        dp = tl.zeros([BT, BR], tl.float32)
        total = tl.zeros([BT], tl.float32)
        for tile in range(tl.cdiv(pairs, BN)):
            angle, channels, inside_N = _pairs(tile, pairs, BN, E)
            inside = inside_T[:, None] & inside_N[None, :]
            G = G_row + rows[:, None] * G_stride + channels[None, :]
            out = out_row + rows[:, None] * out_stride + channels[None, :]
            Ga = tl.load(G, mask=inside, other=0.0).to(tl.float32)
            Gb = tl.load(G + E, mask=inside, other=0.0).to(tl.float32)
            a = tl.load(out, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(out + E, mask=inside, other=0.0).to(tl.float32)
            if ROTATED:
                cos, sin = _angles(tables, positions, angle, inside)
                Ga, Gb = _turn(Ga, Gb, cos, -sin)
                a, b = _turn(a, b, cos, -sin)
            dz = dz_row + rows[:, None] * dproduct_stride + channels[None, :]
            tile_a = tile_gate(channels, inside_N, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)
            tl.store(dz, Ga * tile_a[0], mask=inside)
            dp, total = gate_gradient(
                Ga * a,
                channels,
                inside_T,
                inside_N,
                gate,
                tile_a,
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
            tile_b = tile_gate(channels + E, inside_N, gate, Wc_ptr, ws_ptr, scale, R, BR, TYPE)
            tl.store(dz + E, Gb * tile_b[0], mask=inside)
            dp, total = gate_gradient(
                Gb * b,
                channels + E,
                inside_T,
                inside_N,
                gate,
                tile_b,
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


@triton.jit
def _heads_backward(
    q,
    k,
    v,
    dproduct_ptr,
    tables,
    strides,
    sizes,
    rest,
    scale,
    E: tl.constexpr,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    UNIT: tl.constexpr,
):
    """Every site has programs of its own: the second number of the grid."""
    site = tl.program_id(1)
    if site == 0:
        _site_backward(q, tables, strides, sizes, scale, True, E, R, BR, TYPE, BT, BN, UNIT)
    elif site == 1:
        _site_backward(k, tables, strides, sizes, scale, True, E, R, BR, TYPE, BT, BN, UNIT)
    else:
        _site_backward(v, tables, strides, sizes, scale, False, E, R, BR, TYPE, BT, BN, UNIT)
        T, blocks = sizes
        for block in range(blocks):
            row = (tl.program_id(0).to(tl.int64) * blocks + block) * BT
            inside_T = tl.arange(0, BT) < T - row
            zero_columns(dproduct_ptr + row * strides[1], strides[1], inside_T, rest[0], rest[1], BR)
