"""Custom PyTorch operators for the operations in this package, forward and backward.

An operator is opaque to the compiler, has its own derivative, and calls the function of its name for the device of its
tensors: Triton on CUDA, C++ on the CPU. Arithmetic is fp32 for every storage type. PyTorch's operators take flat
arguments, so a `Modulation` is split into its fields and joined again, only here.

Operators are defined as `torch.library.custom_op` does it, except for its work at every call (it fills in defaults of
the schema, of which there are none). On a CPU this was a large part of the time of a small network's operation.
"""

from __future__ import annotations

import functools
import importlib
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from comt_cli.kernels.gates import Modulation

IMPLEMENTATIONS = {"cpu": "cpu", "cuda": "triton"}
"""Device type -> implementation: `cpu`, the C++ functions, or `triton`, the file of an operation's folder."""

Function = Callable[..., Any]

EMPTY: dict[str, Function] = {}  # operator -> function that makes empty tensors like its results

_TYPES = {
    "Tensor | None": "Tensor?",
    "Sequence[Tensor]": "Tensor[]",
    "Sequence[Tensor | None]": "Tensor[]",
    "Sequence[int]": "int[]",
    "list[Tensor]": "Tensor[]",
}
"""Annotation -> type in a schema, where they differ."""

_LIBRARY: Any = torch.library.Library("comt", "FRAGMENT")  # type: ignore[no-untyped-call]
"""Keeps the operators alive."""


def computed_by_triton(device: torch.device) -> bool:
    """Whether the kernels for this device are Triton's."""
    return IMPLEMENTATIONS.get(device.type) == "triton"


def implementation(operation: str, device: str) -> Any:
    """Module with the forward and backward functions of an operation for a type of device."""
    return _module("cpu.calls" if IMPLEMENTATIONS[device] == "cpu" else f"{operation}.{IMPLEMENTATIONS[device]}")


@functools.cache
def _module(name: str) -> Any:
    return importlib.import_module(f"comt_cli.kernels.{name}")


