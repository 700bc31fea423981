"""Training steps of any task, and decoding of language models: each variant as a ratio to the best plain one of the
same run.

A row is one variant. Times are in milliseconds. `forward`: training's forward pass with its loss, without gradients;
`saved`: the memory that it keeps for the backward pass; `peak`: the largest memory of a step beyond weights and
optimiser states (CUDA only, and not with CUDA graphs, which keep it between steps). FLOPs are those of the variant's
own network, for transformers those of the plain one; `mfu` is FLOPs a second over the device's peak.

Decoding: `decode_ms` is a step, one token of every text, on CUDA a replayed graph; `prefill_ms` the reading of all
prompts. Ratios are to `best_plain`, for the reading to the faster plain one there.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from comt_cli.exchange.huggingface import llama_config
from comt_cli.generation.cached import Decoder, decode_step
from comt_cli.kernels.choice import Choice, device_here
from comt_cli.lab.runner import DTYPES, Built, Case, Row, Unavailable
from comt_cli.lab.subjects import GRAPHS, LANGUAGE, PEER, SUBJECTS, Shape, subject_of
from comt_cli.lab.timing import Part, Times, compared, mebibytes, peak_beyond, quickest, reliability, saved_bytes
from comt_cli.layers.dropout import Masks
from comt_cli.models.accounting import cost_of
from comt_cli.models.base import Model
from comt_cli.models.build import materialise, model_of
from comt_cli.models.kernels import use_kernels
from comt_cli.models.llama import Llama
from comt_cli.recipe.settings import Kernels, Precision
from comt_cli.runs.plan import RunSpec
from comt_cli.training.devices import compute_context, device_name, parameter_dtype, peak_flops, product_dtype
from comt_cli.training.objective import CAPTURED, Objective, as_one_pass, prepare_compiler
from comt_cli.training.parallel import World
from comt_cli.training.tasks import TaskRun, run_class
from comt_cli.training.update import optimizer_of


def step_cases(
    device: torch.device, sizes: Sequence[str] | None, precisions: Sequence[str] | None, variants: Sequence[str]
) -> Iterator[StepCase]:
    """The cases of these sizes, or of the device's default sizes, with the `variants` that each has."""
    for size in sizes or [size for subject in SUBJECTS.values() for size in subject.default_sizes(device.type)]:
        subject = subject_of(size)
        of_size = [name for name in subject.variants_of(size) if name in variants]
        usual = [subject.precision] if device.type == "cuda" else ["fp32", subject.precision]
        for precision in (precisions or usual) if of_size else ():
            yield StepCase(subject.shapes[size], cast(Precision, precision), of_size, device)


