"""FLOPs of a model and its saved activations, from one forward pass without storage.

A product of A and B has two gradients, dA = dY B' and dB = A' dY, each with as many multiply-adds as the product. The
backward pass of a product or convolution therefore costs once its forward pass for each factor that needs a gradient: a
parameter, or something that depends on one. A network's first convolution thus costs 2 in total, since images need no
gradient, and others 3. Code with its own backward pass (`torch.autograd.Function`) is run backward separately. A
product whose result is detached is counted as if it were not.

The number of rows is a prime that divides no size of the network. A size that this prime divides thus grows with the
rows; a product of other sizes is never a multiple of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from comt_cli.errors import UserError
from comt_cli.models.base import Linear, Model

PRIMES = (1_000_003, 1_000_033, 1_009, 1_013, 1_019, 1_021)
"""Numbers of rows to trace with; the smaller ones for rows so long that sizes would overflow with the first."""

_aten = torch.ops.aten
_FACTORS = {_aten.addmm: (1, 2), _aten.baddbmm: (1, 2)}
"""Positions of a product's factors among its arguments, where they are not the first two."""


def rows_to_trace(model: nn.Module, inputs: Iterable[Tensor], largest: int) -> int:
    """Number of rows to trace `model` with; `largest` is the approximate size of its largest tensor per row. Raises
    `UserError` if a few rows have more numbers than can be counted."""
    sizes = {size for tensor in (*inputs, *model.parameters()) for size in tensor.shape}
    for rows in PRIMES:
        if rows * largest < 2**59 and all(size % rows for size in sizes):
            return rows
    said = "a row is too long to count the size of its tensors"
    raise UserError(said, "Use a shorter sequence_length.")


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
    """Counts, while entered, the FLOPs of operations on `rows` rows, forward and backward, in `flops`."""

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.flops = Linear(0, 0)

    def flops_of_one(self, output: Tensor) -> int:
        """FLOPs of one sample, forward and backward, of the traced pass to `output`."""
        with self, torch.no_grad():
            for node in behind(output):
                if isinstance(node, BackwardCFunction):  # a function with its own backward pass is run separately
                    function: Any = node
                    gradients = (torch.empty(out.shape, device="meta") for out in function._input_metadata)
                    function.apply(*gradients)
        return self.flops.at(1)

    def kept_by(
        self, model: nn.Module, run: Callable[[], Tensor], ignored: Callable[[Tensor], bool] = lambda _: False
    ) -> tuple[Tensor, Linear]:
        """Output of `run` and the size of its saved activations, without the model's tensors and those `ignored`."""
        held = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            apart = tensor.detach()  # the tensor itself would keep its graph alive in a cycle
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
        if packet not in flop_registry:
            with self:  # a composite operation may contain a product
                result = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result
        result = func(*args, **kwargs)
        forward = flop_registry[packet](*args, **kwargs, out_val=result)
        factors = _FACTORS.get(packet, (0, 1))
        needed = sum(args[index].requires_grad for index in factors) if torch.is_grad_enabled() else 0
        self.flops += Linear.of(forward * (1 + needed), self.rows)
        return result


def flops_per_sample(model: Model) -> int:
    """FLOPs of products and convolutions for one sample of the example of a meta model, forward and backward: 2 per
    multiply-add, attention in full, recomputed blocks once, the gradient of the input not at all."""
    with trace_of(model) as trace:
        output = model(*model.example(trace.rows))
    return trace.flops_of_one(output)


def trace_of(model: Model) -> Trace:
    """Trace with a number of samples that suits the model."""
    return Trace(rows_to_trace(model, model.example(1), model.largest))


def parameter_count(model: torch.nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
