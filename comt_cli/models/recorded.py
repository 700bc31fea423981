"""Record what a network computes in one forward pass: inputs and outputs of its modules, and the values of its gates.

Shapes: B batch, T tokens, N channels, r bottleneck width.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.gates import EvaluatorAdjuster, Gate, Site, gates_of
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.models.base import Model
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.tasks.base import PROJECTIONS

NEAR_END = 0.05
"""A gate's value is saturated if it is within this share of the range from either end."""


@contextlib.contextmanager
def recorded(
    modules: Iterable[nn.Module], method: str = "forward"
) -> Iterator[dict[nn.Module, tuple[tuple[Any, ...], Any]]]:
    """A context that records the inputs (by position, then by name) and the output of the last call of a method of each
    module."""
    kept: dict[nn.Module, tuple[tuple[Any, ...], Any]] = {}

    def keep(module: nn.Module, own: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        output = own(*inputs, **named)
        kept[module] = (*inputs, *named.values()), output
        return output

    with replaced(modules, method, keep):
        yield kept


@contextlib.contextmanager
def replaced(modules: Iterable[nn.Module], method: str, by: Callable[..., Any]) -> Iterator[None]:
    """A context in which a method of each module is `by(module, method, *inputs, **named)`, whose second argument is
    the module's own method."""
    with contextlib.ExitStack() as stack:
        for module in modules:
            own = getattr(module, method)
            stack.callback(*((setattr, module, method, own) if method in vars(module) else (delattr, module, method)))
            setattr(module, method, partial(by, module, own))
        yield


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """A context in which a network runs for observation: in evaluation mode, without gradients, fused kernels or
    compiled code, which bypass hooks. It is restored afterwards."""
    before: list[tuple[nn.Module, dict[str, Any]]] = []
    for module in model.modules():
        before.append((module, {key: vars(module)[key] for key in ("training", "fused") if key in vars(module)}))
    is_compiled = "torch._dynamo" in sys.modules
    try:
        for module, flags in before:  # `eval` would unfreeze frozen projections
            vars(module).update(dict.fromkeys(flags, False))
        with torch.no_grad(), torch.compiler.set_stance("force_eager") if is_compiled else contextlib.nullcontext():
            yield
    finally:
        for module, flags in before:
            vars(module).update(flags)


def values_by_kind(
    gate: Gate, z_TN: Tensor, u_Tr: Tensor | None
) -> tuple[dict[str, Tensor], tuple[float, float] | None]:
    """The values of a gate by kind, and the ends of their range (None if it states none), from the arguments of
    `scaled`. Of an Evaluator-Adjuster Unit, which has no factors, e."""
    if isinstance(gate, EvaluatorAdjuster):
        return {"evaluator": gate.evaluation(z_TN)}, (0.0, 1.0)
    return gate.values(u_Tr), gate.factor_range


Factor = tuple[nn.Module, Site, str, Tensor, tuple[float, float] | None]
"""The module with a gate, its site, and `kind`, `values` ([B, T, N], or [N] if the gate does not depend on its input)
and `ends` as in `analysis.observed.SiteValues`."""


def gate_factors(model: nn.Module, run: Callable[[], object]) -> list[Factor]:
    """Values of every gate of a network when `run` runs it once, `undisturbed`: branch by branch in the order of the
    model, within a branch the projections in their usual order before other sites, each from layer to layer."""
    gates, found = gates_of(model), list[Factor]()
    with undisturbed(model), recorded((gate for *_, gate in gates), "scaled") as calls:
        run()
        for module, site, gate in gates:
            (z, u), _ = calls[gate]
            by_kind, ends = values_by_kind(gate, z, u)
            found += [(module, site, kind, values, ends) for kind, values in by_kind.items()]
    places = [(site.stack, site.part, site.name, kind) for _, site, kind, *_ in found]
    branches, listed = [place[:2] for place in places], [*PROJECTIONS]

    def rank(place: tuple[str, str, str, str]) -> tuple[int, ...]:
        known = listed.index(place[2]) if place[2] in listed else len(listed)
        return branches.index(place[:2]), known, places.index(place)

    return [each for _, each in sorted(zip(map(rank, places), found, strict=True), key=itemgetter(0))]


def stacks_of(model: nn.Module) -> Mapping[str, nn.ModuleList]:
    """The blocks of a network of tokens by the name of their stack. For another library's network: `decoder`, the
    longest outermost list of modules. Raises `UserError` if there is none."""
    if isinstance(model, Model):
        return model.stacks
    lists: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer in lists):
            lists[name] = module
    if not lists:
        raise UserError(f"{type(model).__name__} has no list of blocks")
    return {"decoder": max(lists.values(), key=len)}


def connections_of(model: nn.Module) -> list[ResidualConnection]:
    """The residual connections of a network of tokens, stack by stack from the first block."""
    blocks = [block for stack in stacks_of(model).values() for block in stack]
    return [part for block in blocks for part in block.children() if isinstance(part, ResidualConnection)]


def reads_source(model: EncoderDecoder) -> list[nn.Module]:
    """The modules that read the source: the encoder's, and cross-attention's keys and values."""
    return [*model.encoder.modules(), *(block.cross.key_value for block in model.decoder_blocks())]