@dataclass
class StepCase(Case):
    """Variants of the training step of one shape in one precision, all on one batch of noise and on a device together;
    those of one network share its weights and its optimiser states."""

    shape: Shape
    precision: Precision
    keys: Sequence[str]
    device: torch.device

    def __post_init__(self) -> None:
        self.subject = subject_of(self.shape.size)
        self.page, self.what = self.subject.page, f"{self.shape.size} {self.precision}"
        # Equal blocks share their code; a deep model as one graph would take minutes.
        self.compiles_blocks = self.device.type == "cuda" and self.shape.command == "train-lm"

    def build(self, key: str, shared: dict[Any, Any]) -> Built:
        prepared, note = self.prepare(key, shared)
        forward = torch.no_grad()(prepared.loss)
        try:
            for part in (prepared.step, prepared.step, forward, forward):
                part()
            saved = saved_bytes(prepared.loss, prepared.model.parameters())
            peak = None if key.endswith(GRAPHS) else peak_beyond(prepared.step, self.device)
        except Exception:
            for parameter in prepared.model.parameters():
                parameter.grad = None
            raise
        return Built({"step": prepared.step, "forward": forward}, (saved, peak), note)

    def prepare(self, variant: str, networks: dict[str, TrainedNetwork]) -> tuple[Prepared, str]:
        """A variant, and a remark on what is not fused. Raises `Unavailable`."""
        if variant.endswith(GRAPHS) and self.device.type != "cuda":
            raise Unavailable("it is for CUDA devices")
        name, _, how = variant.partition("-")
        if name not in networks:
            spec = self.shape.spec(self.subject.networks["plain" if name == PEER else name], self.precision)
            model = peer_network(self.shape) if name == PEER else None
            networks[name] = TrainedNetwork(spec, self.shape.batch, self.device, model)
        kernels: Kernels | None = "fused" if how.startswith("fused") else None
        objective, choices = networks[name].form(kernels, compiled="plain-compiled" in self.subject.variants)
        missing = [f"{op}: {choice.reason}" for op, choice in choices.items() if not choice.fused]
        if kernels and len(missing) == len(choices):
            raise Unavailable(f"nothing is fused here ({'; '.join(missing)})")
        if _is_compiled(variant):
            self._compile(objective, captured=variant.endswith(GRAPHS))
        return networks[name].prepared(objective), f"not fused: {'; '.join(missing)}" if missing else ""

    def _compile(self, objective: Objective, *, captured: bool) -> None:
        if not self.compiles_blocks or not isinstance(objective.model, Model):
            objective.compile_model(keep_others=True, captured=captured)
        else:
            for block in (block for stack in objective.model.stacks.values() for block in stack):
                block.compile(dynamic=False, fullgraph=True, options=CAPTURED if captured else None)
            if captured:
                objective.forward = as_one_pass(objective.forward)
        # Blocks have up to about eight shapes in one network, each in a version with gradients and one without.
        prepare_compiler(versions=16 * len(self.subject.variants), keep_others=True)

    def rows(self, ready: Mapping[str, Built], times: Mapping[tuple[str, str], Times]) -> list[Row]:
        subject, shape, plain, device = self.subject, self.shape, self.subject.best_plain, self.device
        steps, forwards = ({name: times[part, name] for name in ready} for part in ("step", "forward"))
        best, best_forward = quickest(steps, plain), quickest(forwards, plain)
        plain_saved = min((ready[n].facts[0] for n in plain if n in ready and not n.endswith(GRAPHS)), default=None)
        plain_cost = cost_of(shape.spec(subject.networks["plain"]))
        peak, rows = peak_flops(device, self.precision), []
        for name, built in ready.items():
            step, network = steps[name], name.partition("-")[0]
            cost = cost_of(shape.spec(subject.networks["plain" if network == PEER else network]))
            more, (saved, most) = cost.flops_per_row / plain_cost.flops_per_row, built.facts
            row: Row = {"device": device_name(device)}
            if subject.decides_kernels:
                row |= {"device_type": device.type, "device_class": device_here(device).device_class}
            row |= {"shape": str(shape), "size": shape.size, "precision": self.precision, "variant": name}
            row |= {"rounds": len(step.seconds), **step.columns("step_ms", 3), **reliability("step_ms", step)}
            row[f"{subject.unit}_per_second"] = round(shape.units / step.undisturbed, 1)
            row["mfu"] = None if peak is None else round(cost.flops_per_row * shape.batch / step.undisturbed / peak, 4)
            row["flops_ratio_to_plain"] = round(more, 4)
            if subject.counts_arithmetic:  # the extra matrices must at least be read
                row["arithmetic_ratio_to_plain"] = round(max(more, cost.parameters / plain_cost.parameters), 4)
            row |= {"best_plain": best, **compared("step_ratio_to_best_plain", steps, name, best)}
            for other in subject.compared:
                row |= compared(f"step_ratio_to_{other.replace('-', '_')}", steps, name, other)
            row |= {"best_plain_forward": best_forward, **forwards[name].columns("forward_ms", 3)}
            row |= compared("forward_ratio_to_best_plain", forwards, name, best_forward)
            row["saved_mib"] = mebibytes(saved)
            row["saved_ratio_to_plain"] = round(saved / plain_saved, 4) if plain_saved else None
            row["peak_mib"] = mebibytes(most)
            how = "block" if self.compiles_blocks and not name.startswith(PEER) else "whole"
            rows.append(row | {"compiled": how if _is_compiled(name) else "no"})
        return rows


def _is_compiled(variant: str) -> bool:
    return variant.endswith(("-compiled", "-fused", GRAPHS))


@dataclass(frozen=True)
class Prepared:
    """One form of a network: a `step` is loss, gradients and update."""

    step: Part
    loss: Callable[[], Tensor]
    model: nn.Module


