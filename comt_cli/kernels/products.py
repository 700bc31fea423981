"""fp32 matrix products by oneDNN on processors whose widest instructions MKL does not use.

PyTorch multiplies fp32 matrices with MKL, which uses AVX-512 only on Intel's processors. oneDNN, which comes with
PyTorch, uses it on all. On Zen 5 its products take about half the time (results/bench, rows `gemm`). It adds in another
order, with rounding errors up to twice as large.

PyTorch's own product of two matrices is replaced, for the whole process. A method of a comparison can therefore not be
faster only because of the function that it calls. Products of batches of matrices (attention's) remain MKL's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels.processors import processor_class
from comt_cli.runs.directory import ONEDNN, PYTORCH

CLASSES = ("AMD AVX-512",)  # classes of processors whose instructions MKL does not use
LEAST_MULTIPLICATIONS = 2**21  # a call of oneDNN costs about ten microseconds more
LEAST_WIDTH = 32  # of the result's smaller side: oneDNN copies transposed factors
_OPERATORS = ("mm", "mm.out", "addmm", "addmm.out", "addmm_")
"""Operators behind `F.linear` and `@`; compiled code calls those with `out`."""
_KEY = "CPU"
_registered: Any = None


def obstacle() -> str | None:
    """Reason why products remain PyTorch's; None if they are oneDNN's after `install`."""
    if (here := processor_class()) not in CLASSES:
        return f"no gain was measured on processors of class {here}"
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return "this PyTorch is built without MKL or without oneDNN"
    if not (hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.library, "get_kernel")):
        return "this PyTorch does not expose oneDNN's product, or its own cannot be replaced"
    return None


def multiplier() -> str:
    """Library that multiplies large fp32 matrices in this process: `PYTORCH` or `ONEDNN`."""
    return PYTORCH if _registered is None else ONEDNN


def install() -> None:
    """Use oneDNN for large fp32 matrices on the CPU in this process, where it is faster."""
    global _registered  # noqa: PLW0603 - the operators stay replaced as long as this lives
    if _registered is not None or obstacle() is not None:
        return
    registered: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():  # one warning says that an operator is replaced
        warnings.simplefilter("ignore")
        for name in _OPERATORS:
            own = torch.library.get_kernel(f"aten::{name}", _KEY)
            replaced = _replacing(own, in_place=name.endswith("_"))
            registered.impl(name, replaced, _KEY, with_keyset=True, allow_override=True)
    _registered = registered


def product(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """a b + bias by oneDNN, [M, N], contiguous. Only for matrices accepted by `fits`; others may be read wrongly."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(a_MK, b_KN.t(), bias_N, "none", [], "")
    return result


def fits(a: Tensor, b: Tensor) -> bool:
    """Whether these matrices can be multiplied, are readable by oneDNN, and are large enough for it."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:  # PyTorch reports the error
        return False
    (M, K), N = a.shape, b.shape[1]
    if M * K * N < LEAST_MULTIPLICATIONS or min(M, N) < LEAST_WIDTH:
        return False
    return all(each.dtype is torch.float32 and _is_dense(*each.shape, *each.stride()) for each in (a, b))


def _is_dense(rows: int, columns: int, row: int, column: int) -> bool:
    return (column == 1 and row >= columns) or (row == 1 and column >= rows)


def _replacing(own: Any, *, in_place: bool) -> Callable[..., Tensor]:
    """Function that PyTorch calls for an operator on the CPU instead of `own`: a b, or beta z + alpha a b."""

    def product_of(keys: Any, *given: Tensor, out: Tensor | None = None, **factors: float) -> Tensor:
        *added, a, b = given
        taken = fits(a, b) and all(factor == 1 for factor in factors.values())
        if taken:
            shape, written = (len(a), b.shape[1]), added[0] if in_place else out
            taken = all(_is_addend(each, shape) for each in added)
            taken = taken and (written is None or (written.shape == shape and written.dtype is torch.float32))
        if not taken:
            result: Tensor = own.call_boxed(keys, *given, **factors, **({} if out is None else {"out": out}))
            return result
        if in_place:
            return added[0].add_(product(a, b))
        result = product(a, b, *(each for each in added if each.dim() == 1))
        for each in added:
            if each.dim() == 2:
                result += each
        return result if out is None else out.copy_(result)

    return product_of


def _is_addend(each: Tensor, shape: tuple[int, int]) -> bool:
    """Whether it is fp32 and has the result's shape, or is a bias."""
    return each.dtype is torch.float32 and (each.shape == shape or (each.shape == shape[1:] and each.is_contiguous()))