class _Arguments:
    """Names and annotations of an operator's arguments, one of which may be a `Modulation`."""

    def __init__(self, kinds: dict[str, str]) -> None:
        self.names = list(kinds)
        self._at = self.names.index("modulation") if "modulation" in kinds else None
        fields = "Tensor? Wc, Tensor? ws, float scale, int rank, bool[] gated"
        each = [fields if kind == "Modulation" else f"{_TYPES.get(kind, kind)} {name}" for name, kind in kinds.items()]
        self.schema = ", ".join(each)

    def flat(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Arguments with the `Modulation` replaced by its fields."""
        at = self._at
        return arguments if at is None else (*arguments[:at], *arguments[at], *arguments[at + 1 :])

    def whole(self, flat: Sequence[Any]) -> Sequence[Any]:
        if self._at is None:
            return flat
        Wc, ws, scale, rank, gated, *behind = flat[self._at :]
        return (*flat[: self._at], Modulation(Wc, ws, scale, rank, tuple(gated)), *behind)


def operator(name: str, definition: Function, empty: Function) -> Function:
    """Define the operator `comt::NAME`, without a derivative, and return a function that calls it.

    definition: computes the same; the schema is read from its annotations. A tensor or a list of tensors comes first.
    empty: takes the same arguments and returns empty tensors like the results.
    """
    return _define(name, _kinds(definition), str(definition.__annotations__["return"]), empty)


def _kinds(definition: Function) -> dict[str, str]:
    return {name: str(kind) for name, kind in definition.__annotations__.items() if name != "return"}


def _define(name: str, kinds: dict[str, str], results: str, empty: Function) -> Function:
    arguments, operation = _Arguments(kinds), name.removesuffix("_backward")
    EMPTY[name] = empty

    def compute(*flat: Any) -> Any:
        first = flat[0] if isinstance(flat[0], Tensor) else flat[0][0]
        return getattr(implementation(operation, first.device.type), name)(*arguments.whole(flat))

    if results.startswith("tuple"):
        results = f"({', '.join(['Tensor'] * results.count('Tensor'))})"
    schema = f"{name}({arguments.schema}) -> {_TYPES.get(results, results)}"
    _LIBRARY.define(schema, tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.impl(name, _disable_dynamo(compute), "CompositeExplicitAutograd")
    torch.library.register_fake(f"comt::{name}", lambda *flat: empty(*arguments.whole(flat)), lib=_LIBRARY)
    defined = getattr(torch.ops.comt, name).default
    return lambda *given: defined(*arguments.flat(given))


def _of_product(backward: Function, saved: Any, *incoming: Tensor) -> dict[str, Any]:
    dproduct, *dgates = backward(*map(unit_stride, incoming), *saved)
    return {"product_TC": dproduct, "modulation": dgates}


def differentiable(
    name: str, definition: Function, empty: Function, *, saved: Any, incoming: str, empty_gradients: Function,
    results: int = 3, gradients: Function = _of_product, save: Function | None = None,
) -> Function:  # fmt: skip
    """As `operator`, with a derivative by another operator, `comt::NAME_backward`, whose arguments are the incoming
    gradients and the saved values.

    saved: class of a named tuple with the values that the backward pass reads, in which a `Modulation` is split like an
        argument; or a number: so many of the first arguments.
    incoming: names of the gradients of the results that have one, the first ones.
    empty_gradients: called with the saved values, returns empty tensors like the `results` of the backward operator. A
        product and its gates have three gradients.
    gradients: called with that operator, the saved values and the incoming gradients; returns gradients by argument,
        for a `Modulation` a pair, dWc and dws. They are cast to the types of the arguments.
    save: called with a tuple of the arguments and with the results, returns the saved values if these are not the first
        arguments.
    """
    call, kinds, leading = operator(name, definition, empty), _kinds(definition), incoming.split()
    if isinstance(saved, int):
        first = dict([*kinds.items()][:saved])
        saved, fields = namedtuple("Saved", first), first
    else:
        fields = {each: kind.__forward_arg__ for each, kind in saved.__annotations__.items()}
    backward_of = _define(
        f"{name}_backward",
        dict.fromkeys(leading, "Tensor") | fields,
        f"tuple[{', '.join(['Tensor'] * results)}]",
        lambda *given: empty_gradients(saved._make(given[len(leading) :])),
    )
    defined, arguments, kept = getattr(torch.ops.comt, name).default, _Arguments(kinds), _Arguments(fields)

    def below(*inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return defined(*inputs)

    class Differentiated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output, given = below(*inputs), arguments.whole(inputs)
            flat = kept.flat(saved._make(given[: len(fields)]) if save is None else save(given, output))
            ctx.save_for_backward(*(each if isinstance(each, Tensor) else None for each in flat))
            ctx.others = [None if isinstance(each, Tensor) else each for each in flat]
            ctx.types = [each.dtype if isinstance(each, Tensor) else None for each in inputs]
            return output

        @staticmethod
        def backward(ctx: Any, *outgoing: Tensor) -> tuple[Tensor | None, ...]:
            refuse_second(defined)
            pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
            read = saved._make(kept.whole([other if each is None else each for each, other in pairs]))
            by_name = gradients(backward_of, read, *outgoing[: len(leading)])
            if "modulation" in kinds:
                by_name["modulation"] = (*by_name["modulation"], None, None, None)
            found = arguments.flat([by_name.get(each) for each in kinds])
            return tuple(
                None if gradient is None or dtype is None else gradient.to(dtype)
                for gradient, dtype in zip(found, ctx.types, strict=True)
            )

    def function(*inputs: Any) -> Any:
        return Differentiated.apply(*inputs) if torch.is_grad_enabled() else below(*inputs)  # type: ignore[no-untyped-call]

    _LIBRARY.impl(name, function, "Autograd")
    return call


def refuse_second(what: object) -> None:
    """Raise an error in a backward pass with `create_graph`, which would not be recorded."""
    if torch.is_grad_enabled():
        raise RuntimeError(f"{what} has no second derivative")


def unit_stride(tensor: Tensor) -> Tensor:
    """The tensor, or a contiguous copy if its columns are not adjacent, as in the expanded gradient of a sum."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def like_gradients(product: Tensor, modulation: Modulation) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors like dproduct, dWc and dws; the latter are fp32, and have no elements for absent matrices."""
    dWc, dws = (product.new_empty((0,) if W is None else W.shape, dtype=torch.float32) for W in modulation[:2])
    return product.new_empty(product.shape), dWc, dws