class TrainedNetwork:
    """A network, or `peer`, with weights and optimiser states, which its forms train on one batch of noise."""

    def __init__(self, spec: RunSpec, samples: int, device: torch.device, peer: nn.Module | None = None) -> None:
        self.spec, self.samples, self.device = spec, samples, device
        run = _built_run(self.spec, self.device)
        self.inputs = _noise(run, samples, device)
        self.model = run.model if peer is None else peer.to(device)
        if peer is None:
            materialise(self.model, device, seed=0)
        self.model.to(parameter_dtype(spec.settings.train.precision))
        if run.memory_format is not None:
            self.model.to(memory_format=run.memory_format)  # type: ignore[call-overload]
        self.optimizer = optimizer_of(self.model, spec.settings.train)

    def form(self, kernels: Kernels | None, *, compiled: bool) -> tuple[Objective, dict[str, Choice]]:
        """The network again, with the same parameters, and the choices of its kernels."""
        if not isinstance(self.model, Model):
            return PeerLoss(self.model), {}
        run, train = _built_run(self.spec, self.device), self.spec.settings.train
        run.model.load_state_dict(self.model.state_dict(keep_vars=True), assign=True)
        run.model.to(self.device)  # constants that are in no state dict
        Masks(run.model).move_to(0, np.arange(len(self.inputs[0]), dtype=np.int64), self.device)
        if kernels is None:
            return run.objective, {}
        dtype, tokens = product_dtype(train.precision), self.samples * self.spec.task.positions(self.spec.settings)
        return run.objective, use_kernels(run.model, kernels, self.device, dtype, compiled=compiled, tokens=tokens)

    def prepared(self, objective: Objective) -> Prepared:
        """The parts of a form."""
        train = self.spec.settings.train

        def loss() -> Tensor:
            with compute_context(train.precision, self.device):
                total: Tensor = objective(*self.inputs)
            return total / self.inputs[-1].numel()

        def step() -> None:
            torch.autograd.backward(loss())
            if train.gradient_clipping > 0:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), train.gradient_clipping)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

        return Prepared(step, loss, objective.model)


def _built_run(spec: RunSpec, device: torch.device) -> TaskRun[Any]:
    run = run_class(spec.task)(spec, SimpleNamespace(train=None, validation=None), World(device))
    run.build()
    return run


def _noise(run: TaskRun[Any], samples: int, device: torch.device) -> tuple[Tensor, ...]:
    """Random inputs of a model, as in its `example`, and targets: whole numbers below the number of outputs, or
    distinct positions in a sequence (`Model.places`), and normal numbers. The same for all models of one shape."""
    model, generator = run.model, torch.Generator().manual_seed(0)
    dtype = parameter_dtype(run.spec.settings.train.precision)
    example, was_training = model.example(samples), model.training
    with torch.no_grad():  # in evaluation mode: hashing dropout masks takes most of a pass without storage
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


def peer_network(shape: Shape) -> nn.Module:
    """transformers' plain LLaMA: the control that our own baseline is not slow."""
    try:
        library = importlib.import_module(PEER)
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(f"{PEER} cannot be imported: {error}") from None
    ours = cast(Llama, model_of(shape.spec(LANGUAGE.networks["plain"])))
    config = llama_config(ours, shape.dimensions["length"]) | {"use_cache": False}
    return cast(nn.Module, library.LlamaForCausalLM(library.LlamaConfig.from_dict(config)))


