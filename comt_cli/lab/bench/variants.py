"""The variants of a training step, of any task, built so that all of them fit on a device at once: those of one network
share its weights and its optimiser's states, so that only what a step makes differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.kernels.choice import Choice
from comt_cli.lab.bench.peers import PEERS
from comt_cli.lab.bench.rounds import Part
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.subjects import GRAPHS, NONDETERMINISTIC, Subject, needs_cuda
from comt_cli.layers.dropout import Masks
from comt_cli.models.base import Model
from comt_cli.models.build import materialise
from comt_cli.models.kernels import use_kernels
from comt_cli.recipe.settings import Precision
from comt_cli.training.devices import compute_context, parameter_dtype, product_dtype
from comt_cli.training.objective import CAPTURED, Objective, as_one_pass, prepare_compiler
from comt_cli.training.parallel import World
from comt_cli.training.tasks import run_class
from comt_cli.training.tasks.base import TaskRun

T = TypeVar("T")
CompileWhat = Literal["whole", "block"]
"""The model (a language model's below its head) as one graph, or one block at a time, whose code equal blocks share:
quicker to compile."""

_NO_DATA = SimpleNamespace(train=None, validation=None)


class Unavailable(Exception):
    """A variant that there is not on this machine; says why."""


@dataclass(frozen=True)
class Prepared:
    """One variant, ready to be timed."""

    step: Part
    forward: Part
    loss: Callable[[], Tensor]
    parameters: list[Tensor]
    notes: list[str] = field(default_factory=list)


def is_compiled(variant: str) -> bool:
    """Whether torch.compile has a part in it."""
    return variant.endswith(("-compiled", "-fused")) or needs_cuda(variant)


class Variants:
    """Builds the variants of one shape in one precision on one device, which train on one batch of noise: making a
    batch is no part of the step."""

    def __init__(
        self, subject: Subject, shape: Shape, precision: Precision, device: torch.device, compile_what: CompileWhat
    ) -> None:
        self.subject, self.shape, self.precision, self.device = subject, shape, precision, device
        self.compile_what = compile_what
        plain = self._run("plain")
        # In evaluation: only shapes are asked for, and hashing masks of dropout takes most of a pass without storage.
        self.inputs = noise(plain.model.eval(), shape.batch, plain.memory_format, device, parameter_dtype(precision))
        self._networks: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}

    def prepare(self, variant: str) -> Prepared:
        """A variant with its step (loss, gradients, update) and its forward pass (training's, without gradients).

        Raises:
            Unavailable: this machine has none of its parts, or not the library.
        """
        if needs_cuda(variant) and self.device.type != "cuda":
            raise Unavailable("it is for CUDA devices")
        base, _, how = variant.partition("-")
        is_peer = self.subject.is_peer(variant)
        objective, notes = self._peer(base) if is_peer else self._ours(base, how.startswith("fused"))
        if is_compiled(variant):
            self._compile(objective, captured=variant.endswith(GRAPHS))
        model, optimizer = objective.model, self._networks[base][1]

        def loss() -> Tensor:
            with compute_context(self.precision, self.device):
                total: Tensor = objective(*self.inputs)
            return total / self.inputs[-1].numel()

        def step() -> None:
            torch.autograd.backward(loss())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        def forward() -> None:
            with torch.no_grad():
                loss()

        parameters: list[Tensor] = [*model.parameters()]
        if variant == NONDETERMINISTIC:
            return Prepared(
                nondeterministic(step), nondeterministic(forward), nondeterministic(loss), parameters, notes
            )
        return Prepared(step, forward, loss, parameters, notes)

    def _run(self, base: str) -> TaskRun[Any]:
        """A run of a base's network, which is on the meta device."""
        spec = self.shape.spec(self.subject.bases[base].method, self.precision)
        run = run_class(spec.task)(spec, _NO_DATA, World(self.device))
        run.build()
        return run

    def _ours(self, base: str, fused: bool) -> tuple[Objective, list[str]]:
        run = self._run(base)
        if base in self._networks:
            # `keep_vars`, and assigned: both train the same parameters, not copies
            run.model.load_state_dict(self._networks[base][0].state_dict(keep_vars=True), assign=True)
            run.model.to(self.device)  # what is fixed and in no state dict
        else:
            materialise(run.model, self.device, seed=0)
            self._keep(base, run.model, run)
        Masks(run.model).move_to(0, np.arange(len(self.inputs[0]), dtype=np.int64), self.device)
        if not fused:
            return run.objective, []
        dtype, compiled = product_dtype(self.precision), self.subject.compiles
        choices = use_kernels(run.model, "fused", self.device, dtype, compiled=compiled, tokens=self.shape.units)
        return run.objective, not_fused(choices)

    def _peer(self, name: str) -> tuple[Objective, list[str]]:
        peer, run = PEERS[name], self._run("plain")
        if name not in self._networks:
            try:
                network = peer.network(self.shape)
            except UserError as error:
                raise Unavailable(error.message) from None
            self._keep(name, network.to(self.device), run)
        return peer.objective(self._networks[name][0], run.objective.smoothing), []

    def _keep(self, base: str, model: nn.Module, run: TaskRun[Any]) -> None:
        model.to(parameter_dtype(self.precision))
        if run.memory_format is not None:
            model.to(memory_format=run.memory_format)  # type: ignore[call-overload]
        self._networks[base] = model, run.optimizer(model, run.spec.settings)

    def _compile(self, objective: Objective, *, captured: bool) -> None:
        model = objective.model
        if self.compile_what == "whole" or not isinstance(model, Model):
            objective.compile_model(keep_others=True, captured=captured)
        else:
            for block in (block for stack in model.stacks.values() for block in stack):
                block.compile(dynamic=False, fullgraph=True, options=CAPTURED if captured else None)
            if captured:
                objective.forward = as_one_pass(objective.forward)
        # Blocks have up to some eight shapes in one network, and a version of each with gradients and one without.
        prepare_compiler(versions=16 * len(self.subject.variants), keep_others=True)


def nondeterministic(part: Callable[[], T]) -> Callable[[], T]:
    """`part` in kernels that add in any order; the process is as before afterwards. Code that was compiled under the
    other setting is compiled anew: the compiler asks for it."""

    def run() -> T:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        try:
            return part()
        finally:
            torch.use_deterministic_algorithms(before)

    return run


def noise(
    model: Model, samples: int, memory_format: torch.memory_format | None, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Random inputs of a model, as its `example` has them, and targets among its outputs, on `device`: whole numbers
    are below the number of outputs, or different places in a sequence (`Model.places`), real ones normal, in `dtype`.
    The same for all models of one shape."""
    generator = torch.Generator().manual_seed(0)
    example = model.example(samples)
    with torch.no_grad():
        outputs: Tensor = model(*example)

    def like(number: int, of: Tensor) -> Tensor:
        if (there := model.places.get(number)) is not None:
            return torch.rand(*of.shape[:-1], there, generator=generator).argsort(-1)[..., : of.shape[-1]]
        if not of.is_floating_point():
            return torch.randint(0, outputs.shape[-1], of.shape, generator=generator).to(of.dtype)
        real = torch.randn(of.shape, generator=generator).to(dtype)
        return real if memory_format is None or of.dim() != 4 else real.contiguous(memory_format=memory_format)

    targets = torch.randint(0, outputs.shape[-1], outputs.shape[:-1], generator=generator)
    return tuple(each.to(device) for each in (*map(like, range(len(example)), example), targets))


def not_fused(choices: Mapping[Any, Choice]) -> list[str]:
    """Which of the fused operations that were asked for cannot be had, and why.

    Raises:
        Unavailable: none of them can.
    """
    missing = [f"{op}: {choice.reason}" for op, choice in choices.items() if not choice.fused]
    if len(missing) == len(choices):
        raise Unavailable(f"nothing is fused here ({'; '.join(missing)})")
    return missing
