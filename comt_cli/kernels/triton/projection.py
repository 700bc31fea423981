"""The gated projection in one kernel: x W^T, and the gate applied to the tile in registers (Transponder, section 3.4).

Shapes: T tokens, D input width, N output width, R bottleneck columns.
    u = x A^T   p = sigmoid(u)   zhat = (x W^T + b) * c sigmoid(p Wc^T) * c sigmoid(p ws^T)

Only zhat, [T, N], and u, [T, R], are written: z, the logits and the gates live in registers. The program that computes
the tile [BLOCK_T, BLOCK_N] of zhat needs the u of its BLOCK_T rows, which no program owns. Two ways to get them:

    same pass   every program computes its rows' u beside its tile, from the x it reads anyway; R / BLOCK_N more
                multiplications. The programs of the first column block write u down.
    two phases  u comes first, from a matrix product of its own that reads x once more; the kernel loads it.

Both use u as rounded to the type of x, which is what the backward pass will read. The logits of a channel gate are a
product over R. In a 16-bit type each factor is split into a high and a low part, p = p_h + p_l, since p rounded to
8 bits would be wrong in the third digit: p Wc^T = p_h Wc_h^T + p_l Wc_h^T + p_h Wc_l^T (the last where Wc is fp32),
on the same units as the main product.
"""

# What Triton compiles it types itself.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.triton.gates import INTERPRETED
from comt_cli.kernels.triton.launch import LEAST_DOT
from comt_cli.kernels.tuning import Tiles, configuration

MOST_COLUMNS = 128
"""The widest bottleneck."""

MOST_IN_SAME_PASS = 32
"""The widest bottleneck whose u a program computes beside its tile; more would spill."""

UNALIGNED = Tiles(rows=64, columns=64, inner=32, group=8, warps=4, stages=3, registers=0, same_pass=True)
"""For rows that do not start at multiples of 16 bytes, say of 5461 channels. They are read an element at a time, with
an address each, and larger tiles would spill. Far slower: pad such widths where speed matters."""

PART = 32
"""Columns of a tile whose gate is computed at a time. Logits take registers; with 32 none spill, up to 128 x 256."""


