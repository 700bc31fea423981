"""The matrices of all sites' gates from their parameters, in one launch; and the gradients of all parameters, in one.

A program of the forward pass has a block of every matrix. In the backward pass one has a whole matrix, since
dlog_alpha is a sum over it: some ten thousand elements, a handful of blocks for its many threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.modulation import empty, empty_gradients

BLOCK = 1024
WHOLE_BLOCK, WHOLE_WARPS = 8192, 16


def modulation(
    B: Sequence[Tensor], log_alpha: Sequence[Tensor], rows: Sequence[int], channel: int
) -> tuple[Tensor, Tensor]:
    """Return Wc, [Mg, R], and ws, [S, R], in fp32. See `reference`."""
    R, (Wc, ws) = B[0].shape[1], empty(B, log_alpha, rows, channel)
    with torch.cuda.device_of(B[0]):
        _modulation[triton.cdiv(max(rows) * R, BLOCK), len(B)](
            tuple(each.contiguous() for each in B),
            tuple(log_alpha),
            _views(Wc, ws, rows, channel),
            tuple(each.numel() for each in B),
            tuple(n * R for n in rows),
            BLOCK=BLOCK,
        )
    return Wc, ws


def modulation_backward(
    dWc: Tensor, dws: Tensor, B: Sequence[Tensor], log_alpha: Sequence[Tensor], rows: Sequence[int], channel: int
) -> list[Tensor]:
    """Return the gradients of the matrices B, then those of the log_alphas, each in its parameter's type."""
    gradients = empty_gradients(dWc, dws, B, log_alpha, rows, channel)
    with torch.cuda.device_of(B[0]):
        _modulation_backward[(len(B),)](
            _views(dWc, dws, rows, channel),
            tuple(each.contiguous() for each in B),
            tuple(log_alpha),
            tuple(gradients[: len(B)]),
            tuple(gradients[len(B) :]),
            tuple(each.numel() for each in B),
            BLOCK=min(WHOLE_BLOCK, triton.next_power_of_2(max(each.numel() for each in B))),
            num_warps=WHOLE_WARPS,
        )
    return gradients


def _views(Wc: Tensor, ws: Tensor, rows: Sequence[int], channel: int) -> tuple[Tensor, ...]:
    """The rows of Wc or ws that belong to each matrix, and what comes behind them."""
    parts = (Wc, rows[:channel]), (ws, rows[channel:])
    return tuple(W[sum(part[:i]) :] for W, part in parts for i in range(len(part)))


@triton.jit
def _modulation(B, log_alpha, W, sizes, filled, BLOCK: tl.constexpr):
    """A block of one matrix, with the zeros behind it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for i in tl.static_range(len(B)):
        if tl.program_id(1) == i:
            alpha = tl.exp(tl.load(log_alpha[i]).to(tl.float32))
            value = tl.load(B[i] + at, mask=at < sizes[i], other=0.0).to(tl.float32)
            tl.store(W[i] + at, alpha * value, mask=at < filled[i])


@triton.jit
def _modulation_backward(dW, B, log_alpha, dB, dlog_alpha, sizes, BLOCK: tl.constexpr):
    """One matrix."""
    for i in tl.static_range(len(B)):
        if tl.program_id(0) == i:
            alpha = tl.exp(tl.load(log_alpha[i]).to(tl.float32))
            total = tl.zeros([BLOCK], tl.float32)
            for first in range(0, sizes[i], BLOCK):
                at = first + tl.arange(0, BLOCK)
                inside = at < sizes[i]
                scaled = alpha * tl.load(dW[i] + at, mask=inside, other=0.0)
                total += scaled * tl.load(B[i] + at, mask=inside, other=0.0).to(tl.float32)
                tl.store(dB[i] + at, scaled, mask=inside)
            tl.store(dlog_alpha[i], tl.sum(total, 0))
