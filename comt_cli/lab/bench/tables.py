"""The tables of what is measured, read from `measured.yaml`: networks, their variants and goals. Torch-free.

The training steps of another task are an entry of `steps` there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from comt_cli.errors import UserError
from comt_cli.recipe.settings import Precision, RunSettings
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task, task_of

NONDETERMINISTIC = "plain-compiled-nondeterministic"
"""The plain step with `train.deterministic: false`, on CUDA: how much the others' ratios owe to determinism."""
GRAPHS = "-graphs"
"""How the names of steps with `train.cuda_graphs` end, on CUDA: how much of a step is waiting for the host."""
ARITHMETIC = "arithmetic_ratio_to_plain"
"""The column of a network's arithmetic over the plain one's: the larger of the ratios of their FLOPs and of their
parameters, since the extra matrices must at least be read."""
KINDS = ("step", "forward", "saved", "speed", "peer", "compiled", "compiled_peer")
"""Kinds of goals, in the order of their columns."""
BEAM = 4
"""The usual width of a translator's beam."""
_DECODE_GOAL, _DECODE_GOALS_ON_CPU = 1.05, {1: 1.10, 64: 1.05}
"""Of a decode step's ratio to the plain one's: on a GPU, and on a CPU by the number of texts."""
_TRANSLATION_GOALS = {"plain-uncached": 2.0, "marian": 1.0}
_HOPPER = re.compile(r"NVIDIA H[12]00( 80GB HBM3)?")
"""The devices, as they call themselves, that the goals for a GPU are about."""
_PROCESSOR = re.compile(r", \d+ threads?$")
"""How the name of a processor ends in the rows."""

TABLES: dict[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("measured.yaml").read_text(encoding="utf-8"))
KERNELS = TABLES["kernels"]
OPS: dict[str, str] = KERNELS["ops"]
"""The operations that kernels are timed on, in words."""
GATES: dict[str, str] = KERNELS["gates"]
"""Kinds of gates, and the method whose gates they are."""
DTYPES: list[str] = KERNELS["dtypes"]


@dataclass(frozen=True)
class Shape:
    """A network of the task that `command` trains, on batches of `batch` samples.

    `size` is its name here; `model` and `data` are sections of a recipe.
    """

    size: str
    command: str
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    batch: int

    def __str__(self) -> str:
        """The network, what the data gives it, the batch, and how long or wide a sample is: `...-v4096-b16x128`."""
        *others, (_, extent) = self.dimensions.items()
        return f"{self.network}{''.join(f'-{name[0]}{n}' for name, n in others)}-b{self.batch}x{extent}"

    @property
    def network(self) -> str:
        """The network's widths and depth in rows: `d256-f688-l4-h4`, `resnet18-s3x3`."""
        built, model = self.built, self.model
        if "stem" in model:
            width = f"-w{model['width']}" if "width" in model else ""
            blocks = f"-l{'.'.join(map(str, model['blocks']))}" if "blocks" in model else ""
            return f"{model['size']}{width}{blocks}-s{model['stem']}"
        layers = f"{built.encoder_layers}+{built.decoder_layers}" if hasattr(built, "encoder_layers") else built.layers
        return f"d{built.width}-f{built.ffn_width}-l{layers}-h{built.heads}"

    @property
    def task(self) -> Task[Any]:
        """What the network is trained to do."""
        return task_of(self.command)

    @cached_property
    def settings(self) -> RunSettings:
        """The settings of its training in fp32."""
        return self._settings("fp32")

    def _settings(self, precision: Precision) -> RunSettings:
        # the rate, which no schedule changes here, only has to keep the weights finite
        train = {"steps": 1, "warmup_steps": 1, "batch_size": self.batch, "learning_rate": 1e-4}
        given = {"model": dict(self.model), "data": dict(self.data), "train": train | {"precision": precision}}
        settings: RunSettings = self.task.settings.model_validate(given)
        return settings

    @property
    def dimensions(self) -> dict[str, int]:
        """What the data gives the model."""
        return self.task.dimensions(self.settings)

    @property
    def built(self) -> Any:
        """The widths and depth that the network is built from."""
        return self.settings.model.shape()

    @property
    def units(self) -> int:
        """What speeds count, in a step: tokens, images."""
        return self.batch * self.task.positions(self.settings)

    def spec(self, method: Mapping[str, Any], precision: Precision = "fp32") -> RunSpec:
        """A run of it with a method."""
        return RunSpec(
            paper="bench",
            table="step",
            command=self.command,
            scale="smoke",
            row="bench",
            column=self.size,
            seed=0,
            method=dict(method),
            settings=self._settings(precision),
            data_fingerprint="none",
        )


def of_run(spec: RunSpec) -> Shape:
    """The network of a run on as many samples as go through it at once in one process."""
    settings, train = spec.settings, spec.settings.train
    batch = min(train.micro_batch_size or train.batch_size, train.batch_size)
    return Shape(spec.column, spec.command, settings.model.model_dump(), settings.data.model_dump(), batch)


