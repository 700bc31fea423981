"""The gate of a tile of activations, and its gradient: what the operations' kernels share.

Shapes: T rows, N channels of a site, R bottleneck columns; BT rows and W channels of a tile. With scale c:
    p = sigmoid(u)   sc = sigmoid(p Wc^T)   ss = sigmoid(p ws^T)   factor = c sc * c ss   zhat = z factor
    dz = dzhat factor      h = dzhat zhat      e = h (1 - sc)      es = rowsum(h) (1 - ss)
    dWc = e^T p            dws = es^T p        du = (e Wc + es ws) p (1 - p)
What is computed is t = tanh(x / 2) = 2 sigmoid(x) - 1 of half the logits, from half of Wc: factor = k t + k, where
k = c ss c / 2 (c / 2 without ws), and 2 e = h - h t, so that e Wc and 2 dWc are products of it.

In a backward pass a program owns a block of channels, which it takes W at a time, and walks down rows. So Wc is loaded
once and dWc stays in registers. A row's e Wc and rowsum(h) are complete only when all programs are done: they leave in
parts, one for each block of channels, and `sums` adds them in a fixed order and makes du and dws of them.

A channel gate's tile is [16 rows for each warp, 32 channels]. One or two warps: a product of 64 rows in four would be
the warp group's (wgmma), which takes its factors from shared memory and is waited for. The tensor cores give a thread
of warp w rows 16 w + 8 i + g and columns 8 j + 2 q + b (i < 2, g < 8, j, q < 4, b < 2), where loads of 16 bytes give it
rows 8 V i + 8 w + g and columns 8 q + 2 j + b, V the number of warps. So Wc's channels and p's rows stand in the order
of the tensor cores ("ordered"). What a product gives then lies where z and its gradient lie, without a way through
shared memory.

A kernel is told of a gate as `launch.Layout.gate` says. A pointer that is None says that the site has no such gate, and
nothing of it is compiled. Rows beyond the last have u = 0, and zeros for activations: p is 1/2 there, so that an
infinite weight does not make NaN of it.
"""

# Triton knows tuples as long as it can count, and builds them by adding.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"
# ruff: noqa: SIM300 - a type in capitals is an argument here, not the constant to compare with

from __future__ import annotations

import triton
import triton.language as tl

from comt_cli.kernels.triton.tiles import MOST_CHANNEL_RANK

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter keeps bf16 as integers, and would multiply those."""

LANES = tl.constexpr(MOST_CHANNEL_RANK)
"""Columns of p: beside each stands what its rounding lost, in one product of depth 16."""


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
def half_tanh(half, TYPE: tl.constexpr):
    """tanh of half the logits: the only special function of a gate that every element needs.

    The special-function unit takes 16 operands a clock, and two for each sigmoid would bound these kernels. For bf16
    one is enough: PTX gives tanh.approx a relative error of 2^-11, so that of sc it is |t| 2^-12:
    - At the start logits lie around 0: the error vanishes there, and is 2^-13 at |x| = 1.
    - zhat is rounded to bf16, by half a unit in the last place: 2^-9 to 2^-8 of itself. This error is less while
      sc > 1/8. So it is beside the rounding of e to bf16, while sc < 7/8.
    - Nearer to 0 or 1 it is not small beside sc or 1 - sc, though still 2^-12 beside z or h. From about |x| = 9 on tanh
      is 1: the gate is quite shut or open, and the element teaches it nothing, where h times 1e-4 would be right.
    fp16 rounds eight times as finely as bf16, not coarser than this error: like fp32 it gets 2 sigmoid - 1, whose
    error is some 2^-23. Infinite logits give -1 and 1, NaN stays NaN.
    """
    if INTERPRETED or TYPE != tl.bfloat16:
        return 2 * sigmoid(2 * half) - 1
    else:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [half], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def aligned(stride, UNIT: tl.constexpr):
    """The stride, which UNIT divides. The compiler takes only multiples of 16 from what it sees of an argument."""
    return stride // UNIT * UNIT


@triton.jit
def aligned_each(strides, UNIT: tl.constexpr):
    """The same for each of these strides."""
    found = ()
    for i in tl.static_range(len(strides)):
        found = found + (aligned(strides[i], UNIT),)
    return found


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
def _from_cores(x):
    """[16 W, 32] as the tensor cores give it, in the order of rows and channels in memory."""
    W: tl.constexpr = x.shape[0] // 16
    x = tl.reshape(x, [W, 2, 8, 4, 4, 2])  # w i g j q b
    return tl.reshape(tl.permute(x, [1, 0, 2, 4, 3, 5]), [16 * W, 32])  # i w g q j b


@triton.jit
def _to_cores(x):
    """The inverse: [16 W, 32] from memory, ordered."""
    W: tl.constexpr = x.shape[0] // 16
    x = tl.reshape(x, [2, W, 8, 4, 4, 2])  # i w g q j b
    return tl.reshape(tl.permute(x, [1, 0, 2, 4, 3, 5]), [16 * W, 32])  # w i g j q b


@triton.jit
def _ordered_rows(x):
    """The rows of [16 W, K], ordered."""
    if x.shape[0] == 16:
        return x
    else:
        W: tl.constexpr = x.shape[0] // 16
        x = tl.permute(tl.reshape(x, [2, W, 8, x.shape[1]]), [1, 0, 2, 3])
        return tl.reshape(x, [16 * W, x.shape[3]])


@triton.jit
def ordered(BT: tl.constexpr):
    """The row in memory of each row of a tile that is ordered."""
    rows = tl.arange(0, BT)
    return rows // 8 % 2 * (BT // 2) + rows // 16 * 8 + rows % 8


@triton.jit
def ordered_channels():
    """The channel in memory of each of a tile's 32 channels (or pairs of channels) that are ordered."""
    n = tl.arange(0, 32)
    return n // 2 % 4 * 8 + n // 8 * 2 + n % 2


