"""fp32 matrix products by oneDNN, on processors for which MKL has none of their widest instructions.

PyTorch multiplies fp32 matrices with MKL, which computes with AVX-512 on Intel's processors alone. AMD's since Zen 4
have it too, and oneDNN, which comes with PyTorch for convolutions and for bf16, asks for the instructions rather than
for the maker: on Zen 5 its products take half the time (results/bench, `comt bench kernels --gemm`).

What is replaced is PyTorch's own product, for the whole process: of every layer, whoever wrote it, of its backward
pass, and of compiled code. So no method of a comparison is faster than another for the function that it calls.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels.processors import processor_class

GAIN = "MKL has no AVX-512 code for processors of this maker"
PYTORCH, ONEDNN = "PyTorch", "oneDNN"
"""What multiplies, as it is recorded."""
CLASSES = ("AMD AVX-512",)
"""Classes of processors whose instructions MKL does not use."""
LEAST_MULTIPLICATIONS = 2**21
"""Of smaller products MKL's are quicker: a call of oneDNN costs some ten microseconds more."""
LEAST_WIDTH = 32
"""Of the result's smaller side; narrower ones are limited by memory, and oneDNN copies transposed factors."""

_OPERATORS = ("mm", "addmm", "mm.out", "addmm.out")
"""What `F.linear` and `@` come to; compiled code calls those with `out`."""
_KEY = "CPU"
_library: Any = None
_paused = False


def obstacle() -> str | None:
    """Why products remain PyTorch's; None where they are oneDNN's once `install` was called."""
    if (here := processor_class()) not in CLASSES:
        return f"no gain was measured on processors of the class {here}"
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return "this PyTorch is built without MKL or without oneDNN"
    if not (hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.library, "get_kernel")):
        return "this PyTorch does not show oneDNN's product, or does not let its own be replaced"
    return None


def library() -> str:
    """What multiplies large fp32 matrices in this process."""
    return PYTORCH if _library is None else ONEDNN


def install() -> None:
    """From now on this process multiplies large fp32 matrices on the CPU by oneDNN, where that is faster."""
    global _library  # noqa: PLW0603 - the operators stay replaced as long as this lives
    if _library is not None or obstacle() is not None:
        return
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():  # that an operator is replaced, said once for all of them
        warnings.simplefilter("ignore")
        for name in _OPERATORS:
            own = torch.library.get_kernel(f"aten::{name}", _KEY)
            library.impl(name, _replacing(own), _KEY, with_keyset=True, allow_override=True)
    _library = library


@contextlib.contextmanager
def by_pytorch() -> Iterator[None]:
    """Within it products are PyTorch's again: what others are measured against."""
    global _paused  # noqa: PLW0603
    _paused = True
    try:
        yield
    finally:
        _paused = False


def product(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """a b + bias by oneDNN, [M, N]; matrices that `fits` takes."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(a_MK, b_KN.t(), bias_N, "none", [], "")
    return result


def fits(a_MK: Tensor, b_KN: Tensor) -> bool:
    """Whether oneDNN multiplies these as fast as MKL, or faster, and can read them."""
    (M, K), N = a_MK.shape, b_KN.shape[1]
    if M * K * N < LEAST_MULTIPLICATIONS or min(M, N) < LEAST_WIDTH:
        return False
    return all(each.dtype is torch.float32 and _is_dense(each) for each in (a_MK, b_KN))


def _is_dense(matrix: Tensor) -> bool:
    """Whether rows, or columns, lie one after the other. Expanded ones do not, and those with gaps between elements."""
    (rows, columns), (row, column) = matrix.shape, matrix.stride()
    return (column == 1 and row >= columns) or (row == 1 and column >= rows)


def _replacing(own: Any) -> Callable[..., Tensor]:
    """What PyTorch calls for an operator on the CPU in the place of `own`: a b, or beta z + alpha a b."""

    def product_of(keys: Any, *given: Tensor, out: Tensor | None = None, **factors: float) -> Tensor:
        *added, a, b = given
        shape = (len(a), b.shape[1])
        taken = not _paused and fits(a, b) and all(factor == 1 for factor in factors.values())
        taken = taken and (out is None or (out.shape == shape and out.dtype is torch.float32))
        if not taken or not all(_is_addend(each, shape) for each in added):
            result: Tensor = own.call_boxed(keys, *given, **factors, **({} if out is None else {"out": out}))
            return result
        result = product(a, b, *(each for each in added if each.dim() == 1))
        for each in added:
            if each.dim() == 2:
                result += each
        return result if out is None else out.copy_(result)

    return product_of


def _is_addend(each: Tensor, shape: tuple[int, int]) -> bool:
    """Whether it is fp32, and of the result's shape, or a bias: one element a column."""
    return each.dtype is torch.float32 and (each.shape == shape or (each.shape == shape[1:] and each.is_contiguous()))