@dataclass(frozen=True)
class Network:
    """A network measured in several variants: its method, its meaning in words, and the operations that are fused in
    it; None where nothing in it has a kernel."""

    method: Mapping[str, Any]
    meaning: str
    fused: str | None = None


@dataclass(frozen=True)
class Subject:
    """The training steps of one task; `measured.yaml` explains the fields that it has.

    Attributes:
        page: the name of its rows' file; `title` its heading, `stage` a part of `comt bench all`.
        networks: `plain` is what the others are compared with. `peers`: other libraries', in words.
        compiles: a step can be compiled: all batches have one shape.
        fused_eager: fused operations are measured in an uncompiled network too.
        plain_counts_eager: an uncompiled plain variant may be the best plain one.
        decides_kernels: `kernels: auto` reads these rows, which then name the kind of device.
        counts_arithmetic: the rows have `ARITHMETIC`.
        notes: sentences of its page.
    """

    page: str
    title: str
    stage: str
    command: str
    precision: Precision
    shapes: dict[str, Shape]
    gpu_sizes: Sequence[str]
    cpu_sizes: Sequence[str]
    networks: Mapping[str, Network]
    peers: Mapping[str, str] = field(default_factory=dict)
    host_bound: Sequence[str] = ()
    captured: Sequence[str] = ()
    compiles: bool = True
    fused_eager: bool = False
    plain_counts_eager: bool = True
    decides_kernels: bool = False
    counts_arithmetic: bool = False
    goals: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""

    @property
    def unit(self) -> str:
        """What its speeds count: tokens, images."""
        return task_of(self.command).unit.name

    @property
    def variants(self) -> dict[str, str]:
        """What is measured, by name, in words."""
        found: dict[str, str] = {}
        networks = {name: Network({}, network) for name, network in self.peers.items()} | {**self.networks}
        for name, network in networks.items():
            found[name if name in self.peers else self._eager(name)] = network.meaning
            if self.compiles:
                found[f"{name}-compiled"] = "the same under torch.compile"
            if network.fused is None:
                continue
            words = f"the same with {network.fused}"
            if self.fused_eager:
                found[f"{name}-fused-eager"] = f"{words}, uncompiled" if self.compiles else words
                words = "the same"
            if self.compiles:
                found[f"{name}-fused"] = f"{words}, the rest compiled"
            if name == "plain" and self.compiles:
                found[NONDETERMINISTIC] = "our compiled plain network, in kernels that add in any order (CUDA)"
            if self.captured:
                captured = f"{name}-{'compiled' if name == 'plain' else 'fused'}"
                found[f"{captured}{GRAPHS}"] = f"`{captured}` in CUDA graphs"
        return found

    def variants_of(self, size: str) -> list[str]:
        """The names of those that are measured at a size."""
        return [name for name in self.variants if size in self.captured or not name.endswith(GRAPHS)]

    @staticmethod
    def _eager(network: str) -> str:
        return network if network == "plain" else f"{network}-eager"

    @property
    def best_plain(self) -> list[str]:
        """The quickest of these is what steps with gates are measured against: on a CPU it need not be compiled."""
        plain = [name for name in self.variants if name.partition("-")[0] == "plain" and name != NONDETERMINISTIC]
        return plain if self.plain_counts_eager else [name for name in plain if name != "plain"]

    @property
    def optional(self) -> set[str]:
        """The variants left out where they do not fit in a device's memory; for the others the batch is made smaller.
        They are other libraries', those for CUDA alone, and the uncompiled ones but those the comparison needs."""
        eager = {self._eager(name) for name in self.networks} - {*self.best_plain}
        return eager | {name for name in self.variants if self.is_peer(name) or needs_cuda(name)}

    def is_peer(self, variant: str) -> bool:
        """Whether a variant is another library's network."""
        return variant.partition("-")[0] in self.peers

    def default_sizes(self, device_type: str) -> Sequence[str]:
        """The sizes that are measured on a kind of device unless others are named."""
        return [*dict.fromkeys((*self.gpu_sizes, *self.host_bound))] if device_type == "cuda" else self.cpu_sizes

    def default_precisions(self, device_type: str) -> list[Precision]:
        """The same of precisions."""
        return [self.precision] if device_type == "cuda" else ["fp32", self.precision]

    @property
    def goal_columns(self) -> dict[str, str]:
        """The columns of the goals that it has, by their kinds."""
        by_name = [of for part in ("cpu", "gpu") for each in self.goals.get(part, {}).values() for of in each.values()]
        there = {kind for of in by_name for kind in of} | {*self.goals}
        there |= {"step"} if "beyond_arithmetic" in self.goals else set()
        names = {"step": "step_ratio", "forward": "forward_ratio", "saved": "saved_ratio"}
        names |= {"compiled": "step_ratio_to_plain_compiled", "compiled_peer": "least_step_ratio"}
        names |= {"speed": f"{self.unit}_per_second", "peer": f"step_ratio_to_{next(iter(self.peers), '')}"}
        return {kind: f"goal_{names[kind]}" for kind in KINDS if kind in there}

    def goals_of(self, row: Mapping[str, Any], device_type: str = "cpu") -> dict[str, float | None]:
        """The goals of a row as they are now, by its columns; `device_type` is the kind of device it is of."""
        goals, device, variant = self.goals, _goal_device(device_type, row["device"]), row["variant"]
        base, _, how = variant.partition("-")
        name = f"{base}-fused" if how in ("fused-eager", "fused-graphs") else variant
        is_best = variant == row.get("best_plain") and row["shape"] == str(self.shapes.get(row["size"]))
        found: dict[str, float] = {}
        is_on_cpu, is_on_gpu = _PROCESSOR.search(device), _HOPPER.fullmatch(device)
        if is_on_cpu:
            found |= goals.get("cpu", {}).get(row["precision"], {}).get(name, {})
            if "beyond_arithmetic" in goals and row.get(ARITHMETIC) and base != "plain" and how == "compiled":
                found["step"] = round(goals["beyond_arithmetic"] * float(row[ARITHMETIC]), 4)
        elif is_on_gpu and row["precision"].startswith("bf16"):
            found |= goals.get("gpu", {}).get(row["size"], {}).get(name, {})
            if is_best and row["size"] in goals.get("speed", {}):
                found["speed"] = goals["speed"][row["size"]]
        else:
            is_best = False
        if is_best and "peer" in goals:
            found["peer"] = goals["peer"]
        return {column: found.get(kind) for kind, column in self.goal_columns.items()}


