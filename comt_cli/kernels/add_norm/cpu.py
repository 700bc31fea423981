"""`add_norm` in C++: definition in `__init__`, errors in `kernels.cpu`."""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.kernels.cpu.calls import row, run, type_code
from comt_cli.kernels.cpu.gates import Gates
from comt_cli.kernels.gates import Modulation


def add_norm(
    x_TD: Tensor, product_TC: Tensor, modulation: Modulation, gain_D: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The stream x plus one gated site, y, in x's type; its RMSNorm in the product's type; and 1 / rms(y), [T]."""
    width = x_TD.shape[1]
    gates, stream, code = Gates(modulation, (width,)), type_code(x_TD), type_code(product_TC)
    rows, *product = gates.product(product_TC)
    x, gain = row(x_TD, rows, width, x_TD.dtype, "x"), _gain(gain_D, width)
    y, n = (torch.empty(rows, width, dtype=dtype) for dtype in (x_TD.dtype, product_TC.dtype))
    rstd = torch.empty(rows)
    given = (stream, code, gates.address, rows, width, *x, *product, gain.data_ptr(), epsilon)
    run("add_norm", "iipjj pjpjp d ppp", *given, y.data_ptr(), n.data_ptr(), rstd.data_ptr())
    return y, n, rstd


def add_norm_backward(
    dy_TD: Tensor,
    dn_TD: Tensor,
    y_TD: Tensor,
    rstd_T: Tensor,
    product_TC: Tensor | None,
    modulation: Modulation,
    gain_D: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients for x, the product, Wc, ws and the gain, from what `add_norm` returned and the gradients of y and n.

    Without the product its gradient is that for x, and what is returned for it has no elements: for one without gates,
    of D columns, in the type of x.
    """
    width = y_TD.shape[1]
    like_TC = y_TD if product_TC is None else product_TC
    gates, stream, code = Gates(modulation, (width,)), type_code(y_TD), type_code(like_TC)
    rows, *product = gates.product(like_TC)
    gain, rstd = _gain(gain_D, width), rstd_T.float().contiguous()
    if rstd.shape != (rows,):
        raise ValueError(f"rstd has the shape {tuple(rstd.shape)}, not {(rows,)}")
    dx = torch.empty(rows, width, dtype=y_TD.dtype)
    dproduct = torch.empty(0 if product_TC is None else product_TC.shape, dtype=like_TC.dtype)
    (dWc, dws), dgain = gates.gradients(), torch.empty(width)
    activations = (
        *row(dy_TD, rows, width, y_TD.dtype, "dy"),
        *row(dn_TD, rows, width, like_TC.dtype, "dn"),
        *row(y_TD, rows, width, y_TD.dtype, "y"),
        rstd.data_ptr(),
        *product,
        gain.data_ptr(),
    )
    gradients = (
        dx.data_ptr(),
        dproduct.data_ptr(),
        like_TC.shape[1],
        dWc.data_ptr(),
        dws.data_ptr(),
        dgain.data_ptr(),
    )
    given = (stream, code, gates.address, rows, width, *activations)
    run("add_norm_backward", "iipjj pjpjpjp pjp ppjppp", *given, *gradients)
    return dx, dproduct, dWc, dws, dgain


def _gain(gain_D: Tensor, width: int) -> Tensor:
    if gain_D.shape != (width,):
        raise ValueError(f"the gain has the shape {tuple(gain_D.shape)}, not {(width,)}")
    return gain_D.float().contiguous()
