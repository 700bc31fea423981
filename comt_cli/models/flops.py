"""FLOPs of a model and the numbers that it keeps for the backward pass, from one forward pass without storage.

Two observations make that possible.

A product of A and B has two gradients, dA = dY B' and dB = A' dY, and each is a product of as many multiply-adds: so
the backward pass costs as many times the forward pass of a product as factors need a gradient. A factor needs one if it
is a parameter or depends on one. Hence a network's first convolution costs 2, since its images need none, and others 3.
A convolution is a product in this sense. Code that has a backward pass of its own (`torch.autograd.Function`) is
run backward by itself. A product whose result is detached, so that no gradient ever comes to it, is counted as if one
did.

With a prime number of rows that divides no size of the network, what grows with the rows is what that prime divides: a
product of such sizes is never a multiple of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from comt_cli.errors import UserError

if TYPE_CHECKING:
    from comt_cli.models.base import Model

PRIMES = (1_000_003, 1_000_033, 1_009, 1_013, 1_019, 1_021)
"""Numbers of rows to trace with. The smaller ones are for rows so long that sizes would overflow with the first."""
_MOST_BYTES = 2**62
_BYTES = 8

_aten = torch.ops.aten
_FACTORS = {_aten.addmm: (1, 2), _aten.baddbmm: (1, 2)}
"""Positions of a product's factors among its arguments, where they are not the first two."""


def rows_to_trace(model: nn.Module, inputs: Iterable[Tensor], largest: int) -> int:
    """Number of rows to trace `model` with; `largest` is about how many numbers its largest tensor has for a row.
    Raises `UserError` where a few of them have more numbers than can be counted."""
    sizes = {size for tensor in (*inputs, *model.parameters()) for size in tensor.shape}
    for rows in PRIMES:
        if rows * largest * _BYTES < _MOST_BYTES and all(size % rows for size in sizes):
            return rows
    raise UserError(
        "a row is too long: what the model makes of it cannot be counted", "Give a shorter sequence_length."
    )


