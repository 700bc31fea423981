"""`modulate` in C++: definition in `__init__`, errors in `kernels.cpu`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from comt_cli.kernels.cpu.calls import row, run, type_code
from comt_cli.kernels.cpu.gates import Gates
from comt_cli.kernels.gates import Modulation


@functools.lru_cache(maxsize=64)
def _array(widths: tuple[int, ...]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(widths))(*widths)


def modulate(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    """Every site's columns times its gate, side by side: zhat, [T, M]."""
    gates, code, sites = Gates(modulation, widths), type_code(product_TC), _array(tuple(widths))
    rows, *product = gates.product(product_TC)
    zhat = torch.empty(rows, gates.width, dtype=product_TC.dtype)
    given = (code, gates.address, len(widths), ctypes.addressof(sites), rows, *product)
    run("modulate", "ipipj pjpj", *given, zhat.data_ptr(), gates.width)
    return zhat


def modulate_backward(
    G_TM: Tensor, product_TC: Tensor, modulation: Modulation, widths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for the product, for Wc and for ws, from the product and the gradient of `modulate`'s output."""
    gates, code, sites = Gates(modulation, widths), type_code(product_TC), _array(tuple(widths))
    rows, *product = gates.product(product_TC)
    dproduct, (dWc, dws) = torch.empty(product_TC.shape, dtype=product_TC.dtype), gates.gradients()
    G = row(G_TM, rows, gates.width, product_TC.dtype, "G")
    given = (code, gates.address, len(widths), ctypes.addressof(sites), rows, *G, *product)
    gradients = (dproduct.data_ptr(), dproduct.shape[1], dWc.data_ptr(), dws.data_ptr())
    run("modulate_backward", "ipipj pjpj pjpp", *given, *gradients)
    return dproduct, dWc, dws
