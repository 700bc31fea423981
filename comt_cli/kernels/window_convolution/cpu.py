"""`window_convolution` on a CPU: PyTorch's convolution, and its gate's few filters as a matrix product beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.kernels.cpu.calls import run


def _rows(x_BCHW: Tensor) -> Tensor:
    """A map's pixels, or every tap of every filter, as rows of channels: a view where it is channels-last."""
    return x_BCHW.permute(0, 2, 3, 1).reshape(-1, x_BCHW.shape[1])


def _shape(x: Tensor, filters: Tensor, stride: int, padding: int) -> tuple[int, ...]:
    (B, _, *sides), window = x.shape, filters.shape[-1]
    return B, *sides, *((n + 2 * padding - window) // stride + 1 for n in sides), len(filters), window, stride, padding


def window_convolution(
    x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int
) -> tuple[Tensor, Tensor]:
    """The convolution's product, [P, C_out], and the filters' u in fp32, [h, P]."""
    x = x_BCHW.contiguous(memory_format=torch.channels_last)
    product = _rows(torch.conv2d(x, weight, None, stride, padding))
    v = _rows(filters) @ _rows(x).T
    u = torch.empty(len(filters), len(product))
    run("window_gather", v, u, *_shape(x, filters, stride, padding))
    return product, u


def window_convolution_backward(
    dproduct_PC: Tensor, du_hP: Tensor, x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of the weight and of the filters."""
    x = x_BCHW.contiguous(memory_format=torch.channels_last)
    (B, C, H, W), shape = x.shape, _shape(x, filters, stride, padding)
    dproduct = dproduct_PC.reshape(B, *shape[3:5], len(weight)).permute(0, 3, 1, 2)
    how = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [True, True, False])
    dx, dweight, _ = torch.ops.aten.convolution_backward(dproduct, x, weight, None, *how)
    dv = x.new_empty(filters.shape[0] * filters[0, 0].numel(), B * H * W)
    run("window_spread", dv, du_hP.float().contiguous(), *shape)
    dx_rows = _rows(dx).addmm_(dv.T, _rows(filters))
    dfilters = (dv @ _rows(x)).view(len(filters), *filters.shape[2:], C).permute(0, 3, 1, 2)
    # A layout that the compiler may assume; it nearly always holds already.
    dweight = dweight.contiguous(memory_format=torch.channels_last)
    return dx_rows.view(B, H, W, C).permute(0, 3, 1, 2), dweight, dfilters.contiguous()
