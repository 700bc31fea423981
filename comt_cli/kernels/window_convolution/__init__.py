"""A convolution and the few filters of its window gate on the same map, on a CPU, as one operator.

There a convolution of 64 + 1 filters takes a quarter longer than one of 64: PyTorch's works in vectors of 16. The
gate's filters are therefore applied tap by tap as a product of matrices, [h k k, C] x [C, P], whose k k planes are
added with their shifts. Shapes: B images, C channels, P = B H W pixels of the output, h filters of k x k taps.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from comt_cli.kernels.operators import Derivative, differentiable


def reference(x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """The product as channels-last rows, [P, C_out], and the filters' u, [h, P]."""
    joined = torch.conv2d(x_BCHW, torch.cat([weight, filters]), None, stride, padding)
    rows = joined.permute(0, 2, 3, 1).reshape(-1, joined.shape[1])
    return rows[:, : len(weight)], rows[:, len(weight) :].T


def _empty(x: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    B, _, *sides = x.shape
    out_H, out_W = ((side + 2 * padding - weight.shape[-1]) // stride + 1 for side in sides)
    P = B * out_H * out_W
    return x.new_empty(P, weight.shape[0]), x.new_empty(filters.shape[0], P, dtype=torch.float32)


def _empty_gradients(saved: Any) -> list[Tensor]:
    layouts = torch.channels_last, torch.channels_last, torch.contiguous_format
    return [torch.empty_like(each, memory_format=layout) for each, layout in zip(saved[:3], layouts, strict=True)]


def _gradients(backward: Any, saved: Any, dproduct: Tensor, du: Tensor) -> dict[str, Any]:
    return dict(zip(("x_BCHW", "weight", "filters"), backward(dproduct, du, *saved), strict=True))


_window_convolution = differentiable(
    "window_convolution",
    reference,
    _empty,
    Derivative(5, "dproduct du", _empty_gradients, gradients=_gradients),
    only_on_cpu=True,
)


def window_convolution(
    x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int
) -> tuple[Tensor, Tensor]:
    """As `reference`, all three of one type, fp32 or bf16; u is fp32. In bf16 every tap of u is rounded to bf16."""
    return cast(tuple[Tensor, Tensor], _window_convolution(x_BCHW, weight, filters, stride, padding))