def projection(
    x_TD: Tensor,
    weight_ND: Tensor,
    A_RD: Tensor,
    Wc_NR: Tensor | None,
    ws_1R: Tensor | None,
    bias_N: Tensor | None,
    scale: float,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Return zhat, [T, N], and u, [T, R], in the type of x (fp32, bf16 or fp16); `scale` is the c above.

    `weight` and `A` have the type of x; `Wc`, `ws` and `bias` may be fp32 besides. The last dimension of each has unit
    stride. `tiles` replaces the tuned tile sizes. Raises ValueError where R > 128 or there is no gate.
    """
    (T, D), N, R = x_TD.shape, len(weight_ND), len(A_RD)
    if R > MOST_COLUMNS or (Wc_NR is None and ws_1R is None):
        raise ValueError(f"a gate with a bottleneck of 1 to {MOST_COLUMNS} columns is needed, not of {R}")
    if not x_TD.dtype == weight_ND.dtype == A_RD.dtype:
        raise ValueError(f"x, weight and A are {x_TD.dtype}, {weight_ND.dtype} and {A_RD.dtype}: one type is needed")
    tiles = tiles or tiles_for(x_TD, weight_ND)
    same_pass = tiles.same_pass and R <= MOST_IN_SAME_PASS
    zhat_TN = x_TD.new_empty(T, N)
    u_TR = x_TD.new_empty(T, R) if same_pass else x_TD @ A_RD.T
    if T == 0:
        return zhat_TN, u_TR
    block_r = max(LEAST_DOT, triton.next_power_of_2(R))
    with torch.cuda.device_of(x_TD):
        _projection[(triton.cdiv(T, tiles.rows) * triton.cdiv(N, tiles.columns),)](
            x_TD,
            weight_ND,
            A_RD,
            Wc_NR if Wc_NR is not None else x_TD,
            ws_1R if ws_1R is not None else x_TD,
            bias_N if bias_N is not None else x_TD,
            zhat_TN,
            u_TR,
            T,
            N,
            D,
            x_TD.stride(0),
            weight_ND.stride(0),
            A_RD.stride(0),
            Wc_NR.stride(0) if Wc_NR is not None else 0,
            u_TR.stride(0),
            scale,
            R=R,
            CHANNEL=Wc_NR is not None,
            SCALAR=ws_1R is not None,
            BIAS=bias_N is not None,
            SAME_PASS=same_pass,
            EVEN_D=D % tiles.inner == 0,
            BLOCK_T=tiles.rows,
            BLOCK_N=tiles.columns,
            BLOCK_D=tiles.inner,
            BLOCK_R=min(block_r, MOST_IN_SAME_PASS),
            GROUP=tiles.group,
            PART=min(tiles.columns, PART),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **({"maxnreg": tiles.registers} if tiles.registers and block_r == LEAST_DOT else {}),
        )
    return zhat_TN, u_TR


def tiles_for(x_TD: Tensor, weight_ND: Tensor) -> Tiles:
    """The table's tiles for these operands, if their rows are aligned."""
    if any(tensor.stride(0) * tensor.itemsize % 16 for tensor in (x_TD, weight_ND)):
        return UNALIGNED
    return configuration("projection", len(weight_ND), x_TD.shape[1], len(x_TD), x_TD.dtype)


@triton.jit
def _dot(a, b, acc):
    """acc + a b in fp32. The interpreter keeps bf16 as integers, and would multiply those."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def _logits(p_TR, Wc_RN, acc_TN, STORED: tl.constexpr):
    """acc + p Wc^T in fp32, on units that multiply STORED. An infinite Wc meets only the high part of p."""
    high_RN = Wc_RN.to(STORED)
    if STORED == tl.float32:  # noqa: SIM300
        return _dot(p_TR, high_RN, acc_TN)
    else:
        p_high_TR = p_TR.to(STORED)
        p_low_TR = (p_TR - p_high_TR.to(tl.float32)).to(STORED)
        wide_RN = high_RN.to(tl.float32)
        infinite_RN = tl.abs(wide_RN) == float("inf")
        acc_TN = _dot(p_low_TR, tl.where(infinite_RN, 0.0, wide_RN).to(STORED), acc_TN)
        if Wc_RN.dtype != STORED:
            low_RN = tl.where(infinite_RN, 0.0, Wc_RN.to(tl.float32) - wide_RN)
            acc_TN = _dot(p_high_TR, low_RN.to(STORED), acc_TN)
        return _dot(p_high_TR, high_RN, acc_TN)


@triton.jit
def _projection(
    x_ptr,
    w_ptr,
    a_ptr,
    c_ptr,
    s_ptr,
    bias_ptr,
    zhat_ptr,
    u_ptr,
    T,
    N,
    D,
    stride_x,
    stride_w,
    stride_a,
    stride_c,
    stride_u,
    scale,
    R: tl.constexpr,
    CHANNEL: tl.constexpr,
    SCALAR: tl.constexpr,
    BIAS: tl.constexpr,
    SAME_PASS: tl.constexpr,
    EVEN_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    GROUP: tl.constexpr,
    PART: tl.constexpr,
):
    STORED: tl.constexpr = x_ptr.dtype.element_ty
    # Programs run in the order of their number. GROUP row blocks share every column block's weights while these are in
    # the L2 cache, before the next column block is read.
    program = tl.program_id(0)
    row_blocks = tl.cdiv(T, BLOCK_T)
    column_blocks = tl.cdiv(N, BLOCK_N)
    first = program // (GROUP * column_blocks) * GROUP
    rows_in_group = tl.minimum(row_blocks - first, GROUP)
    within = program % (GROUP * column_blocks)
    row_block = first + within % rows_in_group
    column_block = within // rows_in_group

    # Offsets within a tile fit 32 bits, its start need not. Rows and columns past the end read the last one again.
    start_t = row_block.to(tl.int64) * BLOCK_T
    start_n = column_block.to(tl.int64) * BLOCK_N
    t = tl.arange(0, BLOCK_T)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    rows = tl.minimum(t, (T - 1 - start_t).to(tl.int32))
    columns = tl.minimum(n, (N - 1 - start_n).to(tl.int32))
    x_tile = x_ptr + start_t * stride_x + rows[:, None] * stride_x + d[None, :]
    w_tile = w_ptr + start_n * stride_w + columns[None, :] * stride_w + d[:, None]
    r = tl.arange(0, BLOCK_R)
    a_tile = a_ptr + tl.minimum(r, R - 1)[None, :] * stride_a + d[:, None]
    acc_TN = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    acc_TR = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
    for start_d in range(0, D, BLOCK_D):
        if EVEN_D:
            x_Td = tl.load(x_tile)
            w_dN = tl.load(w_tile)
        else:
            x_Td = tl.load(x_tile, mask=d[None, :] < D - start_d, other=0.0)
            w_dN = tl.load(w_tile, mask=d[:, None] < D - start_d, other=0.0)
        acc_TN = _dot(x_Td, w_dN, acc_TN)
        if SAME_PASS:
            if EVEN_D:  # noqa: SIM108
                a_dR = tl.load(a_tile)
            else:
                a_dR = tl.load(a_tile, mask=d[:, None] < D - start_d, other=0.0)
            acc_TR = _dot(x_Td, a_dR, acc_TR)
            a_tile += BLOCK_D
        x_tile += BLOCK_D
        w_tile += BLOCK_D

    if SAME_PASS:
        u_TR = acc_TR.to(STORED)
        if column_block == 0:
            u_tile = u_ptr + start_t * stride_u + t[:, None] * stride_u + r[None, :]
            tl.store(u_tile, u_TR, mask=(t < T - start_t)[:, None] & (r < R)[None, :])
    else:  # where there are more than BLOCK_R columns, the parts read them a few at a time instead
        u_TR = tl.load(
            u_ptr + start_t * stride_u + rows[:, None] * stride_u + r[None, :], mask=(r < R)[None, :], other=0.0
        )
    # The program's tile has its gate applied a part at a time: the logits take as many registers as the part itself.
    _gate_and_store(
        acc_TN,
        u_TR,
        c_ptr + start_n * stride_c,
        s_ptr,
        bias_ptr + start_n,
        zhat_ptr + start_t * N + start_n,
        u_ptr + start_t * stride_u,
        T - start_t,
        N - start_n,
        N,
        stride_c,
        stride_u,
        scale,
        R,
        CHANNEL,
        SCALAR,
        BIAS,
        PART,
    )


@triton.jit
def _gate_and_store(
    acc_TN,
    u_TR,
    c_ptr,
    s_ptr,
    bias_ptr,
    zhat_ptr,
    u_ptr,
    rows_left,
    columns_left,
    stride_zhat,
    stride_c,
    stride_u,
    scale,
    R: tl.constexpr,
    CHANNEL: tl.constexpr,
    SCALAR: tl.constexpr,
    BIAS: tl.constexpr,
    PART: tl.constexpr,
):
    BLOCK_T: tl.constexpr = acc_TN.shape[0]
    BLOCK_N: tl.constexpr = acc_TN.shape[1]
    BLOCK_R: tl.constexpr = u_TR.shape[1]
    if BLOCK_N > PART:
        HALF: tl.constexpr = BLOCK_N // 2
        left, right = tl.split(tl.permute(tl.reshape(acc_TN, (BLOCK_T, 2, HALF)), (0, 2, 1)))
        _gate_and_store(
            left,
            u_TR,
            c_ptr,
            s_ptr,
            bias_ptr,
            zhat_ptr,
            u_ptr,
            rows_left,
            columns_left,
            stride_zhat,
            stride_c,
            stride_u,
            scale,
            R,
            CHANNEL,
            SCALAR,
            BIAS,
            PART,
        )
        _gate_and_store(
            right,
            u_TR,
            c_ptr + HALF * stride_c,
            s_ptr,
            bias_ptr + HALF,
            zhat_ptr + HALF,
            u_ptr,
            rows_left,
            columns_left - HALF,
            stride_zhat,
            stride_c,
            stride_u,
            scale,
            R,
            CHANNEL,
            SCALAR,
            BIAS,
            PART,
        )
    else:
        STORED: tl.constexpr = zhat_ptr.dtype.element_ty
        t = tl.arange(0, BLOCK_T)
        n = tl.arange(0, BLOCK_N)
        r = tl.arange(0, BLOCK_R)
        within_rows = t < rows_left
        within_columns = n < columns_left
        channel_TN = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
        scalar_T = tl.zeros((BLOCK_T,), tl.float32)
        for start_r in tl.range(0, R, BLOCK_R, num_stages=1):
            real = start_r + r < R
            if R <= BLOCK_R:
                u_Tr = u_TR
            else:
                u_tile = u_ptr + t[:, None] * stride_u + start_r + r[None, :]
                u_Tr = tl.load(u_tile, mask=within_rows[:, None] & real[None, :], other=0.0)
            p_Tr = tl.sigmoid(u_Tr.to(tl.float32))
            if CHANNEL:
                c_tile = c_ptr + n[None, :] * stride_c + start_r + r[:, None]
                Wc_rN = tl.load(c_tile, mask=real[:, None] & within_columns[None, :], other=0.0)
                channel_TN = _logits(p_Tr, Wc_rN, channel_TN, STORED)
            if SCALAR:
                ws_r = tl.load(s_ptr + start_r + r, mask=real, other=0.0).to(tl.float32)
                scalar_T += tl.sum(p_Tr * ws_r[None, :], 1)
        if BIAS:
            acc_TN += tl.load(bias_ptr + n, mask=within_columns, other=0.0).to(tl.float32)[None, :]
        if CHANNEL:
            acc_TN *= scale * tl.sigmoid(channel_TN)
        if SCALAR:
            acc_TN *= (scale * tl.sigmoid(scalar_T))[:, None]
        zhat_tile = zhat_ptr + t[:, None] * stride_zhat + n[None, :]
        tl.store(zhat_tile, acc_TN.to(STORED), mask=within_rows[:, None] & within_columns[None, :])
