"""Calling the functions in C++, and what they are given of tensors."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from comt_cli.kernels.cpu.build import library

TYPES = {torch.float32: 0, torch.bfloat16: 1}
_C_TYPES = {"i": ctypes.c_int32, "j": ctypes.c_int64, "p": ctypes.c_void_p, "d": ctypes.c_double}


def type_code(tensor: Tensor) -> int:
    """The number that C knows the type of a tensor by. Raises TypeError."""
    code = TYPES.get(tensor.dtype)
    if code is None or tensor.device.type != "cpu":
        raise TypeError(f"the CPU kernels take float32 and bfloat16, not {tensor.dtype} on {tensor.device.type}")
    return code


def row(tensor: Tensor, rows: int, columns: int, dtype: torch.dtype, name: str) -> tuple[int, int]:
    """Address and row stride of a matrix, which must have this shape and type. Raises TypeError and ValueError."""
    if tensor.dtype != dtype:
        raise TypeError(f"{name} is {tensor.dtype}, the other tensors are {dtype}")
    if tensor.shape != (rows, columns):
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, not {(rows, columns)}")
    stride, last = tensor.stride()
    if last != 1 and columns > 1:
        raise ValueError(f"the last dimension of {name} has the stride {last}, not 1")
    return tensor.data_ptr(), stride


@functools.cache
def _function(name: str, types: str) -> Callable[..., int]:
    function = getattr(library(), f"comt_{name}")
    function.argtypes = [_C_TYPES[letter] for letter in "i" + types.replace(" ", "")]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def run(name: str, types: str, *arguments: object) -> None:
    """Call the function of that name with the number of threads and the arguments.

    types: a letter for each argument as C declares it: i and j are integers of 32 and 64 bits, p is a pointer, d a
        double. Spaces are skipped.

    Raises:
        MemoryError: not enough memory for the sums of all threads.
        Unavailable: the kernels cannot be compiled here.
    """
    if _function(name, types)(torch.get_num_threads(), *arguments):
        raise MemoryError(f"not enough memory for {name}")
