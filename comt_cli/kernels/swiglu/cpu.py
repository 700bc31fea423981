"""`swiglu` in C++: definition in `__init__`, errors in `kernels.cpu`."""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.kernels.cpu.calls import row, run, type_code
from comt_cli.kernels.cpu.gates import Gates
from comt_cli.kernels.gates import Modulation


def swiglu(product_TC: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    """silu(gate) * up of the two gated sites, F = `width` channels each, with zeros behind: [T, padded]."""
    gates, code = Gates(modulation, (width, width)), type_code(product_TC)
    rows, *product = gates.product(product_TC)
    if padded < width:
        raise ValueError(f"{width} channels do not fit in {padded}")
    h = torch.empty(rows, padded, dtype=product_TC.dtype)
    run("swiglu", "ipj pjj pj", code, gates.address, rows, *product, width, h.data_ptr(), padded)
    return h


def swiglu_backward(
    dh_TF: Tensor, product_TC: Tensor, modulation: Modulation, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for the product, for Wc and for ws, from the product and the gradient of `swiglu`'s output."""
    gates, code = Gates(modulation, (width, width)), type_code(product_TC)
    rows, *product = gates.product(product_TC)
    padded, dtype = dh_TF.shape[1], product_TC.dtype
    if padded < width:
        raise ValueError(f"the gradient has {padded} columns, fewer than {width}")
    dproduct, (dWc, dws) = torch.empty(product_TC.shape, dtype=dtype), gates.gradients()
    given = (code, gates.address, rows, *row(dh_TF, rows, padded, dtype, "dh"), *product, width)
    gradients = (dproduct.data_ptr(), dproduct.shape[1], dWc.data_ptr(), dws.data_ptr())
    run("swiglu_backward", "ipj pjpjj pjpp", *given, *gradients)
    return dproduct, dWc, dws
