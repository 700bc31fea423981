"""Batch norm after a convolution, with CoMT's gates, skip path and ReLU, as one operator.

Shapes: P pixels of all images (the rows of a channels-last map), C channels, h hidden width of the window gate (Zhang
et al. 2025, Eq. 13), r that of the pixel gate (Eq. 11), K >= C columns of the convolution's product.

    g = sigmoid(sigmoid(u) . window)     z = g product[:, :C]     n = (z - mean) / sqrt(var + epsilon)
    f = sigmoid(sigmoid(n A^T) . b)      y = act(f weight n + bias + skip)

u, [P, h], is in the columns after C. Absent gates and an absent weight are 1. Mean and biased variance are those of the
batch: the operator is for training only. The product, and with a ReLU also y, are saved; gates and n are not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from comt_cli.kernels.operators import differentiable, unit_stride


def reference(
    product_PK: Tensor, window_h: Tensor | None, A_rC: Tensor | None, b_r: Tensor | None, weight_C: Tensor | None,
    bias_C: Tensor, skip_PC: Tensor | None, relu: bool, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, [P, C], in the type of the product; mean and biased variance of the batch, [C], in at least fp32."""
    wide = torch.promote_types(product_PK.dtype, torch.float32)
    C = len(bias_C)
    z_PC = product_PK[:, :C].to(wide)
    if window_h is not None:
        u_Ph = product_PK[:, C : C + len(window_h)].to(wide)
        z_PC = z_PC * torch.sigmoid(torch.sigmoid(u_Ph) @ window_h.to(wide)).unsqueeze(-1)
    mean_C, var_C = z_PC.mean(0), z_PC.var(0, correction=0)
    n_PC = (z_PC - mean_C) * torch.rsqrt(var_C + epsilon)
    m_PC = n_PC if weight_C is None else n_PC * weight_C
    if A_rC is not None and b_r is not None:
        m_PC = m_PC * torch.sigmoid(torch.sigmoid(n_PC @ A_rC.to(wide).T) @ b_r.to(wide)).unsqueeze(-1)
    m_PC = m_PC + bias_C
    if skip_PC is not None:
        m_PC = m_PC + skip_PC
    return (torch.relu(m_PC) if relu else m_PC).to(product_PK.dtype), mean_C, var_C


class Saved(NamedTuple):
    """`y` is None without a ReLU. `dskip`: whether the skip path's gradient is written; without a ReLU it is dy."""

    y: Tensor | None
    product: Tensor
    window: Tensor | None
    A: Tensor | None
    b: Tensor | None
    weight: Tensor | None
    mean: Tensor
    var: Tensor
    relu: bool
    epsilon: float
    dskip: bool


def _empty(product: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    C = others[4].shape[0]  # of the bias
    mean, var = (product.new_empty(C, dtype=torch.float32) for _ in range(2))
    return product.new_empty(product.shape[0], C), mean, var


def _empty_gradients(saved: Saved) -> tuple[Tensor, ...]:
    """Gradients of product, window, A, b, weight, bias and skip; without elements for absent operands."""
    product, mean = saved.product, saved.mean
    of_parameters = (
        mean.new_empty((0,) if each is None else each.shape, dtype=torch.float32)
        for each in (saved.window, saved.A, saved.b, saved.weight, mean)
    )
    dskip = product.new_empty((product.shape[0], mean.shape[0]) if saved.dskip else (0,))
    return torch.empty_like(product, memory_format=torch.contiguous_format), *of_parameters, dskip


def _save(given: Any, output: Any) -> Saved:
    *operands, _, skip, relu, epsilon = given
    y, *moments = output
    return Saved._make([y if relu else None, *operands, *moments, relu, epsilon, skip is not None and relu])


def _gradients(backward: Any, saved: Saved, dy: Tensor) -> dict[str, Any]:
    dy = dy if dy.stride(-1) == 1 and dy.stride(0) >= dy.shape[1] else dy.contiguous()
    dproduct, dwindow, dA, db, dweight, dbias, dskip = backward(dy, *saved)
    of_parameters = {"window_h": dwindow, "A_rC": dA, "b_r": db, "weight_C": dweight, "bias_C": dbias}
    return {"product_PK": dproduct, **of_parameters, "skip_PC": dskip if saved.dskip else dy}


_modulated_norm = differentiable(
    "modulated_norm", reference, _empty, saved=Saved, incoming="dy", empty_gradients=_empty_gradients, results=7,
    gradients=_gradients, save=_save,
)  # fmt: skip


def modulated_norm(product_PK: Tensor, *operands: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference`, by a hand-written kernel. Mean and variance, in fp32, have no gradient. The product is fp32 or
    bf16 with contiguous rows. `skip` is converted to its type."""
    *before, skip_PC, relu, epsilon = operands
    skip_PC = None if skip_PC is None else unit_stride(skip_PC.to(product_PK.dtype))
    y, mean, var = _modulated_norm(product_PK, *before, skip_PC, relu, epsilon)
    return y, mean.detach(), var.detach()
