"""`window_convolution` on a CPU: PyTorch's convolution, and its gate's few filters as a matrix product beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.kernels.cpu.calls import run


def _rows(x_BCHW: Tensor) -> Tensor:
    """A map's pixels as rows, [P, C]: a view where the map is channels-last."""
    return x_BCHW.permute(0, 2, 3, 1).reshape(-1, x_BCHW.shape[1])


def _taps(filters_hCkk: Tensor) -> Tensor:
    """Every tap of every filter, [h k k, C]."""
    return filters_hCkk.permute(0, 2, 3, 1).reshape(-1, filters_hCkk.shape[1])


def _shape(x: Tensor, filters: Tensor, stride: int, padding: int) -> tuple[int, ...]:
    B, _, H, W = x.shape
    window = filters.shape[-1]
    out_H, out_W = ((side + 2 * padding - window) // stride + 1 for side in (H, W))
    return B, H, W, out_H, out_W, len(filters), window, stride, padding


def window_convolution(
    x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int
) -> tuple[Tensor, Tensor]:
    """The convolution's product, [P, C_out], and the filters' u in fp32, [h, P]."""
    x = x_BCHW.contiguous(memory_format=torch.channels_last)
    shape = _shape(x, filters, stride, padding)
    product = torch.conv2d(x, weight, None, stride, padding)
    v = _taps(filters) @ _rows(x).T
    u = torch.empty(len(filters), shape[0] * shape[3] * shape[4])
    run("window_gather", v, u, *shape)
    return _rows(product), u


def window_convolution_backward(
    dproduct_PC: Tensor, du_hP: Tensor, x_BCHW: Tensor, weight: Tensor, filters: Tensor, stride: int, padding: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of the weight and of the filters."""
    x = x_BCHW.contiguous(memory_format=torch.channels_last)
    shape = _shape(x, filters, stride, padding)
    B, _, _, out_H, out_W, h, window, *_ = shape
    dproduct = dproduct_PC.reshape(B, out_H, out_W, len(weight)).permute(0, 3, 1, 2)
    how = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [True, True, False])
    dx, dweight, _ = torch.ops.aten.convolution_backward(dproduct, x, weight, None, *how)
    dv = x.new_empty(h * window * window, len(_rows(x)))
    run("window_spread", dv, du_hP.float().contiguous(), *shape)
    dx_rows = _rows(dx).addmm_(dv.T, _taps(filters))
    dweight = dweight.contiguous(
        memory_format=torch.channels_last
    )  # a layout the compiler may assume; it nearly always holds already
    dfilters = (dv @ _rows(x)).view(h, window, window, -1).permute(0, 3, 1, 2)
    B, C, H, W = x.shape
    return dx_rows.view(B, H, W, C).permute(0, 3, 1, 2), dweight, dfilters.contiguous()