@triton.jit
def _half_Wc(  # noqa: N802
    gate, channels, inside_N, R: tl.constexpr
):
    _, Wc_ptr, first, _, _ = gate
    lane = tl.arange(0, LANES)
    inside = inside_N[:, None] & (lane < R)[None, :]
    Wc = tl.load(Wc_ptr + first * R + channels[:, None] * R + lane[None, :], mask=inside, other=0.0)
    return Wc.to(tl.float32) * 0.5


@triton.jit
def logit_matrix(gate, channels, inside_N, R: tl.constexpr, TYPE: tl.constexpr):
    """Half of the rows of Wc for 32 ordered channels, each column twice, [32, 16]: for p and for what its rounding
    lost. An infinite weight meets only p itself: the other has both signs. [1, 1] without a channel gate."""
    if gate[1] is None:
        return tl.zeros([1, 1], TYPE)
    else:
        half = _half_Wc(gate, channels, inside_N, R)
        finite = tl.where(tl.abs(half) == float("inf"), 0.0, half)
        return tl.reshape(tl.join(half.to(TYPE), finite.to(TYPE)), [32, 2 * LANES])


@triton.jit
def gradient_matrix(gate, channels, inside_N, R: tl.constexpr, TYPE: tl.constexpr):
    """The same rows, each column once, [32, 8], in the type that products of gradients have: fp16 has not the range."""
    if gate[1] is None:
        return tl.zeros([1, 1], TYPE)
    else:
        return _half_Wc(gate, channels, inside_N, R).to(tl.float32 if TYPE == tl.float32 else tl.bfloat16)


@triton.jit
def load_p(u_ptr, stride, inside_T, R: tl.constexpr, BL: tl.constexpr):
    """sigmoid(u) of BT rows, [BT, BL] in fp32, zeros from lane R on."""
    rows, lane = tl.arange(0, inside_T.shape[0]), tl.arange(0, BL)
    inside = inside_T[:, None] & (lane < R)[None, :]
    u = tl.load(u_ptr + rows[:, None] * stride + lane[None, :], mask=inside, other=0.0)
    return tl.where((lane < R)[None, :], sigmoid(u.to(tl.float32)), 0.0)


@triton.jit
def load_ws(ws_ptr, site, R: tl.constexpr, BL: tl.constexpr):
    """A site's row of ws, [BL] in fp32, zeros from lane R on."""
    lane = tl.arange(0, BL)
    return tl.load(ws_ptr + site * R + lane, mask=lane < R, other=0.0).to(tl.float32)


@triton.jit
def scalar_factor(gate, p, scale, R: tl.constexpr, BL: tl.constexpr):
    """c ss of BT rows; 1 without a scalar gate."""
    if gate[3] is None:
        return tl.full([p.shape[0]], 1.0, tl.float32)
    else:
        return scale * sigmoid(tl.sum(p * load_ws(gate[3], gate[4], R, BL)[None, :], 1))


