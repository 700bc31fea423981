"""Queries, keys and values: gated, q and k rotated, in one operation.

Its outputs, which attention saves anyway, and the narrow u are saved for the backward pass. Shapes as in
`kernels.gates`; P positions, E the width of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from comt_cli.kernels.gates import Modulation, gated_sites
from comt_cli.kernels.operators import differentiable, like_gradients


def rotate(x_TN: Tensor, cos_PE: Tensor, sin_PE: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of rows of concatenated heads: channels i and i + E/2 of every head.
    Row t rotates by the angles in row t % P of the tables, [P, E/2] each."""
    half = cos_PE.shape[-1]
    positions = torch.arange(len(x_TN), device=x_TN.device) % len(cos_PE)
    cos_T1E, sin_T1E = cos_PE[positions].unsqueeze(1), sin_PE[positions].unsqueeze(1)
    first, second = x_TN.view(len(x_TN), x_TN.shape[1] // (2 * half), 2, half).unbind(2)
    turned = torch.stack([first * cos_T1E - second * sin_T1E, second * cos_T1E + first * sin_T1E], 2)
    return turned.reshape(x_TN.shape)


def reference(
    product_TC: Tensor, modulation: Modulation, cos_PE: Tensor, sin_PE: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gated and rotated queries and keys, and gated values, [T, heads * E] each, and a copy of the u, [T, S R]."""
    widths = [each * 2 * cos_PE.shape[-1] for each in (heads, kv_heads, kv_heads)]
    q, k, v = gated_sites(product_TC, modulation, widths)
    u = product_TC[:, sum(widths) : sum(widths) + modulation.columns].clone()
    return rotate(q, cos_PE, sin_PE), rotate(k, cos_PE, sin_PE), v, u


class Saved(NamedTuple):
    """`columns` is the number of columns of the product."""

    q: Tensor
    k: Tensor
    v: Tensor
    u: Tensor
    modulation: Modulation
    cos: Tensor
    sin: Tensor
    heads: int
    kv_heads: int
    columns: int


def _empty(
    product: Tensor, modulation: Modulation, cos: Tensor, sin: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, ...]:
    wide, narrow = (each * 2 * cos.shape[1] for each in (heads, kv_heads))
    return tuple(product.new_empty(product.shape[0], n) for n in (wide, narrow, narrow, modulation.columns))


_heads = differentiable(
    "heads", reference, _empty, saved=Saved, incoming="dq dk dv",
    empty_gradients=lambda saved: like_gradients(saved.q.new_empty(len(saved.q), saved.columns), saved.modulation),
    save=lambda given, output: Saved._make([*output, *given[1:], given[0].shape[1]]),
)  # fmt: skip


def heads(
    product_TC: Tensor, modulation: Modulation, cos_PE: Tensor, sin_PE: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as in `reference`, by a hand-written kernel."""
    q, k, v, _ = _heads(product_TC, modulation, cos_PE, sin_PE, heads, kv_heads)
    return q, k, v
