"""The tables of what is measured, read from `measured.yaml`: networks, their variants and goals. Torch-free.

The training steps of another task are an entry of `steps` there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from comt_cli.errors import UserError
from comt_cli.lab.bench.shapes import Shape
from comt_cli.recipe.settings import Precision
from comt_cli.tasks import task_of

NONDETERMINISTIC = "plain-compiled-nondeterministic"
"""The plain step with `train.deterministic: false`, on CUDA: how much the others' ratios owe to determinism."""
GRAPHS = "-graphs"
"""How the names of steps with `train.cuda_graphs` end, on CUDA: how much of a step is waiting for the host."""
ARITHMETIC = "arithmetic_ratio_to_plain"
"""The column of a network's arithmetic over the plain one's: the larger of the ratios of their FLOPs and of their
parameters, since the extra matrices must at least be read."""
KINDS = ("step", "forward", "saved", "speed", "peer", "compiled", "compiled_peer")
"""Kinds of goals, in the order of their columns."""
DECODE_GOAL, DECODE_GOALS_ON_CPU = 1.05, {1: 1.10, 64: 1.05}
"""Of a decode step's ratio to the plain one's: on a GPU, and on a CPU by the number of texts."""
BEAM = 4
"""The usual width of a translator's beam."""
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
class Network:
    """A network measured in several variants: its method, its meaning in words, and the operations that are fused in
    it; None where nothing in it has a kernel."""

    method: Mapping[str, Any]
    meaning: str
    fused: str | None = None


@dataclass(frozen=True)
class Goals:
    """Goals of a subject's variants (`measured.yaml` explains them)."""

    gpu: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    cpu: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    speed: Mapping[str, float] = field(default_factory=dict)
    peer: float | None = None
    beyond_arithmetic: float | None = None

    @property
    def kinds(self) -> list[str]:
        """The kinds there are goals of, in the order of their columns."""
        named = {kind for part in (self.cpu, self.gpu) for of in part.values() for each in of.values() for kind in each}
        named |= {"speed"} if self.speed else set()
        named |= {"peer"} if self.peer is not None else set()
        named |= {"step"} if self.beyond_arithmetic is not None else set()
        return [kind for kind in KINDS if kind in named]

    def of(
        self, variant: str, size: str, device: str, precision: str, *, is_best_plain: bool, arithmetic: float | None
    ) -> dict[str, float]:
        """The goals of `transponder-fused`, ... at a size, on a device of that name. `is_best_plain`: it is the
        quickest plain variant, on the whole batch. `arithmetic`: the ratio of its arithmetic, where that is known."""
        base, _, how = variant.partition("-")
        name = f"{base}-fused" if how in ("fused-eager", "fused-graphs") else variant
        if _PROCESSOR.search(device):
            found = dict(self.cpu.get(precision, {}).get(name, {}))
            if self.beyond_arithmetic is not None and arithmetic is not None and base != "plain" and how == "compiled":
                found["step"] = round(self.beyond_arithmetic * arithmetic, 4)
        elif _HOPPER.fullmatch(device) and precision.startswith("bf16"):
            found = dict(self.gpu.get(size, {}).get(name, {}))
            if is_best_plain and size in self.speed:
                found["speed"] = self.speed[size]
        else:
            return {}
        return found | ({"peer": self.peer} if is_best_plain and self.peer is not None else {})


@dataclass(frozen=True)
class Subject:
    """The training steps of one task.

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
    asked: Goals = field(default_factory=Goals)
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
        on_cuda = tuple(dict.fromkeys((*self.gpu_sizes, *self.host_bound)))
        return on_cuda if device_type == "cuda" else self.cpu_sizes

    def default_precisions(self, device_type: str) -> list[Precision]:
        """The same of precisions."""
        return [self.precision] if device_type == "cuda" else ["fp32", self.precision]

    @property
    def goal_columns(self) -> dict[str, str]:
        """The columns of its goals, by their kinds."""
        names = {"step": "step_ratio", "forward": "forward_ratio", "saved": "saved_ratio"}
        names |= {"compiled": "step_ratio_to_plain_compiled", "compiled_peer": "least_step_ratio"}
        names |= {"speed": f"{self.unit}_per_second", "peer": f"step_ratio_to_{next(iter(self.peers), '')}"}
        return {kind: f"goal_{names[kind]}" for kind in self.asked.kinds}

    def goals(self, row: Mapping[str, Any], device_type: str = "cpu") -> dict[str, float | None]:
        """The goals of a row as they are now, by its columns; `device_type` is the kind of device it is of."""
        shape = self.shapes.get(row["size"])
        found = self.asked.of(
            row["variant"],
            row["size"],
            goal_device(device_type, row["device"]),
            row["precision"],
            is_best_plain=row["variant"] == row.get("best_plain") and row["shape"] == str(shape),
            arithmetic=float(row[ARITHMETIC]) if row.get(ARITHMETIC) else None,
        )
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


def _subject(page: str, of: dict[str, Any]) -> Subject:
    shapes = {size: Shape(size, of["command"], **shape) for size, shape in of.pop("sizes").items()}
    networks = {name: Network(**network) for name, network in of.pop("networks").items()}
    return Subject(page, shapes=shapes, networks=networks, asked=Goals(**of.pop("goals", {})), **of)


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


def check_variants(
    sizes: Iterable[str], variants: Collection[str], of: Mapping[str, Collection[str]] | None = None
) -> None:
    """Raises `UserError` where a size has none of the variants: those of its training step, or those `of` it."""
    for size in sizes:
        there = subject_of(size).variants_of(size) if of is None else of[size]
        if not set(there) & set(variants):
            raise UserError(
                f"--variants {','.join(variants)}: of {size} there are no such", f"It has {', '.join(there)}."
            )


def goal_device(device_type: str, name: str) -> str:
    """`name` where goals may be asked of the device; Apple's MPS, which has its processor's name, has none."""
    return name if device_type in ("cpu", "cuda") else ""


def decode_goals(row: Mapping[str, Any], device_type: str = "cpu") -> dict[str, float | None]:
    """The goals of a row of decode.csv as they are now, by its columns: asked of fused gated models, on an H100 or
    H200 in bf16, and on a CPU."""
    base, _, how = row["variant"].partition("-")
    device, found = goal_device(device_type, row["device"]), None
    if how == "fused" and base != "plain":
        if _PROCESSOR.search(device):
            found = DECODE_GOALS_ON_CPU.get(int(row["batch"]))
        elif _HOPPER.fullmatch(device) and row["dtype"] == "bf16":
            found = DECODE_GOAL
    return {"goal_decode_ratio": found}


def translation_goals(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The goals of a row of decode-translation.csv as they are now: without a cache, and by another library, a search
    of the usual width takes at least so many times as long."""
    found = _TRANSLATION_GOALS.get(row["variant"]) if int(row["beam"]) == BEAM else None
    return {"goal_ratio_to_plain": found}
