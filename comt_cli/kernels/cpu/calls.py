"""What the functions in C++ are given of tensors, and calling those that take one structure."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from comt_cli.kernels.cpu.build import library

TYPES = {torch.float32: 0, torch.bfloat16: 1}


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
def _function(name: str) -> Callable[..., int]:
    function = getattr(library(), f"comt_{name}")
    function.argtypes = [ctypes.c_int, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def run(name: str, arguments: ctypes.Structure) -> None:
    """Call the function that takes the number of threads and a structure. Raises MemoryError and `Unavailable`."""
    if _function(name)(torch.get_num_threads(), ctypes.addressof(arguments)):
        raise MemoryError(f"not enough memory for {name}")
