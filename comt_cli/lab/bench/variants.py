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
from comt_cli.runs.plan import RunSpec
from comt_cli.training.devices import compute_context, parameter_dtype, product_dtype
from comt_cli.training.objective import CAPTURED, Objective, as_one_pass, prepare_compiler
from comt_cli.training.parallel import World
from comt_cli.training.tasks import run_class
from comt_cli.training.tasks.base import TaskRun

T = TypeVar("T")
CompileWhat = Literal["whole", "block"]
"""The model (a language model's below its head) as one graph, or one block at a time, whose code equal blocks share:
quicker to compile."""


class Unavailable(Exception):
    """A variant that there is not on this machine; says why."""


@dataclass(frozen=True)
class Prepared:
    """One variant, ready to be timed: a `step` is loss, gradients and update, `forward` training's forward pass without
    gradients. `notes`: operations that are not fused, and why."""

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
        self.inputs = noise(self._run("plain"), shape.batch, device)
        self._networks: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}

    def prepare(self, variant: str) -> Prepared:
        """A variant, ready to be timed.

        Raises:
            Unavailable: this machine has none of its parts, or not the library.
        """
        if needs_cuda(variant) and self.device.type != "cuda":
            raise Unavailable("it is for CUDA devices")
        network, _, how = variant.partition("-")
        is_peer = self.subject.is_peer(variant)
        objective, notes = self._peer(network) if is_peer else self._ours(network, how.startswith("fused"))
        if is_compiled(variant):
            self._compile(objective, captured=variant.endswith(GRAPHS))
        model, optimizer = objective.model, self._networks[network][1]

        def loss() -> Tensor:
            return mean_loss(objective, self.inputs, self.precision, self.device)

        def step() -> None:
            torch.autograd.backward(loss())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        def forward() -> None:
            with torch.no_grad():
                loss()

        parts = step, forward, loss
        if variant == NONDETERMINISTIC:
            parts = nondeterministic(step), nondeterministic(forward), nondeterministic(loss)
        return Prepared(*parts, [*model.parameters()], notes)

    def _run(self, network: str) -> TaskRun[Any]:
        """A run of a network, which is on the meta device."""
        return built_run(self.shape.spec(self.subject.networks[network].method, self.precision), self.device)

    def _ours(self, network: str, fused: bool) -> tuple[Objective, list[str]]:
        run = self._run(network)
        if network in self._networks:
            share_parameters(run.model, self._networks[network][0], self.device)
        else:
            materialise(run.model, self.device, seed=0)
            self._keep(network, run.model, run)
        place_masks(run.model, self.inputs, self.device)
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

    def _keep(self, name: str, model: nn.Module, run: TaskRun[Any]) -> None:
        as_trained(model, run, self.precision)
        self._networks[name] = model, run.optimizer(model, run.spec.settings)

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


def built_run(spec: RunSpec, device: torch.device) -> TaskRun[Any]:
    """A run without data, whose model is on the meta device."""
    run = run_class(spec.task)(spec, SimpleNamespace(train=None, validation=None), World(device))
    run.build()
    return run


def as_trained(model: nn.Module, run: TaskRun[Any], precision: Precision) -> None:
    """Store a model in the type and memory format that a run trains it in."""
    model.to(parameter_dtype(precision))
    if run.memory_format is not None:
        model.to(memory_format=run.memory_format)  # type: ignore[call-overload]


def share_parameters(model: nn.Module, other: nn.Module, device: torch.device) -> None:
    """Have `model` train the very parameters of `other`, not copies: `keep_vars`, and assigned."""
    model.load_state_dict(other.state_dict(keep_vars=True), assign=True)
    model.to(device)  # what is fixed and in no state dict


def place_masks(model: nn.Module, inputs: tuple[Tensor, ...], device: torch.device) -> None:
    """Have dropout draw the masks of a batch's samples."""
    Masks(model).move_to(0, np.arange(len(inputs[0]), dtype=np.int64), device)


def mean_loss(objective: Objective, inputs: tuple[Tensor, ...], precision: Precision, device: torch.device) -> Tensor:
    """The loss of a batch, over its targets."""
    with compute_context(precision, device):
        total: Tensor = objective(*inputs)
    return total / inputs[-1].numel()


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


def noise(run: TaskRun[Any], samples: int, device: torch.device) -> tuple[Tensor, ...]:
    """Random inputs of a run's model, which is on the meta device, as its `example` has them, and targets among its
    outputs, on `device`: whole numbers are below the number of outputs, or different places in a sequence
    (`Model.places`), real ones normal, in the type of the parameters. The same for all models of one shape."""
    model, generator = run.model, torch.Generator().manual_seed(0)
    dtype = parameter_dtype(run.spec.settings.train.precision)
    example, was_training = model.example(samples), model.training
    with torch.no_grad():  # in evaluation: hashing masks of dropout takes most of a pass without storage
        outputs: Tensor = model.eval()(*example)
    model.train(was_training)

    def like(number: int, of: Tensor) -> Tensor:
        if (there := model.places.get(number)) is not None:
            return torch.rand(*of.shape[:-1], there, generator=generator).argsort(-1)[..., : of.shape[-1]]
        if not of.is_floating_point():
            return torch.randint(0, outputs.shape[-1], of.shape, generator=generator).to(of.dtype)
        real = torch.randn(of.shape, generator=generator).to(dtype)
        return real.contiguous(memory_format=run.memory_format or torch.contiguous_format) if of.dim() == 4 else real

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
