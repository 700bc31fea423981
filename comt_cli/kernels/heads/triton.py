"""Queries, keys and values: gated, q and k turned by rotary positions; and the gradients from those of all three.

Shapes as in `kernels.triton.gates`, and P positions, E pairs of channels of a head: channels i and i + E turn together.
With c, s the cosine and sine of a row's position and a pair's angle, zhat_i and zhat_(i + E) the gated pair:
    q_i = zhat_i c - zhat_(i + E) s     q_(i + E) = zhat_(i + E) c + zhat_i s
The backward pass turns G and q back: dzhat and zhat of a gate's equations. rowsum(h) is the same before and after.
A program owns pairs of channels of one site: for heads of 64 channels 32 pairs are a whole line.
"""

# Triton knows tuples as long as it can count, and builds them by adding.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment,unreachable"

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.operators import unit_stride
from comt_cli.kernels.triton import gates, launch
from comt_cli.kernels.triton.sums import Parts
from comt_cli.kernels.triton.tiles import Tile


def heads(
    product_TC: Tensor, modulation: Modulation, cos_PE: Tensor, sin_PE: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, [T, heads 2 E], k and v, [T, kv_heads 2 E], and a copy of u, [T, S R]. See `reference`."""
    product_TC, cos_PE, sin_PE = (unit_stride(tensor) for tensor in (product_TC, cos_PE, sin_PE))
    T, E = len(product_TC), cos_PE.shape[-1]
    layout = launch.Layout(modulation, [2 * E * each for each in (heads, kv_heads, kv_heads)])
    q_TN, k_TN, v_TN = (product_TC.new_empty(T, site.width) for site in layout.sites)
    u_TU = product_TC.new_empty(T, modulation.columns)
    tile = layout.tile("heads", product_TC.dtype)
    counts = [launch.cdiv(site.width, tile.channels) for site in layout.sites]
    groups, blocks = launch.groups(product_TC, tile, sum(counts))
    layout.run(
        _heads,
        (sum(counts), groups),
        (product_TC, cos_PE, sin_PE, u_TU),
        (q_TN, k_TN, v_TN),
        tuple(layout.gate(site) for site in layout.sites),
        (product_TC.stride(0), cos_PE.stride(0), sin_PE.stride(0), modulation.columns),
        (T, len(cos_PE), blocks, layout.width),
        _shares(layout, counts),
        tile=tile,
        rows=(product_TC, q_TN, k_TN),
        **_constants(layout, tile, E),
    )
    return q_TN, k_TN, v_TN, u_TU


def heads_backward(
    dq_TN: Tensor, dk_TN: Tensor, dv_TN: Tensor, q_TN: Tensor, k_TN: Tensor, v_TN: Tensor, u_TU: Tensor,
    modulation: Modulation, cos_PE: Tensor, sin_PE: Tensor, heads: int, kv_heads: int, columns: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return dproduct, [T, columns], in the type of q, and dWc and dws in fp32. q, k, v and u are `heads`' outputs."""
    Gs, outs = (tuple(map(unit_stride, each)) for each in ((dq_TN, dk_TN, dv_TN), (q_TN, k_TN, v_TN)))
    u_TU, cos_PE, sin_PE = (unit_stride(tensor) for tensor in (u_TU, cos_PE, sin_PE))
    T, E = len(q_TN), cos_PE.shape[-1]
    layout = launch.Layout(modulation, [2 * E * each for each in (heads, kv_heads, kv_heads)])
    parts = Parts(layout, layout.tile("heads_backward", q_TN.dtype), q_TN, sum)
    dproduct_TC = q_TN.new_empty(T, columns)
    layout.run(
        _heads_backward,
        (sum(parts.columns), parts.groups),
        (u_TU, cos_PE, sin_PE, dproduct_TC),
        outs,
        Gs,
        tuple((out.stride(0), G.stride(0)) for out, G in zip(outs, Gs, strict=True)),
        tuple(layout.gate(site, 0) for site in layout.sites),
        parts.tensors,
        (u_TU.stride(0), cos_PE.stride(0), sin_PE.stride(0), columns),
        (T, len(cos_PE), parts.blocks, layout.channels),
        _shares(layout, parts.columns),
        tuple(parts.firsts),
        tile=parts.tile,
        rows=(dproduct_TC, *Gs, *outs),
        **_constants(layout, parts.tile, E),
    )
    return dproduct_TC, *parts.finish(u_TU, 0, dproduct_TC)


def _shares(layout: launch.Layout, counts: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Each site's first program, first column, and channels."""
    begins = itertools.accumulate(counts[:-1], initial=0)
    return tuple((begin, site.first, site.width) for begin, site in zip(begins, layout.sites, strict=True))


def _constants(layout: launch.Layout, tile: Tile, E: int) -> dict[str, Any]:
    """W counts pairs here: half as many as channels, but with a channel gate 32 as elsewhere."""
    pairs = {} if layout.kind == "channel" else {"W": tile.channels // 2}
    return {"E": E, "columns": [site.width for site in layout.sites], **pairs}


@triton.jit
def _turn(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _pair_channels(pair, E: tl.constexpr):
    """The first channel of each pair."""
    return pair // E * (2 * E) + pair % E


@triton.jit
def _angles(tables, strides, P, row, pair, inside, BT: tl.constexpr, E: tl.constexpr):
    """cos and sin of BT rows' positions and of these pairs, in fp32."""
    positions = ((row + tl.arange(0, BT)) % P).to(tl.int32)[:, None]
    lanes = tl.arange(0, pair.shape[0])
    angle = ((lanes if pair.shape[0] % E == 0 else pair) % E)[None, :]
    cos = tl.load(tables[0] + positions * strides[1] + angle, mask=inside, other=0.0)
    sin = tl.load(tables[1] + positions * strides[2] + angle, mask=inside, other=0.0)
    return cos.to(tl.float32), sin.to(tl.float32)


@triton.jit
def _site(
    tensors, out_ptr, gate, strides, sizes, where, scale, TURNS: tl.constexpr, E: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BN channels of a site, those of BN / 2 pairs, in a group of `blocks` row blocks."""
    product_ptr, cos_ptr, sin_ptr, copy_ptr = tensors
    TYPE: tl.constexpr = product_ptr.dtype.element_ty
    T, P, blocks, width = sizes
    first, out_stride, column = where
    stride, pairs = gates.aligned(strides[0], UNIT), out_stride // 2
    group = tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BT)
    logits = ()
    for i in tl.static_range(BN // (2 * W)):
        order = column * (BN // 2) + i * W + gates.ordered_channels()
        for half in tl.static_range(2):
            channels = _pair_channels(order, E) + half * E
            logits = logits + (gates.logit_matrix(gate, channels, order < pairs, R, TYPE),)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        source, target = product_ptr + row * stride, out_ptr + row * out_stride
        z = ()
        for i in tl.static_range(BN // (2 * W)):
            pair = column * (BN // 2) + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (pair < pairs)[None, :]
            z_ptr = source + first + rows[:, None] * stride + _pair_channels(pair, E)[None, :]
            z = z + (tl.load(z_ptr, mask=inside, other=0.0), tl.load(z_ptr + E, mask=inside, other=0.0))
        of_rows = gates.row_gate(source, stride, gate, inside_T, scale, R, BL, TYPE)
        for i in tl.static_range(BN // (2 * W)):
            pair = column * (BN // 2) + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (pair < pairs)[None, :]
            a = z[2 * i].to(tl.float32) * gates.tile_gate(gate, of_rows, logits[2 * i], TYPE)[1]
            b = z[2 * i + 1].to(tl.float32) * gates.tile_gate(gate, of_rows, logits[2 * i + 1], TYPE)[1]
            if TURNS:
                cos, sin = _angles((cos_ptr, sin_ptr), strides, P, row, pair, inside, BT, E)
                a, b = _turn(a, b, cos, sin)
            out = target + rows[:, None] * out_stride + _pair_channels(pair, E)[None, :]
            tl.store(out, a, mask=inside)
            tl.store(out + E, b, mask=inside)
        if gate[1] is not None or gate[3] is not None:  # noqa: SIM102 - known when the kernel is compiled, the other is not
            if column == 0:
                lane = tl.arange(0, BL)
                copied = inside_T[:, None] & (lane < R)[None, :]
                u = tl.load(source + gate[0] + rows[:, None] * stride + lane[None, :], mask=copied, other=0.0)
                copy = copy_ptr + row * strides[3] + (gate[0] - width)
                tl.store(copy + rows[:, None] * strides[3] + lane[None, :], u, mask=copied)


@triton.jit
def _heads(
    tensors, outs, of_sites, strides, sizes, shares, scale, E: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Every site has programs of its own; those of v do not turn."""
    for i in tl.static_range(3):
        begin, first, width = shares[i]
        column = tl.program_id(0) - begin
        if (column >= 0) & (column < tl.cdiv(width, BN)):
            where = (gates.aligned(first, UNIT), gates.aligned(width, UNIT), column)
            _site(tensors, outs[i], of_sites[i], strides, sizes, where, scale, i < 2, E, BT, BN, W, R, BL, UNIT)


@triton.jit
def _site_backward(  # noqa: PLR0915 - one walk down the rows
    tensors, out, gate, sums, strides, sizes, where, scale, TURNS: tl.constexpr, E: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """BN channels of a site, those of BN / 2 pairs, in a group of `blocks` row blocks."""
    u_ptr, cos_ptr, sin_ptr, dproduct_ptr = tensors
    out_ptr, G_ptr, out_strides = out
    dWc_ptr, parts = sums
    TYPE: tl.constexpr = out_ptr.dtype.element_ty
    out_stride, G_stride = gates.aligned_each(out_strides, UNIT)
    T, P, blocks, Mg = sizes
    first, width, column, part = where
    dz_stride, pairs = gates.aligned(strides[3], UNIT), width // 2
    group = tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BT)
    matrices = ()
    dWc = ()
    for i in tl.static_range(BN // (2 * W)):
        order = column * (BN // 2) + i * W + gates.ordered_channels()
        for half in tl.static_range(2):
            channels = _pair_channels(order, E) + half * E
            matrices = matrices + (gates.logit_matrix(gate, channels, order < pairs, R, TYPE),)
            matrices = matrices + (gates.gradient_matrix(gate, channels, order < pairs, R, TYPE),)
            dWc = dWc + (gates.no_sum(gate, W),)
    for block in range(blocks):
        row = (group * blocks + block) * BT
        inside_T = rows < T - row
        z_rows, G_rows, target = (
            out_ptr + row * out_stride,
            G_ptr + row * G_stride,
            dproduct_ptr + row * dz_stride + first,
        )
        of_rows = gates.row_gate(u_ptr + row * strides[0], strides[0], gate, inside_T, scale, R, BL, TYPE)
        dp = gates.no_sum(gate, BT)
        total = tl.zeros([BT], tl.float32)
        before = dWc
        dWc = ()
        for i in tl.static_range(BN // (2 * W)):
            pair = column * (BN // 2) + i * W + tl.arange(0, W)
            inside = inside_T[:, None] & (pair < pairs)[None, :]
            across = _pair_channels(pair, E)[None, :]
            G = G_rows + rows[:, None] * G_stride + across
            dza = tl.load(G, mask=inside, other=0.0).to(tl.float32)
            dzb = tl.load(G + E, mask=inside, other=0.0).to(tl.float32)
            if TURNS:
                cos, sin = _angles((cos_ptr, sin_ptr), strides, P, row, pair, inside, BT, E)
                dza, dzb = _turn(dza, dzb, cos, -sin)
            ha = tl.zeros([1, 1], tl.float32)
            hb = tl.zeros([1, 1], tl.float32)
            if gate[1] is not None or gate[3] is not None:
                z = z_rows + rows[:, None] * out_stride + across
                za = tl.load(z, mask=inside, other=0.0).to(tl.float32)
                zb = tl.load(z + E, mask=inside, other=0.0).to(tl.float32)
                if TURNS:
                    za, zb = _turn(za, zb, cos, -sin)
                ha, hb = dza * za, dzb * zb
                total += tl.sum(ha + hb, 1)
            dz = target + rows[:, None] * dz_stride + across
            t, factor = gates.tile_gate(gate, of_rows, matrices[4 * i], TYPE)
            tl.store(dz, dza * factor, mask=inside)
            more, dW = gates.gate_gradient(gate, of_rows, ha, t, matrices[4 * i + 1], TYPE)
            dp += more
            dWc = dWc + (before[2 * i] + dW,)
            t, factor = gates.tile_gate(gate, of_rows, matrices[4 * i + 2], TYPE)
            tl.store(dz + E, dzb * factor, mask=inside)
            more, dW = gates.gate_gradient(gate, of_rows, hb, t, matrices[4 * i + 3], TYPE)
            dp += more
            dWc = dWc + (before[2 * i + 1] + dW,)
        gates.store_parts(gate, parts, part + column, T, row, dp, total, inside_T, R)
    for i in tl.static_range(BN // (2 * W)):
        order = column * (BN // 2) + i * W + gates.ordered_channels()
        for half in tl.static_range(2):
            channels = group * Mg + _pair_channels(order, E) + half * E
            gates.store_dWc(gate, dWc_ptr, channels, order < pairs, dWc[2 * i + half], R)


@triton.jit
def _heads_backward(
    tensors, outs, Gs, out_strides, of_sites, sums, strides, sizes, shares, firsts, scale, E: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BL: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Every site has programs of its own; those of v do not turn."""
    for i in tl.static_range(3):
        begin, first, width = shares[i]
        column = tl.program_id(0) - begin
        if (column >= 0) & (column < tl.cdiv(width, BN)):
            out = (outs[i], Gs[i], out_strides[i])
            where = (gates.aligned(first, UNIT), gates.aligned(width, UNIT), column, firsts[i])
            _site_backward(
                tensors, out, of_sites[i], sums, strides, sizes, where, scale, i < 2, E, BT, BN, W, R, BL, UNIT
            )