@dataclass(frozen=True)
class Decoded:
    """A subject whose models put tokens out one by one: the page of its rows, its variants in words, and the type and
    batch sizes that are measured unless others are named."""

    subject: Subject
    page: str
    variants: Mapping[str, str]
    dtype: str
    batches: Sequence[int]

    def goals_of(self, row: Mapping[str, Any], device_type: str = "cpu") -> dict[str, float | None]:
        """The goals of a row as they are now, by its columns. Of a decode step they are asked of fused gated models, on
        an H100 or H200 in bf16, and on a CPU; of translating: without a cache, and by another library, a search of the
        usual width takes at least so many times as long."""
        if "beam" in row:
            found = _TRANSLATION_GOALS.get(row["variant"]) if int(row["beam"]) == BEAM else None
            return {"goal_ratio_to_plain": found}
        base, _, how = row["variant"].partition("-")
        device, goal = _goal_device(device_type, row["device"]), None
        if how == "fused" and base != "plain":
            if _PROCESSOR.search(device):
                goal = _DECODE_GOALS_ON_CPU.get(int(row["batch"]))
            elif _HOPPER.fullmatch(device) and row["dtype"] == "bf16":
                goal = _DECODE_GOAL
        return {"goal_decode_ratio": goal}


def _goal_device(device_type: str, name: str) -> str:
    """`name` where goals may be asked of the device; Apple's MPS, which has its processor's name, has none."""
    return name if device_type in ("cpu", "cuda") else ""


def _subject(page: str, of: dict[str, Any]) -> Subject:
    shapes = {size: Shape(size, of["command"], **shape) for size, shape in of.pop("sizes").items()}
    networks = {name: Network(**network) for name, network in of.pop("networks").items()}
    return Subject(page, shapes=shapes, networks=networks, **of)


_BY_PAGE = {page: _subject(page, dict(of)) for page, of in TABLES["steps"].items()}
SUBJECTS = tuple(_BY_PAGE.values())
LANGUAGE, IMAGES, TRANSLATION = (_BY_PAGE[page] for page in ("step", "step-images", "step-translation"))
DECODED = {
    page: Decoded(page=page, **{**of, "subject": _BY_PAGE[of["subject"]]}) for page, of in TABLES["decoding"].items()
}


def needs_cuda(variant: str) -> bool:
    """Whether a variant can be measured on CUDA devices alone."""
    return variant == NONDETERMINISTIC or variant.endswith(GRAPHS)


def subject_of(size: str) -> Subject:
    """The subject that has a size of that name; there is one."""
    return next(subject for subject in SUBJECTS if size in subject.shapes)


def check_variants(there: Mapping[str, Iterable[str]], variants: Sequence[str]) -> None:
    """Raises `UserError` where a size has none of the variants; `there`: those that each has."""
    for size, names in there.items():
        if not {*names} & {*variants}:
            raise UserError(
                f"--variants {','.join(variants)}: of {size} there are no such", f"It has {', '.join(names)}."
            )


def halved(shape: Shape) -> Shape:
    """The same with half the batch."""
    return replace(shape, batch=shape.batch // 2)
