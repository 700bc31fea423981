"""Calls of the C++ functions.

Each takes words of eight bytes (`Arguments` in calls.h): the number of threads, then the arguments of its operator and
the tensors that it writes, in the order of the schema. Each operator is an attribute of this module.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels import operators
from comt_cli.kernels.cpu.build import library
from comt_cli.kernels.gates import Modulation

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int64: 2}  # type numbers in C++
_ERRORS = {2: TypeError, 3: ValueError}
_BITS_OF, _AS_INTEGER = struct.Struct("d"), struct.Struct("q")
_ABSENT = (0,) * 6


def run(name: str, *arguments: Any) -> None:
    """Call the C++ function `name`. None stands for an absent tensor; the first tensor has one row per token.

    Raises:
        TypeError: A tensor has another type than fp32 or bf16, or is on another device.
        ValueError: The dimensions, shapes or strides of a tensor do not fit.
        MemoryError: There is not enough memory for the sums of all threads.
        Unavailable: The kernels cannot be compiled here.
    """
    if arguments[0].dim() != 2:
        raise ValueError(f"{name} takes rows of channels, not the shape {tuple(arguments[0].shape)}")
    words = array("q", [torch.get_num_threads()])
    for argument in arguments:
        words.extend(_words(argument))
    if status := _function(name)(words.buffer_info()[0]):
        if status in _ERRORS:
            raise _ERRORS[status](f"{name}: {_function('message', ctypes.c_char_p)(None).decode()}")
        raise MemoryError(f"not enough memory for {name}")


@functools.cache
def _function(name: str, result: Any = ctypes.c_int) -> Callable[[int | None], Any]:
    function = getattr(library(), f"comt_{name}")
    function.argtypes, function.restype = [ctypes.c_void_p], result
    return function  # type: ignore[no-any-return]


def _words(each: Any) -> tuple[int, ...]:
    if isinstance(each, Tensor):
        code = TYPES.get(each.dtype)
        if code is None or not each.is_cpu:
            raise TypeError(f"the CPU kernels take float32 and bfloat16, not {each.dtype} on {each.device.type}")
        if each.dim() not in (1, 2):
            raise ValueError(f"the CPU kernels take one or two dimensions, not the shape {tuple(each.shape)}")
        one, none = ((1,), (0,)) if each.dim() == 1 else ((), ())  # a vector is one row
        return each.data_ptr(), *one, *each.shape, *none, *each.stride(), code
    if each is None:
        return _ABSENT
    if isinstance(each, float):
        return _AS_INTEGER.unpack(_BITS_OF.pack(each))
    if isinstance(each, Modulation):
        Wc, ws, scale, rank, gated = each
        return *_words(Wc), *_words(ws), *_words(float(scale)), rank, *_words(gated)
    return (len(each), *each) if isinstance(each, list | tuple) else (each,)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in operators.EMPTY:
        raise AttributeError(name)
    empty = operators.EMPTY[name]

    def function(*arguments: Any) -> Any:
        results = empty(*arguments)
        run(name, *arguments, *((results,) if isinstance(results, Tensor) else results))
        return results

    globals()[name] = function  # found directly next time
    return function
