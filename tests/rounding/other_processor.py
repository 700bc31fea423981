"""Products, attention, convolutions and sums whose last bits depend on their shapes, as they do between processors.

A library chooses an algorithm by the shapes and strides of the operands, and so the order in which it sums; another
processor has other algorithms. Here every result is multiplied by 1 + e, where e depends on the seed (COMT_ROUNDING),
the operator, and the shapes, strides and types of its operands, and on nothing else:

    fp32          e is at most 2^-22, fp64: 2^-51
    bf16, fp16    a tenth of the entries is moved by one unit in the last place

The same computation in the same shape therefore keeps its bits (resume, causality); in another shape it does not. What
every processor computes exactly stays exact: sums and products of integers (or sixteenths) that can be represented, and
sums of no more than two numbers. So does what an operation of comt's passes on.

The operators are replaced in PyTorch's dispatcher, for the whole process: its threads, processes forked from it, and
the library calls of compiled code are included. Not reached:

    - the number of threads, which is no part of what e depends on;
    - element-wise functions (exp, tanh, addcmul) and PyTorch's fused loops, such as the optimiser's;
    - the loops that the compiler generates itself, their sums too;
    - what an operation of comt's writes into an operand (the gradients that the cross-entropy leaves in its logits);
    - losses of `nll_loss`, `index_add_`, `scatter_add_`, and the running statistics of batch norm;
    - the larger relative error of a sum that cancels: e is relative to the result;
    - sums between processes (gloo), Triton's interpreter, NumPy's and SciPy's own products.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

PRODUCTS = (
    *("mm", "mm.out", "addmm", "addmm.out", "addmm_", "bmm", "bmm.out", "baddbmm", "baddbmm.out", "baddbmm_"),
    *("mv", "addmv", "addmv.out", "dot", "convolution", "convolution.out", "convolution_backward"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    "mkldnn::_linear_pointwise",
)
SUMS = (
    *("sum", "sum.dim_IntList", "sum.IntList_out", "mean", "mean.dim", "mean.out", "var.correction", "std.correction"),
    *("var_mean.correction", "linalg_vector_norm", "linalg_vector_norm.out", "_foreach_norm.Scalar", "logsumexp"),
    *("_softmax", "_softmax.out", "_log_softmax", "_log_softmax.out", "_softmax_backward_data", "cumsum"),
    *("_log_softmax_backward_data", "native_layer_norm", "native_layer_norm_backward", "native_batch_norm"),
    *("native_batch_norm_backward", "embedding_dense_backward"),
)
SEED = os.environ.get("COMT_ROUNDING", "")
REMEMBERED_BYTES = 2**26
"""Errors of so many bytes are kept, by shape; then the memory is emptied."""

REPLACED: dict[str, Any] = {}
"""By name, the libraries that replace the operators: these stay replaced as long as they live."""
_errors: dict[str, Any] = {}
_remembered = 0


def change_pytorch() -> None:
    """Replace PyTorch's operators on the CPU by themselves with another last bit; `REPLACED` has their names then."""
    import torch

    with warnings.catch_warnings():  # that an operator is replaced
        warnings.simplefilter("ignore")
        for name in (*PRODUCTS, *SUMS):
            space, _, operator = name.rpartition("::")
            space = space or "aten"
            packet, _, overload = operator.partition(".")
            defined = getattr(getattr(getattr(torch.ops, space), packet, None), overload or "default", None)
            full, has_kernel = f"{space}::{operator}", torch._C._dispatch_has_kernel_for_dispatch_key
            if defined is None or has_kernel(full, "CompositeImplicitAutograd"):
                continue  # not in this PyTorch, or made of operators that are replaced themselves
            if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(full, "CPU"):
                continue  # built without oneDNN
            own = torch.library.get_kernel(defined, "CPU")
            library = torch.library.Library(space, "IMPL")  # type: ignore[no-untyped-call]
            computed = _replacing(packet, own)
            library.impl(operator, computed, "CPU", with_keyset=True, allow_override=True)
            REPLACED[name] = library


def change_operations(module: Any) -> None:
    """Replace comt's operations in C++ likewise, which their module makes when they are first asked for."""
    made = module.__getattr__

    def changed(name: str) -> Callable[..., Any]:
        function = made(name)

        def computed(*given: Any) -> Any:
            result = function(*given)
            _change(name, result, given, operation=True)
            return result

        setattr(module, name, computed)
        return computed

    module.__getattr__ = changed


def _replacing(name: str, own: Any) -> Callable[..., Any]:
    def computed(keys: Any, *given: Any, **named: Any) -> Any:
        result = own.call_boxed(keys, *given, **named)
        operands = [*given, *(value for key, value in named.items() if key != "out")]
        _change(name, result, operands)
        return result

    return computed


