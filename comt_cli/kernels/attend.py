"""softmax(Q K^T / sqrt(E)) V, computed by the faster form on this processor.

PyTorch's fused attention for CPUs is slow in bf16, especially its backward pass. Two batched products and a softmax are
faster; they save the weights, [B, H, T, S], for the backward pass. In fp32 they gain nothing. The choice depends only
on shape, type and processor, so a resumed run computes the same numbers.

Shapes: B batch, H heads, K key-value heads, G = H / K, T queries, S keys, E head width.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from comt_cli.kernels.gates import multiplied_in
from comt_cli.kernels.processors import processor_class
from comt_cli.runs.directory import BATCHED, PYTORCH

CLASSES = ("Intel AMX", "AMD AVX-512")
"""Processor classes on which batched products were measured to be faster, with one and two threads. At 32 to 512 tokens
a layer's forward and backward pass took 1 / 1.9 to 1 / 9 of the time on a Xeon with AMX, and 1 / 1.1 to 1 / 8 on
an EPYC with AVX-512 (results/bench)."""
MOST_TOKENS = 512  # queries and keys; at 1024 fused attention is as fast and saves no weights
FEW_QUERIES = 8  # with fewer, as in decoding, fused attention is often faster: it does not copy the cache


def attention_form(device_type: str, dtype: torch.dtype) -> str:
    """Form of attention for short sequences in products of `dtype`: `PYTORCH` (fused) or `BATCHED`."""
    return BATCHED if device_type == "cpu" and dtype == torch.bfloat16 and _gains() else PYTORCH


def attend(
    q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, mask: Tensor | None = None, *, causal: bool = False,
    tokens: int | None = None,
) -> Tensor:  # fmt: skip
    """Output of attention, [B, H, T, E]. A query attends to keys where `mask`, [1 or B, 1, 1 or T, S], is True, or with
    `causal`, without a mask, to keys up to its own position. A query without keys gets zeros. `tokens`: number of
    tokens of these queries, if a head has several queries per token; None: T."""
    assert mask is None or not causal
    T, S = tokens or q_BHTE.shape[2], k_BKSE.shape[2]
    if q_BHTE.is_cpu and FEW_QUERIES < T <= MOST_TOKENS and S <= MOST_TOKENS:
        dtype = multiplied_in(q_BHTE)
        if attention_form("cpu", dtype) == BATCHED:
            return _by_batched_products(q_BHTE.to(dtype), k_BKSE.to(dtype), v_BKSE.to(dtype), mask, causal=causal)
    is_grouped = q_BHTE.shape[1] != k_BKSE.shape[1]
    return F.scaled_dot_product_attention(
        q_BHTE, k_BKSE, v_BKSE, attn_mask=mask, is_causal=causal, enable_gqa=is_grouped
    )


def _by_batched_products(
    q_BHTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, mask: Tensor | None, *, causal: bool
) -> Tensor:
    (B, H, T, E), (K, S) = q_BHTE.shape, k_BKSE.shape[1:3]
    seen = torch.ones(1, 1, T if causal else 1, S, dtype=torch.bool) if mask is None else mask
    if causal:
        seen = seen.tril()
    # Not -inf: a query without keys would be 0 / 0, with NaN gradients.
    added = torch.zeros(seen.shape, dtype=q_BHTE.dtype).masked_fill(~seen, torch.finfo(q_BHTE.dtype).min)
    # The G heads that share keys are G * T queries of one head, so that no key is copied.
    if seen.shape[2] > 1:
        added = added.repeat(1, 1, H // K, 1)
    added = added[0] if len(added) == 1 else added.expand(-1, K, -1, -1).flatten(0, 1)
    q, k, v = (x.reshape(B * K, -1, E) for x in (q_BHTE, k_BKSE, v_BKSE))
    weights = torch.softmax(torch.baddbmm(added, q, k.transpose(1, 2), alpha=1 / math.sqrt(E)), dim=-1)
    mixed_BHTE = torch.bmm(weights, v).view(B, H, T, E)
    return mixed_BHTE if mask is None else mixed_BHTE.masked_fill(~mask.any(-1, keepdim=True), 0)


_class = functools.cache(processor_class)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _gains() -> bool:
    return _class() in CLASSES