@triton.jit
def row_gate(rows_ptr, stride, gate, inside_T, scale, R: tl.constexpr, BL: tl.constexpr, TYPE: tl.constexpr):
    """Rows' part of a gate, of BT rows: p beside what its rounding lost, [BT, 16], and p, [BT, 8], both ordered, for
    `matmul`; and k, [BT]. Without a channel gate k is the factor itself, and there is no p.

    p in bf16 alone would make the logits wrong in the third digit.
    """
    BT: tl.constexpr = inside_T.shape[0]
    both = tl.zeros([1, 1], TYPE)
    rounded = tl.zeros([1, 1], TYPE)
    k = tl.full([BT], 1.0, tl.float32)
    if gate[1] is not None or gate[3] is not None:
        p = load_p(rows_ptr + gate[0], stride, inside_T, R, BL)
        k = scalar_factor(gate, p, scale, R, BL)
        if gate[1] is not None:
            k *= 0.5 * scale
            rounded = p.to(TYPE)
            lost = (p - rounded.to(tl.float32)).to(TYPE)
            both = _ordered_rows(tl.reshape(tl.join(rounded, lost), [BT, 2 * LANES]))
            rounded = _ordered_rows(rounded)
    return both, rounded, k


@triton.jit
def tile_gate(gate, of_rows, logits, TYPE: tl.constexpr):
    """t and the factor of a tile, [BT, 32], in memory's order; without a channel gate the factor is [BT, 1].
    `of_rows` is what `row_gate` gave, `logits` the `logit_matrix`."""
    both, _, k = of_rows
    if gate[1] is None:
        return tl.zeros([1, 1], tl.float32), k[:, None]
    else:
        t = half_tanh(_from_cores(matmul(both, tl.trans(logits), TYPE)), TYPE)
        return t, t * k[:, None] + k[:, None]


@triton.jit
def gate_gradient(gate, of_rows, h, t, gradient, TYPE: tl.constexpr):
    """e Wc, [BT, 8], and 2 e^T p, [32, 8], of a tile, both ordered; [1, 1] without a channel gate. `gradient` is the
    `gradient_matrix`."""
    if gate[1] is None:
        return tl.zeros([1, 1], tl.float32), tl.zeros([1, 1], tl.float32)
    else:
        GRADIENT: tl.constexpr = tl.float32 if TYPE == tl.float32 else tl.bfloat16
        e = _to_cores((h - h * t).to(GRADIENT))
        return matmul(e, gradient, GRADIENT), matmul(tl.trans(e), of_rows[1], GRADIENT)


@triton.jit
def store_parts(gate, parts, block, T, row, dp, total, inside_T, R: tl.constexpr):
    """Writes what BT rows have of e Wc and of rowsum(h) in a block of channels."""
    dp_ptr, total_ptr = parts
    BT: tl.constexpr = inside_T.shape[0]
    at = block.to(tl.int64) * T + row
    if gate[1] is not None:
        order, lane = ordered(BT), tl.arange(0, LANES)
        written = (order < T - row)[:, None] & (lane < R)[None, :]
        tl.store(dp_ptr + (at + order)[:, None] * R + lane[None, :], dp, mask=written)
    if gate[3] is not None:
        tl.store(total_ptr + at + tl.arange(0, BT), total, mask=inside_T)


@triton.jit
def no_sum(gate, rows: tl.constexpr):
    """Zeros for sums of e Wc of so many rows, or 2 dWc of so many channels, [rows, 8]; [1, 1] without channel gates."""
    if gate[1] is None:
        return tl.zeros([1, 1], tl.float32)
    else:
        return tl.zeros([rows, LANES], tl.float32)


@triton.jit
def matrices(gate, first, N, TILES: tl.constexpr, R: tl.constexpr, TYPE: tl.constexpr):
    """The `logit_matrix` and the `gradient_matrix` of each of a program's tiles of 32 channels, from `first` on."""
    found = ()
    for i in tl.static_range(TILES):
        order = first + i * 32 + ordered_channels()
        found = found + (
            logit_matrix(gate, order, order < N, R, TYPE),
            gradient_matrix(gate, order, order < N, R, TYPE),
        )
    return found


@triton.jit
def no_sums(gate, TILES: tl.constexpr):
    """Zeros to which 2 dWc of each of these tiles is added."""
    found = ()
    for _ in tl.static_range(TILES):
        found = found + (no_sum(gate, 32),)
    return found


@triton.jit
def store_sums(gate, dWc_ptr, group, Mg, first, N, sums, TILES: tl.constexpr, R: tl.constexpr):
    """Writes what a group of rows has of dWc, which has Mg rows, for these tiles."""
    for i in tl.static_range(TILES):
        order = first + i * 32 + ordered_channels()
        store_dWc(gate, dWc_ptr, group * Mg + order, order < N, sums[i], R)


@triton.jit
def store_dWc(  # noqa: N802
    gate, dWc_ptr, channels, inside_N, dWc, R: tl.constexpr
):
    """The same for 32 ordered channels."""
    if gate[1] is not None:
        lane = tl.arange(0, LANES)
        inside = inside_N[:, None] & (lane < R)[None, :]
        tl.store(dWc_ptr + (gate[2] + channels)[:, None] * R + lane[None, :], dWc * 0.5, mask=inside)