def _change(name: str, result: Any, given: Sequence[Any], *, operation: bool = False) -> None:
    """Give a result, a tensor or several, its error, in place.

    operation: one of comt's, of which some results, or entries, are exact beside others that are not: an operand that
        is passed on, integers, and two results that are one.
    """
    operands = _tensors(given)
    results = _tensors([result])
    if operation:
        results = [each for each in results if not any(_passed_on(each, operand) for operand in operands)]
        before = [(each, _entries(each).copy()) for each in results]
        twins = [next(i for i, (_, other) in enumerate(before) if _same(other, mine)) for _, mine in before]
    for at, tensor in enumerate(results):
        if tensor.dtype not in _kinds() or tensor.numel() == 0:
            continue
        if name in ("sum", "mean") and operands[0].numel() <= 2 * tensor.numel():
            continue  # no more than two numbers each
        values = _entries(tensor)
        if _is_exact(values, tensor, [each for each in operands if each is not tensor]):
            continue
        number = twins[at] if operation else at
        key = repr((name, number, [(tuple(each.shape), each.stride(), each.dtype) for each in (tensor, *operands)]))
        error = _error(key, tuple(tensor.shape), tensor.dtype.itemsize)
        if tensor.dtype.itemsize == 2:
            largest = {2: 0x7F80, 10: 0x7C00}[_kinds()[tensor.dtype]]  # of what is finite, and one
            magnitudes = values & 0x7FFF
            moved = (magnitudes > 0) & (magnitudes < largest - 1)
            if operation:
                moved &= ~_integers(_numbers(values, tensor.dtype))
            values += np.where(moved, error, 0).astype(np.uint16)
        else:
            with np.errstate(all="ignore"):
                values *= np.where(_integers(values), 1, error) if operation else error


def _error(key: str, shape: tuple[int, ...], itemsize: int) -> Any:
    """Factors, or for 16 bits what is added to the last place; one for each entry."""
    global _remembered  # noqa: PLW0603
    found = _errors.get(key)
    if found is None:
        seed = int.from_bytes(hashlib.blake2b(f"{SEED} {key}".encode(), digest_size=8).digest(), "big")
        random = np.random.Generator(np.random.Philox(seed))
        if itemsize == 2:
            found = random.choice(np.array([-1, 0, 1], np.int16), shape, p=(0.05, 0.9, 0.05))
        else:
            bits, kind = (22, np.float32) if itemsize == 4 else (51, np.float64)
            found = (1 + random.integers(-2, 3, shape) * 2.0 ** -(bits + 1)).astype(kind)
        if (_remembered := _remembered + found.nbytes) > REMEMBERED_BYTES:
            _errors.clear()
            _remembered = found.nbytes
        _errors[key] = found
    return found


def _is_exact(values: Any, tensor: Any, operands: Sequence[Any]) -> bool:
    """Whether any processor finds these very bits: of operands in sixteenths, a result in 256ths."""
    first = 256 * float(_numbers(values.reshape(-1)[:1], tensor.dtype)[0])
    if math.isfinite(first) and first != math.floor(first):
        return False
    given = [(16, each) for each in operands if each.dtype in _kinds()]
    with np.errstate(all="ignore"):
        return all(_are_integers(size * _numbers(_entries(each), each.dtype)) for size, each in ((256, tensor), *given))


def _are_integers(numbers: Any) -> bool:
    return bool(np.all(_integers(numbers)))


def _integers(numbers: Any) -> Any:
    """Whether numbers are integers that fp32 represents exactly."""
    with np.errstate(all="ignore"):
        return (numbers == np.trunc(numbers)) & (np.abs(numbers) < 2**24)


def _same(one: Any, other: Any) -> bool:
    """Whether two arrays have the same bits, those of NaN included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = f"u{one.dtype.itemsize}"
    return bool(np.all(one.view(bits) == other.view(bits)))


def _passed_on(tensor: Any, operand: Any) -> bool:
    """Whether a result is an operand, rounded to the result's type."""
    if tensor.shape != operand.shape or operand.dtype not in _kinds():
        return False
    import torch

    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        rounded = operand.to(tensor.dtype)
    one, other = (_numbers(_entries(each), each.dtype) for each in (rounded, tensor))
    return bool(np.all((one == other) | (np.isnan(one) & np.isnan(other))))  # 0 for -0, which adding 0 to it gives


def _numbers(values: Any, dtype: Any) -> Any:
    """The entries as numbers that NumPy knows."""
    if _kinds()[dtype] == 2:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.view(np.float16) if dtype.itemsize == 2 else values


@functools.cache
def _kinds() -> dict[Any, int]:
    """The types that get an error; a number that tells bf16 from fp16."""
    import torch

    return {torch.float32: 0, torch.float64: 0, torch.bfloat16: 2, torch.float16: 10}


def _entries(tensor: Any) -> Any:
    """A tensor's entries as an array over its own memory: nothing of PyTorch sees that they are read or written."""
    kind = np.dtype({2: np.uint16, 4: np.float32, 8: np.float64}[tensor.dtype.itemsize])
    strides = tensor.stride()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    if tensor.numel() == 0:
        return np.empty(tuple(tensor.shape), kind)
    memory = (ctypes.c_char * (extent * kind.itemsize)).from_address(tensor.data_ptr())
    flat = np.frombuffer(memory, kind)
    in_bytes = tuple(stride * kind.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(flat, tuple(tensor.shape), in_bytes)


def _tensors(given: Sequence[Any]) -> list[Any]:
    import torch

    found = []
    for each in given:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, list | tuple):
            found += _tensors(each)
    return found
