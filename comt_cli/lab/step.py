"""Training steps of any task, timed: each variant as a ratio to the best plain one of the same run.

A row is one variant. Times are in milliseconds (undisturbed, as `timing` has it, with the 10th and 90th percentile of
the turns). `forward` is training's forward pass without gradients, loss included; `saved` what it keeps for the
backward pass; `peak` the most that a step takes beyond weights and the optimiser's states (CUDA only; not where it lies
in CUDA graphs, which keep it between steps). FLOPs are those of the variant's own network as training counts them, of
another library's those of the plain one; `mfu` is what it has of them a second, over the device's peak.

All variants fit on a device at once: those of one network share its weights and its optimiser's states, so that only
what a step makes differs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from comt_cli.data.images.pictures import make_torchvision_importable
from comt_cli.errors import UserError
from comt_cli.exchange.huggingface import llama_config
from comt_cli.installing import install_package
from comt_cli.kernels.choice import Choice, device_here
from comt_cli.lab.runner import Built, Case, Row, Unavailable, versions
from comt_cli.lab.subjects import GRAPHS, NONDETERMINISTIC, SUBJECTS, Shape, needs_cuda, subject_of
from comt_cli.lab.timing import Part, Times, compared, mebibytes, peak_beyond, quickest, reliability, saved_bytes
from comt_cli.layers.dropout import Masks
from comt_cli.models.base import Model
from comt_cli.models.build import materialise, model_of
from comt_cli.models.flops import flops_per_sample, parameter_count
from comt_cli.models.kernels import use_kernels
from comt_cli.recipe.settings import Kernels, Precision
from comt_cli.runs.plan import RunSpec
from comt_cli.training.devices import compute_context, device_name, parameter_dtype, peak_flops, product_dtype
from comt_cli.training.objective import CAPTURED, Objective, as_one_pass, compiled, prepare_compiler
from comt_cli.training.parallel import World
from comt_cli.training.tasks import TaskRun, run_class
from comt_cli.training.update import optimizer_of

CompileWhat = Literal["whole", "block"]
"""The model (a language model's below its head) as one graph, or one block at a time, whose code equal blocks share:
quicker to compile."""


def step_cases(
    device: torch.device,
    sizes: Sequence[str] | None,
    precisions: Sequence[str] | None,
    variants: Sequence[str],
    compile_what: CompileWhat = "whole",
) -> Iterator[StepCase]:
    """The cases of these sizes, or of those of the device, with those of `variants` that there are of each."""
    for size in sizes or [size for subject in SUBJECTS.values() for size in subject.default_sizes(device.type)]:
        subject = subject_of(size)
        of_size = [name for name in subject.variants_of(size) if name in variants]
        usual = [subject.precision] if device.type == "cuda" else ["fp32", subject.precision]
        for precision in (precisions or usual) if of_size else ():
            yield StepCase(subject.shapes[size], cast(Precision, precision), of_size, device, compile_what)


@dataclass
class StepCase(Case):
    """Variants of the training step of one shape in one precision, which train on one batch of noise: making a batch is
    no part of the step."""

    shape: Shape
    precision: Precision
    keys: Sequence[str]
    device: torch.device
    compile_what: CompileWhat = "whole"

    def __post_init__(self) -> None:
        self.subject = subject_of(self.shape.size)
        self.page, self.what = self.subject.page, f"{self.shape.size} {self.precision}"
        self.optional = frozenset(filter(self.subject.is_optional, self.keys))

    def halved(self) -> StepCase | None:
        batch = self.shape.batch // 2
        return replace(self, shape=replace(self.shape, batch=batch)) if batch else None

    def build(self, key: str, shared: dict[Any, Any]) -> Built:
        prepared = self.prepare(key, shared)
        try:
            for part in (prepared.step, prepared.step, prepared.forward, prepared.forward):
                part()
            saved = saved_bytes(prepared.loss, prepared.model.parameters())
            peak = None if key.endswith(GRAPHS) else peak_beyond(prepared.step, self.device)
        except Exception:
            for parameter in prepared.model.parameters():
                parameter.grad = None
            raise
        return Built({"step": prepared.step, "forward": prepared.forward}, (saved, peak), prepared.note)

    def prepare(self, variant: str, networks: dict[str, TrainedNetwork]) -> Prepared:
        """A variant, ready to be timed, one of those of its network. Raises `Unavailable` where this machine has none
        of its parts, or not the library."""
        subject = self.subject
        if needs_cuda(variant) and self.device.type != "cuda":
            raise Unavailable("it is for CUDA devices")
        name, _, how = variant.partition("-")
        is_peer, missing = subject.is_peer(variant), list[str]()
        if name not in networks:
            spec = self.shape.spec(subject.networks["plain" if is_peer else name], self.precision)
            try:
                model = peer_network(self.shape).to(self.device) if is_peer else None
            except UserError as error:
                raise Unavailable(error.message) from None
            networks[name] = TrainedNetwork(spec, self.shape.batch, self.device, model)
        network = networks[name]
        if is_peer:
            objective: Objective = TransformersLoss(network.model)
        else:
            kernels: Kernels | None = "fused" if how.startswith("fused") else None
            objective, choices = network.form(kernels, compiled=subject.compiles)
            missing = [f"{op}: {choice.reason}" for op, choice in choices.items() if not choice.fused]
            if kernels and len(missing) == len(choices):
                raise Unavailable(f"nothing is fused here ({'; '.join(missing)})")
        if _is_compiled(variant):
            self._compile(objective, captured=variant.endswith(GRAPHS))
        found = replace(network.prepared(objective), note=f"not fused: {'; '.join(missing)}" if missing else "")
        if variant == NONDETERMINISTIC:
            step, forward = (nondeterministic()(part) for part in (found.step, found.forward))
            found = replace(found, step=step, forward=forward, loss=nondeterministic()(found.loss))
        return found

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

    def rows(self, ready: Mapping[str, Built], times: Mapping[tuple[str, str], Times]) -> list[Row]:
        subject, shape, plain, device = self.subject, self.shape, self.subject.best_plain, self.device
        steps, forwards = ({name: times[part, name] for name in ready} for part in ("step", "forward"))
        best, best_forward = quickest(steps, plain), quickest(forwards, plain)
        plain_saved = min((ready[n].facts[0] for n in plain if n in ready and not n.endswith(GRAPHS)), default=None)
        wanted = {"plain", *(name.partition("-")[0] for name in ready)} & {*subject.networks}
        models = {name: model_of(shape.spec(subject.networks[name])) for name in wanted}
        flops = {name: flops_per_sample(model) for name, model in models.items()}
        parameters = {name: parameter_count(model) for name, model in models.items()}
        peak, rows = peak_flops(device, self.precision), []
        for name, built in ready.items():
            step, network = steps[name], name.partition("-")[0]
            network = network if network in models else "plain"  # another library's
            more, (saved, most) = flops[network] / flops["plain"], built.facts
            row: Row = {"device": device_name(device)}
            if subject.decides_kernels:
                row |= {"device_type": device.type, "device_class": device_here(device).device_class}
            row |= {"shape": str(shape), "size": shape.size, "precision": self.precision, "variant": name}
            row |= {"rounds": len(step.seconds), **step.columns("step_ms", 3), **reliability("step_ms", step)}
            row[f"{subject.unit}_per_second"] = round(shape.units / step.undisturbed, 1)
            row["mfu"] = None if peak is None else round(flops[network] * shape.batch / step.undisturbed / peak, 4)
            row["flops_ratio_to_plain"] = round(more, 4)
            if subject.counts_arithmetic:  # the extra matrices must at least be read
                arithmetic = max(more, parameters[network] / parameters["plain"])
                row["arithmetic_ratio_to_plain"] = round(arithmetic, 4)
            row |= {"best_plain": best, **compared("step_ratio_to_best_plain", steps, name, best)}
            if device.type == "cuda" and subject.compiles:
                row |= compared("step_ratio_to_nondeterministic", steps, name, NONDETERMINISTIC)
            if subject.peer:
                row |= compared(f"step_ratio_to_{subject.peer}", steps, name, subject.peer)
            if subject.compares_compiled:
                row |= compared("step_ratio_to_plain_compiled", steps, name, "plain-compiled")
            row |= {"best_plain_forward": best_forward, **forwards[name].columns("forward_ms", 3)}
            row |= compared("forward_ratio_to_best_plain", forwards, name, best_forward)
            row["saved_mib"] = mebibytes(saved)
            row["saved_ratio_to_plain"] = round(saved / plain_saved, 4) if plain_saved else None
            row["peak_mib"] = mebibytes(most)
            what = "whole" if subject.is_peer(name) else self.compile_what  # nothing is known of a library's blocks
            rows.append(row | {"compiled": what if _is_compiled(name) else "no"} | versions())
        return rows


def _is_compiled(variant: str) -> bool:
    return variant.endswith(("-compiled", "-fused")) or needs_cuda(variant)


@dataclass(frozen=True)
class Prepared:
    """One form of a network: a `step` is loss, gradients and update, `forward` training's forward pass without
    gradients. `note`: operations that are not fused, and why."""

    step: Part
    forward: Part
    loss: Callable[[], Tensor]
    model: nn.Module
    note: str = ""


class TrainedNetwork:
    """A network with its weights and its optimiser's states, which forms of it train on one batch of noise. `model`:
    another library's, in the place of the run's own."""

    def __init__(self, spec: RunSpec, samples: int, device: torch.device, model: nn.Module | None = None) -> None:
        self.spec, self.samples, self.device = spec, samples, device
        run = _built_run(self.spec, self.device)
        self.inputs = _noise(run, samples, device)
        if model is None:
            materialise(run.model, device, seed=0)
        self.model = model or run.model
        self.model.to(parameter_dtype(spec.settings.train.precision))
        if run.memory_format is not None:
            self.model.to(memory_format=run.memory_format)  # type: ignore[call-overload]
        self.optimizer = optimizer_of(self.model, spec.settings.train)

    def form(self, kernels: Kernels | None, *, compiled: bool) -> tuple[Objective, dict[str, Choice]]:
        """The network once more, which trains the very same parameters, and the choices of its kernels."""
        run, train = _built_run(self.spec, self.device), self.spec.settings.train
        run.model.load_state_dict(self.model.state_dict(keep_vars=True), assign=True)
        run.model.to(self.device)  # what is fixed and in no state dict
        Masks(run.model).move_to(0, np.arange(len(self.inputs[0]), dtype=np.int64), self.device)
        if kernels is None:
            return run.objective, {}
        dtype, tokens = product_dtype(train.precision), self.samples * self.spec.task.positions(self.spec.settings)
        return run.objective, use_kernels(run.model, kernels, self.device, dtype, compiled=compiled, tokens=tokens)

    def prepared(self, objective: Objective, *, clips: bool = False) -> Prepared:
        """The parts of a form, whose gradients are clipped if it `clips` and the run says so."""
        limit = self.spec.settings.train.gradient_clipping if clips else 0

        def loss() -> Tensor:
            with compute_context(self.spec.settings.train.precision, self.device):
                total: Tensor = objective(*self.inputs)
            return total / self.inputs[-1].numel()

        def step() -> None:
            torch.autograd.backward(loss())
            if limit > 0:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

        return Prepared(step, torch.no_grad()(loss), loss, objective.model)


def _built_run(spec: RunSpec, device: torch.device) -> TaskRun[Any]:
    """A run without data, whose model is on the meta device."""
    run = run_class(spec.task)(spec, SimpleNamespace(train=None, validation=None), World(device))
    run.build()
    return run


@contextlib.contextmanager
def nondeterministic() -> Iterator[None]:
    """Algorithms that need not be deterministic: kernels add in any order. What was compiled under the other setting is
    compiled anew: the compiler asks for it."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _noise(run: TaskRun[Any], samples: int, device: torch.device) -> tuple[Tensor, ...]:
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


# ---- the same network in another library

PEER = "transformers"


def transformers() -> ModuleType:
    """The library. Raises `UserError` where it cannot be imported."""
    make_torchvision_importable()  # which it imports where it finds one
    try:
        return importlib.import_module(PEER)
    except (ImportError, OSError, RuntimeError):
        raise UserError(f"the comparison with {PEER} needs that library", install_package(PEER)) from None


def peer_network(shape: Shape) -> nn.Module:
    """transformers' network of our plain LLaMA of a shape. Raises `UserError` where it cannot be imported."""
    library = transformers()
    ours: Any = model_of(shape.spec({"name": "pre-ln"}))
    config = llama_config(ours, shape.dimensions["length"])
    model: nn.Module = library.LlamaForCausalLM(library.LlamaConfig.from_dict(config | {"use_cache": False}))
    return model


class TransformersLoss(Objective):
    """(tokens, targets), both [B, T] -> the summed loss, as the library computes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(0.0)
        self.model = model
        self._called: Callable[..., Any] = model

    def compile_model(self, *, keep_others: bool = False, captured: bool = False) -> None:
        prepare_compiler(keep_others=keep_others)
        self._called = compiled(self.model, captured=captured, fullgraph=False)

    def forward(self, *given: Tensor) -> Tensor:
        tokens_BT, targets_BT = given
        # `shift_labels` are targets that stand where they are predicted, as ours do; the loss is their mean
        loss: Tensor = self._called(input_ids=tokens_BT, labels=tokens_BT, shift_labels=targets_BT).loss
        return loss * targets_BT.numel()
