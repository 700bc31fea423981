"""What the kernels of this package share: the gate of a tile of activations, and its gradient.

Shapes: T rows, N channels of a site, R bottleneck columns; BT, BN the rows and channels of a tile, BR = R rounded up to
a power of two that the tensor cores take. With scale c:
    p = sigmoid(u)   sc = sigmoid(p Wc^T)   ss = sigmoid(p ws^T)   factor = c sc * c ss   zhat = z factor
    dz = dzhat factor      h = dzhat zhat      e = h (1 - sc)      es = rowsum(h) (1 - ss)
    dWc = e^T p            dws = es^T p        du = (e Wc + es ws) p (1 - p)

A program owns rows: it computes their p once and walks along the channels. So e Wc and rowsum(h) are sums in its
registers, and one pass over the activations gives every gradient. What is summed over rows, dWc and dws, a program sums
over its group of row blocks in memory that is its own; the groups' sums are added afterwards, in a fixed order.

A pointer that is None says that the site has no such gate, and then nothing of it is compiled.
Masked lanes hold zeros, and sums over them are guarded once more by `tl.where`, since 0 * Inf is NaN.
"""

# ruff: noqa: SIM300 - a type in capitals is an argument here, not the constant to compare with

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter keeps bf16 as integers, and would multiply those."""

PACKED = tl.constexpr(8)
"""Up to so many columns, a 16-bit p and what its rounding lost stand side by side in one product of depth 16."""


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) in fp32; a result below 2^-126 becomes 0. The absolute error is some 2^-23; the relative one
    grows to some |x| 2^-24 for negative x, since the exponent is rounded.

    Compiled, `tl.sigmoid` takes 12 instructions: it divides over the whole range of fp32, where this denominator lies
    between 1 and infinity, and keeps the denormal numbers of exp. These are 4, two of them of the special-function unit
    (PTX): 2^(-x log2 e), and a reciprocal to 1 ulp. Infinities give 0 and 1, NaN stays NaN.
    """
    if INTERPRETED:
        return tl.sigmoid(x)
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .f32 t;
            mul.f32 t, $1, 0fBFB8AA3B;
            ex2.approx.ftz.f32 t, t;
            add.f32 t, t, 0f3F800000;
            rcp.approx.ftz.f32 $0, t;
            }""",
            "=f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def _gate_sigmoid(logits, TYPE: tl.constexpr):
    """sigmoid of the channel gate's logits, [BT, BN]: the only sigmoid of a gate that every element needs.

    The special-function unit takes 16 operands a clock, and two for each sigmoid would bound these kernels. For bf16
    one is enough: sigmoid(x) = (1 + tanh(x / 2)) / 2, where PTX gives tanh.approx a relative error of 2^-11, so that
    the error here is |tanh(x / 2)| 2^-12. Why that is enough, and where it is not:
    - At the start logits lie around 0: the error vanishes there, and is 2^-13 at |x| = 1.
    - zhat is rounded to bf16, by half a unit in the last place: 2^-9 to 2^-8 of itself. This error is less while
      sc > 1/8. So it is beside the rounding of e = h (1 - sc) to bf16, while sc < 7/8.
    - Nearer to 0 or 1 it is not small beside sc or 1 - sc, though still 2^-12 beside z or h. From about |x| = 9 on tanh
      is 1: the gate is quite shut or open, and the element teaches it nothing, where h times 1e-4 would be right.
    fp16 rounds eight times as finely as bf16, not coarser than this error: like fp32 it gets the exact form.
    Infinite logits give 0 and 1, NaN stays NaN.
    """
    if INTERPRETED or TYPE != tl.bfloat16:
        return sigmoid(logits)
    else:
        tanh = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [logits * 0.5], dtype=tl.float32, is_pure=True, pack=1
        )
        return tanh * 0.5 + 0.5


@triton.jit
def aligned(stride, UNIT: tl.constexpr):
    """The stride, which UNIT divides. The compiler takes only multiples of 16 from what it sees of an argument."""
    return stride // UNIT * UNIT


@triton.jit
def matmul(a, b, TYPE: tl.constexpr):
    """a b with factors rounded to TYPE and sums in fp32."""
    if TYPE == tl.float32:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif INTERPRETED:
        return tl.dot(a.to(TYPE).to(tl.float32), b.to(TYPE).to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a.to(TYPE), b.to(TYPE))


@triton.jit
def _lanes(R: tl.constexpr, BR: tl.constexpr, TYPE: tl.constexpr):
    """The column of p that each of the BR lanes holds; those from R on hold none."""
    lane = tl.arange(0, BR)
    if R <= PACKED and TYPE != tl.float32:
        return lane % PACKED
    else:
        return lane


@triton.jit
def _load_scalar(ws_ptr, R: tl.constexpr, BR: tl.constexpr):
    """The site's row of ws, [BR] in fp32, zeros beyond R."""
    lane = tl.arange(0, BR)
    return tl.load(ws_ptr + lane, mask=lane < R, other=0.0).to(tl.float32)


