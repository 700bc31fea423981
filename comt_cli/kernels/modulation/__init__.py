"""Joins the gate parameters of a product's sites into one `Modulation`.

    Wc = exp(log_alpha_c) Bc and ws = exp(log_alpha_s) bs of every gated site, stacked by rows

On a GPU, PyTorch's operations would be some twenty small kernels per layer. One kernel replaces them, and another one
computes all gradients, dB = exp(log_alpha) dW and dlog_alpha = sum(dW W). On a CPU the compiler's code is as fast.

Shapes: N rows of one matrix, R bottleneck width, Mg and S rows of all sites' Wc and ws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from comt_cli.kernels.gates import Bottleneck, Modulation
from comt_cli.kernels.operators import computed_by_triton, operator, refuse_second


def reference(
    B: Sequence[Tensor], log_alpha: Sequence[Tensor | None], rows: Sequence[int], channel: int
) -> tuple[Tensor, Tensor]:
    """exp(log_alpha_i) B_i stacked by rows, each padded with zeros to its `rows`: of the first `channel` matrices, [Mg,
    R], and of the others, [S, R]. A log_alpha of None is 0. An empty list gives a tensor without elements."""
    scaled = [B_NR if each is None else each.exp() * B_NR for B_NR, each in zip(B, log_alpha, strict=True)]
    pairs = zip(scaled, rows, strict=True)
    filled = [F.pad(W_NR, (0, 0, 0, n - len(W_NR))) if n > len(W_NR) else W_NR for W_NR, n in pairs]
    Wc, ws = (torch.cat(part) if part else B[0].new_empty(0) for part in (filled[:channel], filled[channel:]))
    return Wc, ws


def empty(B: Sequence[Tensor], _: Any, rows: Sequence[int], channel: int) -> tuple[Tensor, ...]:
    """Empty tensors like Wc and ws, in fp32."""
    parts, R = (rows[:channel], rows[channel:]), B[0].shape[1]
    return tuple(B[0].new_empty((sum(part), R) if part else 0, dtype=torch.float32) for part in parts)


def empty_gradients(  # the annotations are the schema
    dWc: Tensor, dws: Tensor, B: Sequence[Tensor], log_alpha: Sequence[Tensor], rows: Sequence[int], channel: int
) -> list[Tensor]:
    """Gradients of the matrices B, then of the log_alphas, each in its parameter's type."""
    return [torch.empty_like(each, memory_format=torch.contiguous_format) for each in (*B, *log_alpha)]


_modulation = operator("modulation", reference, empty)
_modulation_backward = operator("modulation_backward", empty_gradients, empty_gradients)


class _Joined(torch.autograd.Function):
    """As `reference`, by a kernel, in fp32. Its tensors are the matrices, then as many log_alphas."""

    @staticmethod
    def forward(ctx: Any, rows: Sequence[int], channel: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*tensors)
        ctx.how = rows, channel
        return cast(tuple[Tensor, Tensor], _modulation(*_halves(tensors), rows, channel))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second("comt.modulation")
        dWc, dws = (gradient.contiguous() for gradient in gradients)
        return None, None, *_modulation_backward(dWc, dws, *_halves(ctx.saved_tensors), *ctx.how)


def _halves(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    half = len(tensors) // 2
    return list(tensors[:half]), list(tensors[half:])


def modulation_of(gates: Sequence[Bottleneck | None], widths: Sequence[int]) -> Modulation | None:
    """One `Modulation` for the gates of a product's sites (None: no gate there); None if they differ in kind.

    widths: columns of each site in the product, at least as many as its gate has; Wc is padded with zeros.
    """
    present = [(gate, width) for gate, width in zip(gates, widths, strict=True) if gate is not None]
    gated = tuple(gate is not None for gate in gates)
    if not present:
        return Modulation(None, None, 1.0, 0, gated)
    kinds = {(gate.Bc is None, gate.bs is None, gate.scale, gate.rank) for gate, _ in present}
    if len(kinds) > 1:
        return None
    channel = [(gate.Bc, gate.log_alpha_c, width) for gate, width in present if gate.Bc is not None]
    scalar = [(gate.bs, gate.log_alpha_s, 1) for gate, _ in present if gate.bs is not None]
    B, log_alpha, rows = zip(*channel, *scalar, strict=True)
    if computed_by_triton(B[0].device) and all(each is not None for each in log_alpha):
        joined = _Joined.apply(rows, len(channel), *B, *log_alpha)  # type: ignore[no-untyped-call]
    else:
        joined = reference(B, log_alpha, rows, len(channel))
    Wc, ws = (W if part else None for W, part in zip(joined, (channel, scalar), strict=True))
    (_, _, scale, rank) = kinds.pop()
    return Modulation(Wc, ws, scale, rank, gated)
