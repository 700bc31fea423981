"""What is measured, read from `measured.yaml`: networks, their variants and goals. Torch-free.

The training steps of another task are an entry of `steps` there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from comt_cli.errors import UserError
from comt_cli.recipe.settings import Precision, RunSettings
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import task_of

NONDETERMINISTIC = "plain-compiled-nondeterministic"
"""The plain step with `train.deterministic: false`, on CUDA: how much the others' ratios owe to determinism."""
GRAPHS = "-graphs"
"""How the names of steps with `train.cuda_graphs` end, on CUDA: how much of a step is waiting for the host."""
BEAM = 4  # the usual width of a translator's
_DEVICES = {"cpu": re.compile(r".*, \d+ threads?"), "hopper": re.compile(r"NVIDIA H[12]00( 80GB HBM3)?")}
"""The devices that goals are about, as they call themselves."""

TABLES: dict[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("measured.yaml").read_text(encoding="utf-8"))
KERNELS = TABLES["kernels"]
OPS: dict[str, str] = KERNELS["ops"]  # the operations that kernels are timed on, in words
GATES: dict[str, str] = KERNELS["gates"]  # kinds of gates, and the method whose gates they are
DTYPES: list[str] = KERNELS["dtypes"]
DECODED: dict[str, dict[str, Any]] = TABLES["decoding"]  # pages of models that put tokens out one by one


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
            return f"{model['size']}-s{model['stem']}"
        layers = f"{built.encoder_layers}+{built.decoder_layers}" if hasattr(built, "encoder_layers") else built.layers
        return f"d{built.width}-f{built.ffn_width}-l{layers}-h{built.heads}"

    def settings_in(self, precision: Precision) -> RunSettings:
        # the rate, which no schedule changes here, only has to keep the weights finite
        train = {"steps": 1, "warmup_steps": 1, "batch_size": self.batch, "learning_rate": 1e-4}
        given = {"model": dict(self.model), "data": dict(self.data), "train": train | {"precision": precision}}
        settings: RunSettings = task_of(self.command).settings.model_validate(given)
        return settings

    @cached_property
    def settings(self) -> RunSettings:
        return self.settings_in("fp32")

    @property
    def dimensions(self) -> dict[str, int]:
        return task_of(self.command).dimensions(self.settings)

    @property
    def built(self) -> Any:
        return self.settings.model.shape()

    @property
    def units(self) -> int:
        """The tokens, or images, of a step."""
        return self.batch * task_of(self.command).positions(self.settings)

    def spec(self, method: Mapping[str, Any], precision: Precision = "fp32") -> RunSpec:
        names: dict[str, Any] = {"paper": "bench", "table": "step", "scale": "smoke", "row": "bench"}
        names |= {"column": self.size, "command": self.command, "data_fingerprint": "none"}
        return RunSpec(**names, seed=0, method=dict(method), settings=self.settings_in(precision))


def of_run(spec: RunSpec) -> Shape:
    """The network of a run on as many samples as go through it at once in one process."""
    settings, train = spec.settings, spec.settings.train
    batch = min(train.micro_batch_size or train.batch_size, train.batch_size)
    return Shape(spec.column, spec.command, settings.model.model_dump(), settings.data.model_dump(), batch)


@dataclass(frozen=True)
class Subject:
    """The training steps of one task; `measured.yaml` explains the fields that it has. `page`: their file's name."""

    page: str
    title: str
    command: str
    precision: Precision
    shapes: dict[str, Shape]
    gpu_sizes: Sequence[str]
    cpu_sizes: Sequence[str]
    networks: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, str]
    best_plain: Sequence[str]
    peers: Sequence[str] = ()
    captured: Sequence[str] = ()
    decides_kernels: bool = False
    counts_arithmetic: bool = False
    compares_compiled: bool = False
    notes: str = ""

    @property
    def unit(self) -> str:
        return task_of(self.command).unit.name

    @property
    def compiles(self) -> bool:
        """Whether a step can be compiled: all batches have one shape."""
        return "plain-compiled" in self.variants

    def variants_of(self, size: str) -> list[str]:
        return [name for name in self.variants if size in self.captured or not name.endswith(GRAPHS)]

    def is_optional(self, variant: str) -> bool:
        """Whether it is left out where it does not fit in a device's memory, rather than the batch be made smaller: so
        are other libraries', those for CUDA alone, and the uncompiled ones that no comparison needs."""
        eager = variant == "plain" or (variant.endswith("-eager") and "fused" not in variant)
        return self.is_peer(variant) or needs_cuda(variant) or (eager and variant not in self.best_plain)

    def is_peer(self, variant: str) -> bool:
        return variant.partition("-")[0] in self.peers

    def default_sizes(self, device_type: str) -> Sequence[str]:
        return self.gpu_sizes if device_type == "cuda" else self.cpu_sizes


def _subject(page: str, of: Mapping[str, Any]) -> Subject:
    fields = {name: value for name, value in of.items() if name not in ("sizes", "goals", "rules")}
    return Subject(
        page, shapes={size: Shape(size, of["command"], **shape) for size, shape in of["sizes"].items()}, **fields
    )


SUBJECTS = {page: _subject(page, of) for page, of in TABLES["steps"].items()}
LANGUAGE, TRANSLATION = SUBJECTS["step"], SUBJECTS["step-translation"]


def needs_cuda(variant: str) -> bool:
    """Whether a variant can be measured on CUDA devices alone."""
    return variant == NONDETERMINISTIC or variant.endswith(GRAPHS)


def subject_of(size: str) -> Subject:
    """The subject that has a size of that name; there is one."""
    return next(subject for subject in SUBJECTS.values() if size in subject.shapes)


def check_variants(there: Mapping[str, Iterable[str]], variants: Sequence[str]) -> None:
    """Raises `UserError` where a size has none of the variants; `there`: those that each has."""
    for size, names in there.items():
        if not {*names} & {*variants}:
            raise UserError(f"--variants: {size} has none of these", f"It has {', '.join(names)}.")


def goals_of(page: str, row: Mapping[str, Any]) -> dict[str, float | None]:
    """The goals of a row as they are now, by its columns: of the rules of its page those that fit it."""
    of = TABLES["steps"].get(page) or DECODED.get(page) or {}
    found: dict[str, float | None] = dict.fromkeys(of.get("goals", ()))
    for rule in of.get("rules", ()):
        where, goal = dict(rule["of"]), rule["goal"]
        if (device := where.pop("on", None)) and not _DEVICES[device].fullmatch(row["device"]):
            continue
        if where.pop("best", False):
            shape = subject_of(row["size"]).shapes.get(row["size"])
            if row["variant"] != row["best_plain"] or row["shape"] != str(shape):
                continue
        if not all(fnmatch(str(row[name]), str(pattern)) for name, pattern in where.items()):
            continue
        if "times" in rule:
            times = row.get(rule["times"])
            goal = {name: round(value * float(times), 4) for name, value in goal.items()} if times else {}
        found |= goal
    return found