@triton.jit
def prepare(u_ptr, u_stride, Wc_ptr, ws_ptr, inside_T, R: tl.constexpr, BR: tl.constexpr, TYPE: tl.constexpr):
    """What a row block's tiles need of its gate: p, [BT, BR] in fp32; p in one or two factors of TYPE; ss, [BT].

    p in bf16 alone would make the logits wrong in the third digit, so what its rounding lost is a factor of its own.
    """
    BT: tl.constexpr = inside_T.shape[0]
    p = tl.zeros([BT, BR], tl.float32)
    ss = tl.full([BT], 1.0, tl.float32)
    if Wc_ptr is not None or ws_ptr is not None:
        column = _lanes(R, BR, TYPE)
        inside = inside_T[:, None] & (column < R)[None, :]
        u = u_ptr + tl.arange(0, BT)[:, None] * u_stride + column[None, :]
        p = tl.where(inside, sigmoid(tl.load(u, mask=inside, other=0.0).to(tl.float32)), 0.0)
    if ws_ptr is not None:
        ss = sigmoid(tl.sum(p * _load_scalar(ws_ptr, R, BR)[None, :], 1))
    high = p.to(TYPE)
    low = (p - high.to(tl.float32)).to(TYPE)
    if R <= PACKED and TYPE != tl.float32:
        high = tl.where((tl.arange(0, BR) < PACKED)[None, :], high, low)
    return p, high, low, ss


@triton.jit
def _load_channel(Wc_ptr, channels, inside_N, R: tl.constexpr, BR: tl.constexpr, TYPE: tl.constexpr):
    """The channels' rows of Wc, [BN, BR], with lanes as p has them."""
    column = _lanes(R, BR, TYPE)
    inside = inside_N[:, None] & (column < R)[None, :]
    return tl.load(Wc_ptr + channels[:, None] * R + column[None, :], mask=inside, other=0.0).to(TYPE)


@triton.jit
def _channel(high, low, Wc, R: tl.constexpr, BR: tl.constexpr, TYPE: tl.constexpr):
    """sc = sigmoid(p Wc^T), [BT, BN]. An infinite Wc meets only the high part of p: the low one has both signs."""
    if TYPE == tl.float32:
        logits = matmul(high, tl.trans(Wc), TYPE)
    else:
        wide = Wc.to(tl.float32)
        finite = tl.where(tl.abs(wide) == float("inf"), 0.0, wide)
        if R <= PACKED:
            both = tl.where((tl.arange(0, BR) < PACKED)[None, :], wide, finite)
            logits = matmul(high, tl.trans(both.to(TYPE)), TYPE)
        else:
            logits = matmul(low, tl.trans(finite.to(TYPE)), TYPE) + matmul(high, tl.trans(Wc), TYPE)
    return _gate_sigmoid(logits, TYPE)


@triton.jit
def _channel_of_a_row(p, Wc_ptr, channels, inside_N, R: tl.constexpr, BR: tl.constexpr, TYPE: tl.constexpr):
    """sc of a lone row, [1, BN], in fp32: tensor cores take 16 rows, and would compute 15 for nothing."""
    lane = tl.arange(0, BR)
    logits = tl.zeros([1, inside_N.shape[0]], tl.float32)
    for k in tl.static_range(R):
        p_k = tl.sum(tl.where((lane == k)[None, :], p, 0.0), 1)
        Wc_k = tl.load(Wc_ptr + channels * R + k, mask=inside_N, other=0.0).to(tl.float32)
        logits += p_k[:, None] * Wc_k[None, :]
    return _gate_sigmoid(logits, TYPE)