@dataclass(frozen=True)
class Linear:
    """A number that grows with the rows: `always`, and `per_row` for each."""

    per_row: int
    always: int

    @classmethod
    def of(cls, number: int, rows: int) -> Linear:
        """A number that was found with a prime number of rows: it grows with them where they divide it."""
        return cls(0, number) if number % rows else cls(number // rows, 0)

    def __add__(self, other: Linear) -> Linear:
        return Linear(self.per_row + other.per_row, self.always + other.always)

    def at(self, rows: int) -> int:
        """The number for so many rows."""
        return self.always + rows * self.per_row


def behind(output: Tensor) -> list[Any]:
    """Every node of the graph that leads to `output`, once."""
    found: list[Any] = [output.grad_fn] if output.grad_fn is not None else []
    seen = set(found)
    for node in found:
        news = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= news
        found += news
    return found


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, counts the FLOPs of what is run on `rows` rows, forward and backward, in `flops`."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.flops = Linear(0, 0)

    def run_functions(self, output: Tensor) -> None:
        """Count the backward passes of functions behind `output` that have one of their own: each is run by itself."""
        with self, torch.no_grad():
            for node in behind(output):
                if isinstance(node, BackwardCFunction):
                    function: Any = node
                    gradients = (torch.empty(out.shape, device="meta") for out in function._input_metadata)
                    function.apply(*gradients)

    def kept_by(
        self, model: nn.Module, run: Callable[[], Tensor], ignored: Callable[[Tensor], bool] = lambda _: False
    ) -> tuple[Tensor, Linear]:
        """Output of `run`, and the numbers that it saves for its backward pass, without the model's own and those
        `ignored`."""
        held = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            apart = tensor.detach()  # itself, it would keep the graph alive that keeps it, and no collector sees that
            if not ignored(tensor):
                kept.setdefault(tensor.untyped_storage()._cdata, apart)
            return apart

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            output = run()
        storages = ((tensor.untyped_storage(), tensor) for key, tensor in kept.items() if key not in held)
        numbers = (Linear.of(storage.nbytes() // tensor.element_size(), self.rows) for storage, tensor in storages)
        return output, sum(numbers, Linear(0, 0))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        key = func, _described(args), _described(kwargs.items())
        if packet not in flop_registry:
            if _is_composite(func) and _multiplies(key, func, args, kwargs):
                with self:
                    return func.decompose(*args, **kwargs)
            return _result(key, func, args, kwargs)
        result = _result(key, func, args, kwargs)
        forward = flop_registry[packet](*args, **kwargs, out_val=result)
        factors = _FACTORS.get(packet, (0, 1))
        needed = sum(args[index].requires_grad for index in factors) if torch.is_grad_enabled() else 0
        self.flops += Linear.of(forward * (1 + needed), self.rows)
        return result


@functools.cache
def _is_composite(func: Any) -> bool:
    return bool(func._can_decompose())


_MULTIPLIES: dict[Any, bool] = {}


def _multiplies(key: Any, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether there is a product among the operations that a composite one consists of."""
    if key not in _MULTIPLIES:
        with Trace(1) as inside:
            func.decompose(*args, **kwargs)
        _MULTIPLIES[key] = inside.flops != Linear(0, 0)
    return _MULTIPLIES[key]


_Shape = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
_RESULTS: dict[Any, tuple[bool, Sequence[_Shape]] | None] = {}
"""Results of operations on tensors of given shapes: computing them again is most of a pass, since layers are alike.
None where it is more than new tensors without storage."""


def _result(key: Any, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    known = _RESULTS.get(key, ...)
    if known is ...:
        result = func(*args, **kwargs)
        _RESULTS[key] = _new_tensors(func, (*args, *kwargs.values()), result)
        return result
    if known is None:
        return func(*args, **kwargs)
    is_one, shapes = known
    made = [torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in shapes]
    return made[0] if is_one else tuple(made)


def _described(values: Any) -> tuple[Any, ...]:
    """All that a result's shape can depend on. Types too, since 1, 1.0 and True are equal."""
    return tuple(
        (value.shape, value.stride(), value.dtype, value.device)
        if isinstance(value, Tensor)
        else _described(value)
        if isinstance(value, list | tuple)
        else (type(value), value)
        for value in values
    )


def _new_tensors(func: Any, arguments: Sequence[Any], result: Any) -> tuple[bool, Sequence[_Shape]] | None:
    """The shapes of an operation's results; None if they are not all new, or not all tensors without storage."""
    schema = func._schema
    if any(value.alias_info is not None for value in (*schema.returns, *schema.arguments)):
        return None
    is_one = isinstance(result, Tensor)
    results = [result] if is_one else result
    if not isinstance(results, list | tuple) or not all(isinstance(each, Tensor) and each.is_meta for each in results):
        return None
    given = (each for each in tree_leaves(list(arguments)) if isinstance(each, Tensor))
    if {each.untyped_storage()._cdata for each in given} & {each.untyped_storage()._cdata for each in results}:
        return None
    return is_one, [(tuple(each.shape), each.stride(), each.dtype) for each in results]


def flops_per_sample(model: Model) -> int:
    """FLOPs of convolutions and matrix products for one sample of the example of a model on the meta device, forward
    and backward: 2 a multiply-add, attention in full; recomputed blocks once, the gradient of the input not at all."""
    with trace_of(model) as trace:
        output = model(*model.example(trace.rows))
    return flops_of_one(trace, output)


def trace_of(model: Model) -> Trace:
    """A trace with as many samples as the model can be traced with."""
    return Trace(rows_to_trace(model, model.example(1), model.largest))


def flops_of_one(trace: Trace, output: Tensor) -> int:
    """FLOPs of a sample, forward and backward, of the pass to `output` that `trace` saw."""
    trace.run_functions(output)
    return trace.flops.at(1)


def parameter_count(model: torch.nn.Module) -> int:
    """Trainable numbers."""
    return sum(parameter.numel() for parameter in model.parameters())
