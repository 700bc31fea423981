"""A convolution and the few filters of its window gate on the same map, on a CPU, as one operator.

There a convolution of 64 + 1 filters takes a quarter longer than one of 64: PyTorch's works in vectors of 16. The
gate's filters are therefore applied tap by tap as a product of matrices, [h k k, C] x [C, P], whose k k planes are
added with their shifts. Shapes: B images, C channels, P = B H W pixels of the output, h filters of k x k taps.
"""

# ruff: noqa: ARG001 - what stands in for an operator is called with all its arguments

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor


def reference(x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """The product as channels-last rows, [P, C_out], and the filters' u, [h, P]."""
    joined = torch.conv2d(x_BCHW, torch.cat([weight, filters]), None, stride, padding)
    rows = joined.permute(0, 2, 3, 1).reshape(-1, joined.shape[1])
    return rows[:, : len(weight)], rows[:, len(weight) :].T


def _cpu() -> Any:
    return importlib.import_module("comt_cli.kernels.window_convolution.cpu")


_OPERANDS = "Tensor x, Tensor weight, Tensor filters, int stride, int padding"


@torch.library.custom_op(
    "comt::window_convolution", mutates_args=(), schema=f"({_OPERANDS}) -> (Tensor, Tensor)", device_types="cpu"
)
def _window_convolution(*arguments: Any) -> Any:
    return _cpu().window_convolution(*arguments)


@_window_convolution.register_fake
def _(x: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int) -> Any:
    B, _, *sides = x.shape
    out_H, out_W = ((side + 2 * padding - weight.shape[-1]) // stride + 1 for side in sides)
    P = B * out_H * out_W
    return x.new_empty(P, weight.shape[0]), x.new_empty(filters.shape[0], P, dtype=torch.float32)


@torch.library.custom_op(
    "comt::window_convolution_backward",
    mutates_args=(),
    schema=f"(Tensor dproduct, Tensor du, {_OPERANDS}) -> (Tensor, Tensor, Tensor)",
    device_types="cpu",
)
def _window_convolution_backward(*arguments: Any) -> Any:
    return _cpu().window_convolution_backward(*arguments)


@_window_convolution_backward.register_fake
def _(dproduct: Tensor, du: Tensor, x: Tensor, weight: Tensor, filters: Tensor, *how: Any) -> Any:
    dx, dweight = (torch.empty_like(each, memory_format=torch.channels_last) for each in (x, weight))
    return dx, dweight, torch.empty_like(filters, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, dproduct: Tensor, du: Tensor) -> Any:
    return *_window_convolution_backward(dproduct, du, *ctx.saved_tensors, ctx.stride, ctx.padding), None, None


_window_convolution.register_autograd(_gradients, setup_context=_keep)


def window_convolution(
    x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int
) -> tuple[Tensor, Tensor]:
    """As `reference`, all three of one type, fp32 or bf16; u is fp32. In bf16 every tap of u is rounded to bf16."""
    product_PC, u_hP = _window_convolution(x_BCHW, weight, filters, stride, padding)
    return product_PC, u_hP
