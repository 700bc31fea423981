"""Gates in modules of any origin. The class of a module is replaced in place by one that multiplies its output, and the
gate becomes a submodule. Parameters keep their names, and the module stays the same object.

Shapes: T tokens (any leading dimensions), D input width, N output width.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from comt_cli.layers.gates import Gate, Site, gates_of, read_by
from comt_cli.layers.projection import GatedPath, Projections
from comt_cli.models.base import TokenBlock


@dataclass(frozen=True)
class PlacedGate:
    """Gate of a model at a site: names of the module that carries it and of the one whose input it reads, and which of
    how many equal parts of the module's output it multiplies. At `sdpa` it multiplies the module's input."""

    site: Site
    gate: Gate
    module: str
    reads: str
    part: int = 0
    parts: int = 1


class Passage(threading.local):
    """Input of a gate, passed from the module that receives it to the module that carries the gate. Every thread has
    its own, since `DataParallel` runs replicas of a model in threads."""

    read: Tensor | None = None

    def __reduce__(self) -> Any:
        return Passage, ()  # a copy is empty, and common to the copies of both modules

    def taken(self) -> Tensor:
        """The tensor, which is then released."""
        read, self.read = self.read, None
        assert read is not None, "a gate reads the input of another module, which was not called before"
        return read


@dataclass
class Gating:
    """Gates of a module by site, with their parts of its output. `reads`: passages from which gates read another
    module's input; `passes_to`: passage that gets this module's input; `first`: name of its first argument."""

    first: str
    sites: dict[str, tuple[Site, int, int]] = field(default_factory=dict)
    reads: dict[str, Passage] = field(default_factory=dict)
    passes_to: Passage | None = None


class Remade(nn.Module):
    """Module whose class, `original`, was replaced in place by a subclass of it and of one of these (`remade_class`).
    Pickle could not find this class by its name."""

    original: ClassVar[type[nn.Module]]
    prefix: ClassVar[str] = ""
    """Prefix of the new class's name."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return empty_module, type(self).__bases__, self.__dict__


@functools.cache
def remade_class(added: type[Remade], original: type) -> type[Remade]:
    """Subclass of both, such as `GatedLinear` of `Gated` and `nn.Linear`."""
    names = {"original": original, "__module__": added.__module__}
    return type(f"{added.prefix}{original.__name__}", (added, original), names)


def empty_module(added: type[Remade], original: type) -> nn.Module:
    """Empty module of a class of `remade_class`, filled by copying or unpickling."""
    kind = remade_class(added, original)  # type: ignore[arg-type]
    return kind.__new__(kind)


class Gated(Remade):
    """Module with gates: z = gamma(x) * f(x), with f the original module. `gate` is the gate of its output, or those of
    its parts by site; `sdpa_gate` is the gate of its input."""

    prefix = "Gated"
    gating: Gating
    gate: Any
    sdpa_gate: Any

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """As the original, with its (first) output times the gate: x [T, D] -> [T, N]."""
        gating = self.gating
        x_TD, *others = inputs or (named.pop(gating.first),)
        if gating.passes_to is not None:
            gating.passes_to.read = x_TD
        if "sdpa" in gating.sites:
            x_TD = self._scaled("sdpa", x_TD, x_TD)
        output = super().forward(x_TD, *others, **named)
        z_TN, *rest = output if isinstance(output, tuple) else (output,)
        for site, (_, part, parts) in gating.sites.items():
            if parts > 1:
                columns = [*z_TN.chunk(parts, -1)]
                columns[part] = self._scaled(site, x_TD, columns[part])
                z_TN = torch.cat(columns, -1)
            elif site != "sdpa":
                z_TN = self._scaled(site, x_TD, z_TN)
        return (z_TN, *rest) if isinstance(output, tuple) else z_TN

    def gate_at(self, site: str) -> Any:
        if site == "sdpa":
            return self.sdpa_gate
        return self.gate if self.gating.sites[site][2] == 1 else self.gate[site]

    def _scaled(self, site: str, x_TD: Tensor, z_TN: Tensor) -> Tensor:
        gate, passage = self.gate_at(site), self.gating.reads.get(site)
        scaled: Tensor = gate.scaled(z_TN, read_by(gate, x_TD if passage is None else passage.taken()))
        return scaled


def _as_gated(module: nn.Module) -> Gated:
    if not isinstance(module, Gated):
        first = next(iter(inspect.signature(module.forward).parameters))
        module.__class__ = remade_class(Gated, type(module))  # type: ignore[arg-type]
        assert isinstance(module, Gated)
        module.gating = Gating(first)
    return module


def add_gate(model: nn.Module, placed: PlacedGate) -> None:
    """Add a gate to a model."""
    site, gate, module = placed.site, placed.gate, model.get_submodule(placed.module)
    if isinstance(module, TokenBlock):
        setattr(module, f"{site.name}_path", GatedPath(site, lambda _: gate))
    elif isinstance(module, Projections):
        module.gates[site.name] = gate
        module.train(module.training)  # undoes `freeze`
    else:
        carry(model, placed)


def carry(model: nn.Module, placed: PlacedGate) -> None:
    """Add a gate to a module of another library."""
    site, gate, gated = placed.site, placed.gate, _as_gated(model.get_submodule(placed.module))
    gated.gating.sites[site.name] = site, placed.part, placed.parts
    if placed.reads != placed.module:
        reader = _as_gated(model.get_submodule(placed.reads))
        reader.gating.passes_to = gated.gating.reads[site.name] = Passage()
    if placed.parts > 1:
        gated.gate = getattr(gated, "gate", nn.ModuleDict())
        gated.gate[site.name] = gate
    else:
        gated.register_module("sdpa_gate" if site.name == "sdpa" else "gate", gate)


def gates_in(model: nn.Module) -> Iterator[PlacedGate]:
    """Gates of a wrapped model, or of one of comt's, in the order of its modules."""
    names = {module: name for name, module in model.named_modules()}
    readers = {id(module.gating.passes_to): name for module, name in names.items() if isinstance(module, Gated)}
    for module, site, gate in gates_of(model):
        placed = PlacedGate(site, gate, names[module], names[module])
        if isinstance(module, Gated):
            _, part, parts = module.gating.sites[site.name]
            passage = module.gating.reads.get(site.name)
            reads = placed.module if passage is None else readers[id(passage)]
            placed = replace(placed, reads=reads, part=part, parts=parts)
        yield placed


def is_one(placed: PlacedGate) -> bool:
    """Whether a gate does not change its output, bit for bit, in its own type, on inputs from small to large."""
    like, draw = next(placed.gate.parameters()), torch.Generator().manual_seed(0)
    x_TD, z_TN = (torch.randn(64, width, generator=draw) for width in (placed.site.d_in, placed.site.d_out))
    x_TD, z_TN = (x_TD * torch.logspace(-2, 2, 64)[:, None]).to(like), z_TN.to(like)
    with torch.no_grad():
        return torch.equal(placed.gate.scaled(z_TN, read_by(placed.gate, x_TD)), z_TN)
