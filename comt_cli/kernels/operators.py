"""Custom operators of PyTorch for the operations in the folders of this room, forward and backward.

An operator is opaque to the compiler, knows its own derivative, and calls the function of its own name in the file for
its tensors' device: Triton on CUDA, C++ on the CPU. All arithmetic is fp32, whatever the storage type. PyTorch's
operators take flat arguments: here alone a `Modulation` is taken apart into its fields, and put together again.

They are defined as `torch.library.custom_op` itself does it, without what that does at every call (it fills in what the
schema has as defaults, though here is none): of a small network's operation on a CPU that was a large part.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from comt_cli.kernels.gates import Modulation

GATES = "gates"
"""Stands for the `Modulation` in an operator's list of arguments."""

IMPLEMENTATIONS = {"cpu": "cpu", "cuda": "triton"}
"""Device type -> the file of an operation's folder that computes on it."""

_FIELDS = "Tensor? Wc, Tensor? ws, float scale, int rank, bool[] gated"
"""Of a `Modulation`, as a schema has them."""

Function = Callable[..., Any]

_LIBRARY: Any = torch.library.Library("comt", "FRAGMENT")  # type: ignore[no-untyped-call]
"""The operators live as long as this."""


def computed_by_triton(device: torch.device) -> bool:
    """Whether kernels for this device are Triton's."""
    return IMPLEMENTATIONS.get(device.type) == "triton"


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

    arguments: as a schema declares them, a tensor or a list of tensors first; `results` likewise.
    fake: called with the arguments, returns empty tensors like the results.
    keep: called with a tuple of the arguments and with the results, returns a tuple of what the derivative needs.
    gradients: called with this tuple and the results' gradients, returns a gradient for each argument, or None; for
        `GATES` a pair, dWc and dws. An operator without these two has no derivative.
    device_types: where it can run, if not wherever there is an implementation.
    """
    at = arguments.index(GATES) if GATES in arguments else None
    operation = name.removesuffix("_backward")

    def compute(*flat: Any) -> Any:
        first = flat[0] if isinstance(flat[0], Tensor) else flat[0][0]
        return getattr(implementation(operation, first.device.type), name)(*_whole(flat, at))

    schema = ", ".join(_FIELDS if each == GATES else each for each in arguments)
    _LIBRARY.define(f"{name}({schema}) -> {results}", tags=torch.Tag.pt2_compliant_tag)
    key = device_types.upper() if device_types else "CompositeExplicitAutograd"
    _LIBRARY.impl(name, _disable_dynamo(compute), key)
    torch.library.register_fake(f"comt::{name}", lambda *flat: fake(*_whole(flat, at)), lib=_LIBRARY)
    defined = getattr(torch.ops.comt, name).default
    if keep is not None and gradients is not None:
        _LIBRARY.impl(name, _differentiated(defined, at, keep, gradients), "Autograd")

    def call(*given: Any) -> Any:
        return defined(*_flat(given, at))

    return call


def _differentiated(defined: Any, at: int | None, keep: Function, gradients: Function) -> Function:
    """What autograd calls in the operator's place: the operator without autograd, and its derivative."""

    def below(*inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return defined(*inputs)

    class Differentiated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = below(*inputs)
            kept = keep(_whole(inputs, at), output)
            ctx.at = next((i for i, each in enumerate(kept) if isinstance(each, Modulation)), None)
            flat = _flat(kept, ctx.at)
            ctx.save_for_backward(*(each if isinstance(each, Tensor) else None for each in flat))
            ctx.others = [None if isinstance(each, Tensor) else each for each in flat]
            return output

        @staticmethod
        def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
            if torch.is_grad_enabled():  # create_graph: what follows would not be recorded
                raise RuntimeError(f"{defined} has no second derivative")
            flat = [
                other if saved is None else saved for saved, other in zip(ctx.saved_tensors, ctx.others, strict=True)
            ]
            kept = _whole(flat, ctx.at)
            found = list(gradients(kept, *incoming))
            if at is not None:
                of_matrices = zip(found[at], kept[ctx.at][:2], strict=True)
                cast = [None if W is None else gradient.to(W.dtype) for gradient, W in of_matrices]
                found[at : at + 1] = [*cast, None, None, None]
            return tuple(found)

    def differentiable(*inputs: Any) -> Any:
        return Differentiated.apply(*inputs) if torch.is_grad_enabled() else below(*inputs)  # type: ignore[no-untyped-call]

    return differentiable


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