@triton.jit
def tile_gate(channels, inside_N, gate, Wc_ptr, ws_ptr, scale, R: tl.constexpr, BR: tl.constexpr, TYPE: tl.constexpr):
    """The factor of a tile, [BT, BN], 1 without gates; sc; and the channels' Wc. `gate` is what `prepare` gave.

    The last two are for `gate_gradient`, which has nothing to compute again then. Without a channel gate they are
    zeros, [1, 1]; so is Wc of a lone row, which only forward kernels have.
    """
    p, high, low, ss = gate
    factor = tl.full([ss.shape[0], inside_N.shape[0]], 1.0, tl.float32)
    sc = tl.zeros([1, 1], tl.float32)
    Wc = tl.zeros([1, 1], TYPE)
    if Wc_ptr is not None:
        if ss.shape[0] == 1:
            sc = _channel_of_a_row(p, Wc_ptr, channels, inside_N, R, BR, TYPE)
        else:
            Wc = _load_channel(Wc_ptr, channels, inside_N, R, BR, TYPE)
            sc = _channel(high, low, Wc, R, BR, TYPE)
        factor = scale * sc
    if ws_ptr is not None:
        factor = factor * (scale * ss)[:, None]
    return factor, sc, Wc


@triton.jit
def add_up(pointers, value, mask, again):
    """Writes a group's sum, or adds to it where its program has been there before (`again`)."""
    tl.store(pointers, value + tl.load(pointers, mask=mask & again, other=0.0), mask=mask)


@triton.jit
def gate_gradient(
    h,
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
    again,
    R: tl.constexpr,
    BR: tl.constexpr,
    TYPE: tl.constexpr,
):
    """dp = e Wc and total = rowsum(h) with this tile's part added. Writes its part of dWc. `tile` is its `tile_gate`.

    The factors of these sums are rounded to bf16 where the storage has 16 bits: fp16 has not the range for h.
    """
    GRADIENT: tl.constexpr = tl.float32 if TYPE == tl.float32 else tl.bfloat16
    inside = inside_T[:, None] & inside_N[None, :]
    if ws_ptr is not None:
        total += tl.sum(tl.where(inside, h, 0.0), 1)
    if Wc_ptr is not None:
        _, sc, Wc = tile
        e = tl.where(inside, h * (1 - sc), 0.0)
        dp += matmul(e, Wc, GRADIENT)
        lane = tl.arange(0, BR)
        pointers = dWc_ptr + channels[:, None] * R + lane[None, :]
        add_up(pointers, matmul(tl.trans(e), gate[0], GRADIENT), inside_N[:, None] & (lane < R)[None, :], again)
    return dp, total


@triton.jit
def store_du(du_ptr, du_stride, inside_T, gate, dp, total, dws, Wc_ptr, ws_ptr, R: tl.constexpr, BR: tl.constexpr):
    """Writes du of a row block after its last tile, and returns dws, [BR], with the block's part added."""
    BT: tl.constexpr = inside_T.shape[0]
    p, _, _, ss = gate
    if ws_ptr is not None:
        es = tl.where(inside_T, total * (1 - ss), 0.0)
        dws += tl.sum(es[:, None] * p, 0)
        dp += es[:, None] * _load_scalar(ws_ptr, R, BR)[None, :]
    if Wc_ptr is not None or ws_ptr is not None:
        lane = tl.arange(0, BR)
        du = du_ptr + tl.arange(0, BT)[:, None] * du_stride + lane[None, :]
        tl.store(du, dp * (p * (1 - p)), mask=inside_T[:, None] & (lane < R)[None, :])
    return dws


@triton.jit
def store_dws(dws_ptr, dws_stride, dws, R: tl.constexpr, BR: tl.constexpr):
    """Writes dws of this program's group, if there is one."""
    if dws_ptr is not None:
        lane = tl.arange(0, BR)
        tl.store(dws_ptr + tl.program_id(0).to(tl.int64) * dws_stride + lane, dws, mask=lane < R)


@triton.jit
def zero_columns(ptr, stride, inside_T, first, last, BR: tl.constexpr):
    """Writes zeros into columns first to last - 1 of a row block: gradients of what a kernel does not read."""
    BT: tl.constexpr = inside_T.shape[0]
    for start in range(first, last, BR):
        columns = start + tl.arange(0, BR)
        inside = inside_T[:, None] & (columns < last)[None, :]
        zeros = tl.zeros([BT, BR], tl.float32)
        tl.store(ptr + tl.arange(0, BT)[:, None] * stride + columns[None, :], zeros, mask=inside)
