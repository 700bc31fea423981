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
    """Define the operator `comt::NAME` and return a function that calls it, with a `Modulation` where `GATES` stands.

    arguments: as a schema declares them, a tensor first; `results` likewise.
    fake: called with the arguments, returns empty tensors like the results.
    keep: called with a tuple of the arguments and with the results, returns a tuple of what the derivative needs.
    gradients: called with this tuple and the results' gradients, returns a gradient for each argument, or None; for
        `GATES` a pair, dWc and dws. An operator without these two has no derivative.
    device_types: where it can run, if not wherever there is an implementation.
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
    """The arguments with the `Modulation` at index `at` replaced by its fields."""
    return arguments if at is None else (*arguments[:at], *arguments[at], *arguments[at + 1 :])


def _whole(flat: Sequence[Any], at: int | None) -> Sequence[Any]:
    """The inverse of `_flat`."""
    if at is None:
        return flat
    Wc, ws, scale, rank, gated, *behind = flat[at:]
    return (*flat[:at], Modulation(Wc, ws, scale, rank, tuple(gated)), *behind)


def rows(gradient: Tensor) -> Tensor:
    """The gradient, or a copy whose columns lie side by side, as kernels want them. That of a sum is expanded: all its
    elements are one."""
    return gradient if gradient.stride(-1) == 1 else gradient.contiguous()


def like_gradients(product: Tensor, modulation: Modulation) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors like dproduct, and like dWc and dws: fp32, and of no elements where there is no such matrix."""
    dWc, dws = (product.new_empty((0,) if W is None else W.shape, dtype=torch.float32) for W in modulation[:2])
    return product.new_empty(product.shape), dWc, dws
