"""Cross entropy of a block of logits, and its gradient in their place, in C++."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from comt_cli.data.split import IGNORE
from comt_cli.kernels.cpu.calls import row, run, type_code


class _Arguments(ctypes.Structure):  # CrossEntropyArguments in linear_cross_entropy.cpp
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("z", "bias", "targets", "losses", "dbias")),
        *((name, ctypes.c_int64) for name in ("rows", "words", "stride")),
        ("smoothing", ctypes.c_float),
        ("type", ctypes.c_int32),
        ("gradient", ctypes.c_int32),
    )


def cross_entropy(
    z_TV: Tensor, targets_T: Tensor, smoothing: float, bias_V: Tensor | None, db_V: Tensor | None, *, gradient: bool
) -> Tensor:
    """The loss of each row of logits z + b, [T], in nats, fp32; 0 where the target is `IGNORE`.

    With `gradient` z, fp32 or bf16, is overwritten by the gradient of their sum, and b's is added to `db_V`, fp32.

    Raises:
        TypeError, ValueError: a type or shape that it does not take.
        IndexError: a target that is no word.
    """
    T, V = z_TV.shape
    targets_T = targets_T.contiguous()
    if targets_T.shape != (T,) or targets_T.dtype != torch.int64:
        raise ValueError(f"targets are {targets_T.dtype} of the shape {tuple(targets_T.shape)}, not int64 of {(T,)}")
    wrong_T = targets_T[(targets_T >= V) | ((targets_T < 0) & (targets_T != IGNORE))]
    if len(wrong_T):
        raise IndexError(f"the target {int(wrong_T[0])} is none of {V} words")
    address, stride = row(z_TV, T, V, z_TV.dtype, "z")
    bias, db = (None if each is None else _words(each, V) for each in (bias_V, db_V))
    losses_T = torch.empty(T)
    arguments = _Arguments(
        address,
        None if bias is None else bias.data_ptr(),
        targets_T.data_ptr(),
        losses_T.data_ptr(),
        None if db is None or not gradient else db.data_ptr(),
        T,
        V,
        stride,
        smoothing,
        type_code(z_TV),
        gradient,
    )
    run("cross_entropy", "p", ctypes.addressof(arguments))
    return losses_T


def _words(each: Tensor, words: int) -> Tensor:
    if each.shape != (words,) or each.dtype != torch.float32 or not each.is_contiguous():
        raise ValueError(f"a bias is {each.dtype} of the shape {tuple(each.shape)}, not float32 of {(words,)}")
    return each
