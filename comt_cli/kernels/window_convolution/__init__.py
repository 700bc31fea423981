"""A convolution and the few filters of its window gate on the same map, on a CPU, as one operator.

There a convolution of 64 + 1 filters takes a quarter longer than one of 64: PyTorch's works in vectors of 16. The
gate's filters are therefore applied tap by tap as a product of matrices, [h k k, C] x [C, P], whose k k planes are
added with their shifts. Shapes: B images, C channels, P = B H W pixels of the output, h filters of k x k taps.
"""

# ruff: noqa: ARG001 - what prepares an operator's derivative, or stands in for it, is given all its arguments

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels.operators import operator


def reference(x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """The product as channels-last rows, [P, C_out], and the filters' u, [h, P]."""
    joined = torch.conv2d(x_BCHW, torch.cat([weight, filters]), None, stride, padding)
    rows = joined.permute(0, 2, 3, 1).reshape(-1, joined.shape[1])
    return rows[:, : len(weight)], rows[:, len(weight) :].T


def _fake(x: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int) -> Any:
    B, _, *sides = x.shape
    out_H, out_W = ((side + 2 * padding - weight.shape[-1]) // stride + 1 for side in sides)
    P = B * out_H * out_W
    return x.new_empty(P, weight.shape[0]), x.new_empty(filters.shape[0], P, dtype=torch.float32)


def _fake_backward(dproduct: Tensor, du: Tensor, x: Tensor, weight: Tensor, filters: Tensor, *how: Any) -> Any:
    dx, dweight = (torch.empty_like(each, memory_format=torch.channels_last) for each in (x, weight))
    return dx, dweight, torch.empty_like(filters, memory_format=torch.contiguous_format)


def _keep(inputs: Any, output: Any) -> Any:
    return inputs


def _gradients(kept: Any, dproduct: Tensor, du: Tensor) -> Any:
    return *_window_convolution_backward(dproduct, du, *kept), None, None


_OPERANDS = ["Tensor x", "Tensor weight", "Tensor filters", "int stride", "int padding"]
_window_convolution = operator(
    "window_convolution",
    _OPERANDS,
    "(Tensor, Tensor)",
    _fake,
    keep=_keep,
    gradients=_gradients,
    device_types="cpu",
)
_window_convolution_backward = operator(
    "window_convolution_backward",
    ["Tensor dproduct", "Tensor du", *_OPERANDS],
    "(Tensor, Tensor, Tensor)",
    _fake_backward,
    device_types="cpu",
)


def window_convolution(
    x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int
) -> tuple[Tensor, Tensor]:
    """As `reference`, all three of one type, fp32 or bf16; u is fp32. In bf16 every tap of u is rounded to bf16."""
    product_PC, u_hP = _window_convolution(x_BCHW, weight, filters, stride, padding)
    return product_PC, u_hP
