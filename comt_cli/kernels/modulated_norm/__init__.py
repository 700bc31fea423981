"""The batch norm behind a convolution, with CoMT's gates in it, what is added and ReLU: one operator for all of it.

Shapes: P pixels of all images (the rows of a channels-last map), C channels, h hidden width of the window gate (Zhang
et al. 2025, Eq. 13), r that of the pixel gate (Eq. 11), K >= C columns of the convolution's product.

    g = sigmoid(sigmoid(u) . window)     z = g product[:, :C]     n = (z - mean) / sqrt(var + epsilon)
    f = sigmoid(sigmoid(n A^T) . b)      y = act(f weight n + bias + skip)

u, [P, h], is given or lies in the columns behind the C; gates that are absent are 1, and so is an absent weight. The
mean and the biased variance are those of this batch: this is training, evaluation has no need of it. The product, u,
and y where ReLU follows are kept for the backward pass: neither gate, nor n.
"""

# ruff: noqa: ARG001 - what prepares an operator's derivative, or stands in for it, is given all its arguments

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels.operators import operator


def reference(
    product_PK: Tensor,
    u_Ph: Tensor | None,
    window_h: Tensor | None,
    A_rC: Tensor | None,
    b_r: Tensor | None,
    weight_C: Tensor | None,
    bias_C: Tensor,
    skip_PC: Tensor | None,
    relu: bool,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, [P, C], in the product's type; the batch's mean and biased variance, [C], in at least fp32."""
    wide = torch.promote_types(product_PK.dtype, torch.float32)
    C = len(bias_C)
    z_PC = product_PK[:, :C].to(wide)
    if window_h is not None:
        u_Ph = product_PK[:, C : C + len(window_h)] if u_Ph is None else u_Ph
        z_PC = z_PC * torch.sigmoid(torch.sigmoid(u_Ph.to(wide)) @ window_h.to(wide)).unsqueeze(-1)
    mean_C, var_C = z_PC.mean(0), z_PC.var(0, correction=0)
    n_PC = (z_PC - mean_C) * torch.rsqrt(var_C + epsilon)
    m_PC = n_PC if weight_C is None else n_PC * weight_C
    if A_rC is not None and b_r is not None:
        m_PC = m_PC * torch.sigmoid(torch.sigmoid(n_PC @ A_rC.to(wide).T) @ b_r.to(wide)).unsqueeze(-1)
    m_PC = m_PC + bias_C
    if skip_PC is not None:
        m_PC = m_PC + skip_PC
    return (torch.relu(m_PC) if relu else m_PC).to(product_PK.dtype), mean_C, var_C


def _fake(product: Tensor, u: Any, window: Any, A: Any, b: Any, weight: Any, bias: Tensor, *more: Any) -> Any:
    C = bias.shape[0]
    mean, var = (product.new_empty(C, dtype=torch.float32) for _ in range(2))
    return product.new_empty(product.shape[0], C), mean, var


def _fake_backward(
    dy: Tensor, y: Any, product: Tensor, u: Any, window: Any, A: Any, b: Any, weight: Any, mean: Tensor, *more: Any
) -> Any:
    of_parameters = (
        dy.new_empty((0,) if each is None else each.shape, dtype=torch.float32) for each in (window, A, b, weight, mean)
    )
    has_skip = more[-1]
    dskip = dy.new_empty(dy.shape if has_skip else (0,))
    du = dy.new_empty(0) if u is None else torch.empty_like(u)
    return torch.empty_like(product, memory_format=torch.contiguous_format), *of_parameters, dskip, du


def _keep(inputs: Any, output: Any) -> Any:
    product, u, window, A, b, weight, bias, skip, relu, epsilon = inputs
    y, mean, var = output
    has_skip = skip is not None
    return y if relu else None, product, u, window, A, b, weight, mean, var, relu, epsilon, has_skip, bias.dtype


def _gradients(kept: Any, dy: Tensor, _mean: Any, _var: Any) -> Any:
    y, product, u, window, A, b, weight, mean, var, relu, epsilon, has_skip, bias_type = kept
    dy = dy if dy.stride(-1) == 1 and dy.stride(0) >= dy.shape[1] else dy.contiguous()
    through_relu = has_skip and relu
    dproduct, dwindow, dA, db, dweight, dbias, dskip, du = _modulated_norm_backward(
        dy, y, product, u, window, A, b, weight, mean, var, relu, epsilon, through_relu
    )
    found = [
        None if of is None else gradient.to(of.dtype)
        for gradient, of in ((du, u), (dwindow, window), (dA, A), (db, b), (dweight, weight))
    ]
    dskip = dskip if through_relu else dy if has_skip else None
    return dproduct, *found, dbias.to(bias_type), dskip, None, None


_PARAMETERS = [f"Tensor? {each}" for each in ("u", "window", "A", "b", "weight")]
_modulated_norm = operator(
    "modulated_norm",
    ["Tensor product", *_PARAMETERS, "Tensor bias", "Tensor? skip", "bool relu", "float epsilon"],
    "(Tensor, Tensor, Tensor)",
    _fake,
    keep=_keep,
    gradients=_gradients,
)
_modulated_norm_backward = operator(
    "modulated_norm_backward",
    [
        *("Tensor dy", "Tensor? y", "Tensor product"),
        *_PARAMETERS,
        *("Tensor mean", "Tensor var", "bool relu", "float epsilon", "bool has_skip"),
    ],
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake_backward,
)


def modulated_norm(
    product_PK: Tensor,
    u_Ph: Tensor | None,
    window_h: Tensor | None,
    A_rC: Tensor | None,
    b_r: Tensor | None,
    weight_C: Tensor | None,
    bias_C: Tensor,
    skip_PC: Tensor | None,
    relu: bool,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference`, by a hand-written kernel; mean and variance, in fp32, have no gradient.

    product: fp32 or bf16 (on a GPU fp16 too), its rows in one piece each. skip is taken in the product's type.
    """
    if skip_PC is not None:
        skip_PC = skip_PC.to(product_PK.dtype)
        skip_PC = skip_PC if skip_PC.stride(-1) == 1 else skip_PC.contiguous()
    y, mean, var = _modulated_norm(product_PK, u_Ph, window_h, A_rC, b_r, weight_C, bias_C, skip_PC, relu, epsilon)
    return y, mean.detach(), var.detach()
