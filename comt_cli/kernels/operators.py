"""Custom operators of PyTorch for the operations in the folders of this room, forward and backward.

An operator is opaque to the compiler, knows its own derivative, and calls the function of its own name in the file for
its tensors' device: Triton on CUDA, C++ on the CPU. All arithmetic is fp32, whatever the storage type. PyTorch's
operators take flat arguments: here alone a `Modulation` is taken apart into its fields, and put together again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels.gates import Modulation

GATES = "gates"
"""Stands for the `Modulation` in an operator's list of arguments."""

IMPLEMENTATIONS = {"cpu": "cpu", "cuda": "triton"}
"""Device type -> the file of an operation's folder that computes on it."""

_FIELDS = "Tensor? Wc, Tensor? ws, float scale, int rank, bool[] gated"
"""Of a `Modulation`, as a schema has them."""

Function = Callable[..., Any]


def implementation(operation: str, device: str) -> Any:
    """The module that computes an operation, forward and backward, on a type of device."""
    return importlib.import_module(f"comt_cli.kernels.{operation}.{IMPLEMENTATIONS[device]}")


def operator(
    name: str,
    arguments: Sequence[str],
    results: str,
    fake: Function,
    *,
    keep: Function | None = None,
    gradients: Function | None = None,
    device_types: str | None = None,
) -> Function:
    """The operator `comt::NAME`, as a function of `arguments`: a schema's, the first a tensor, with `GATES` among them.

    fake: of the arguments, empty tensors like the results.
    keep: of a tuple of the arguments and of the results, a tuple of what the derivative needs.
    gradients: of this tuple and of the results' gradients, one for each argument: None where there is none, dWc and dws
        together for `GATES`.
    """
    at = arguments.index(GATES) if GATES in arguments else None
    operation = name.removesuffix("_backward")

    def compute(*flat: Any) -> Any:
        return getattr(implementation(operation, flat[0].device.type), name)(*_whole(flat, at))

    schema = ", ".join(_FIELDS if each == GATES else each for each in arguments)
    defined = torch.library.custom_op(
        f"comt::{name}", compute, mutates_args=(), device_types=device_types, schema=f"({schema}) -> {results}"
    )
    defined.register_fake(lambda *flat: fake(*_whole(flat, at)))
    if keep is not None and gradients is not None:
        _differentiate(defined, at, keep, gradients)

    def call(*given: Any) -> Any:
        return defined(*_flat(given, at))

    return call


def _differentiate(defined: Any, at: int | None, keep: Function, gradients: Function) -> None:
    def set_up(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        kept = keep(_whole(inputs, at), output)
        ctx.at = next((i for i, each in enumerate(kept) if isinstance(each, Modulation)), None)
        flat = _flat(kept, ctx.at)
        ctx.save_for_backward(*(each if isinstance(each, Tensor) else None for each in flat))
        ctx.others = [None if isinstance(each, Tensor) else each for each in flat]

    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        flat = [other if saved is None else saved for saved, other in zip(ctx.saved_tensors, ctx.others, strict=True)]
        kept = _whole(flat, ctx.at)
        found = list(gradients(kept, *incoming))
        if at is not None:
            of_matrices = zip(found[at], kept[ctx.at][:2], strict=True)
            cast = [None if W is None else gradient.to(W.dtype) for gradient, W in of_matrices]
            found[at : at + 1] = [*cast, None, None, None]
        return tuple(found)

    defined.register_autograd(backward, setup_context=set_up)


def _flat(arguments: Sequence[Any], at: int | None) -> Sequence[Any]:
    """The arguments with the fields of the `Modulation` that stands `at` this place in its stead."""
    return arguments if at is None else (*arguments[:at], *arguments[at], *arguments[at + 1 :])


def _whole(flat: Sequence[Any], at: int | None) -> Sequence[Any]:
    """The arguments that `_flat` made `flat` of."""
    if at is None:
        return flat
    *fields, gated = flat[at : at + 5]
    return (*flat[:at], Modulation(*fields, tuple(gated)), *flat[at + 5 :])


def rows(gradient: Tensor) -> Tensor:
    """A gradient with its rows in one piece each, as kernels take them: that of a sum has all its elements in one
    place."""
    return gradient if gradient.stride(-1) == 1 else gradient.contiguous()


def like_gradients(product: Tensor, modulation: Modulation) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors like dproduct, and like dWc and dws: fp32, and of no elements where there is no such matrix."""
    dWc, dws = (product.new_empty((0,) if W is None else W.shape, dtype=torch.float32) for W in modulation[:2])
    return product.new_empty(product.shape), dWc, dws