class PeerLoss(Objective):
    """(tokens, targets), both [B, T] -> the summed loss, as transformers computes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, model.forward)

    def compile_model(self, *, keep_others: bool = False, captured: bool = False, fullgraph: bool = False) -> None:
        super().compile_model(keep_others=keep_others, captured=captured, fullgraph=fullgraph)

    def forward(self, *given: Tensor) -> Tensor:
        tokens_BT, targets_BT = given  # `shift_labels` are at the predicted positions; the loss is their mean
        found = self.passes(input_ids=tokens_BT, labels=tokens_BT, shift_labels=targets_BT)
        return cast(Tensor, found.loss) * targets_BT.numel()


# ---- decoding

PLAIN = ["plain", "plain-fused"]
PROMPT = 512  # tokens of every prompt: read by the prefill, and the context of a decode step
STEPS = 8  # consecutive decode steps that are timed
MOST_PREFILL_ON_CPU = 8192  # tokens in all; with more a CPU would read for minutes, and the reading is not timed


def decoding_cases(
    sizes: Sequence[str] | None, variants: Sequence[str], dtypes: Sequence[str] | None,
    batches: Sequence[int] | None, device: torch.device,
) -> Iterator[DecodeCase]:  # fmt: skip
    """A case for each size, type and batch size; None: the default ones."""
    there = sizes or LANGUAGE.default_sizes(device.type), dtypes or ["bf16"], batches or [1, 4, 16, 64]
    for size, dtype, batch in itertools.product(*there):
        yield DecodeCase(LANGUAGE.shapes[size], dtype, batch, variants, device)


@dataclass
class DecodeCase(Case):
    """Decode steps of language models of one shape, type and batch size, and the reading of their prompts."""

    shape: Shape
    dtype: str
    batch: int
    keys: Sequence[str]
    device: torch.device

    page = "decode"
    deterministic = False  # as `comt generate` runs

    def __post_init__(self) -> None:
        self.what = f"{self.shape.size} {self.dtype} batch {self.batch}"

    def build(self, key: str, shared: dict[Any, Any]) -> Built:
        graph, dtype = self.device.type == "cuda", DTYPES[self.dtype]
        generator, shape = torch.Generator().manual_seed(0), (self.batch, PROMPT)
        prompts_BT = torch.randint(0, self.shape.dimensions["vocabulary"], shape, generator=generator).to(self.device)
        model = cast(Llama, model_of(self.shape.spec(LANGUAGE.networks[key.partition("-")[0]])))
        materialise(model, self.device, seed=0)
        model.to(dtype).eval()
        tokens_B = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        if key.endswith("-fused"):
            choices = use_kernels(model, "fused", self.device, dtype, compiled=False, tokens=self.batch).values()
            if not any(choice.fused for choice in choices):
                raise Unavailable(f"nothing is fused here ({'; '.join(choice.reason for choice in choices)})")
        decoder = Decoder(model, self.batch, PROMPT + STEPS, graph=graph)

        @torch.no_grad()
        def prefill() -> None:
            decoder.cache.begin([PROMPT] * self.batch)
            decode_step(decoder.model, decoder.cache, prompts_BT)  # any number of tokens are one step

        def decode() -> None:
            decoder.cache.rewind(PROMPT)
            for _ in range(STEPS):
                decoder.step(tokens_B)

        parts: dict[str, Part] = {"prefill": prefill, "decode": decode}
        if not graph and self.batch * PROMPT > MOST_PREFILL_ON_CPU:
            del parts["prefill"]
        for part in parts.values():
            part()
        return Built(parts)

    def rows(self, ready: Mapping[str, Built], times: Mapping[tuple[str, str], Times]) -> list[Row]:
        decode = {name: times["decode", name] for name in ready}
        prefill = {name: times["prefill", name] for name in ready if ("prefill", name) in times}
        best, best_prefill = quickest(decode, PLAIN), quickest(prefill, PLAIN)
        shape, rows = f"{self.shape.network}-v{self.shape.dimensions['vocabulary']}", []
        for name in ready:
            step = replace(decode[name], seconds=tuple(second / STEPS for second in decode[name].seconds))
            row: Row = {"device": device_name(self.device), "size": self.shape.size, "shape": shape}
            row |= {"dtype": self.dtype, "batch": self.batch, "variant": name, "rounds": len(step.seconds)}
            row |= {"prompt": PROMPT, **step.columns("decode_ms")}
            row |= {"tokens_per_second": round(self.batch / step.undisturbed, 1), "best_plain": best}
            row |= compared("decode_ratio_to_plain", decode, name, best)
            row |= dict.fromkeys(("prefill_ms", "prefill_ms_p10", "prefill_ms_p90"))
            row |= prefill[name].columns("prefill_ms", 3) if prefill else {}
            row |= compared("prefill_ratio_to_plain", prefill, name, best_prefill)
            rows.append(row | {"graph": self.device.type == "cuda"})
        return rows
