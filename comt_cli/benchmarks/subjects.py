"""The tasks whose training steps are measured: on which networks, with which methods, beside what. Torch-free.

Another task is an entry of `SUBJECTS` with its sizes; whatever else is left out has a default that measures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comt_cli.benchmarks.goals import NOTHING, OF_LLAMAS, OF_RESNETS, Asked, goal_device
from comt_cli.benchmarks.shapes import LLAMAS, RESNETS, Shape
from comt_cli.errors import UserError
from comt_cli.recipe.settings import Precision
from comt_cli.tasks import task_of

FUSED = "our fused operations"


@dataclass(frozen=True)
class Base:
    """A network whose step is measured in several variants: its method, what it is in words, and what is fused."""

    method: Mapping[str, Any]
    meaning: str
    fused: str = FUSED


@dataclass(frozen=True)
class Subject:
    """The training steps of one task.

    Attributes:
        page: what its rows' file is called; `title` its heading, `stage` a part of `comt bench all`.
        shapes: the networks by size; `gpu_sizes` and `cpu_sizes` are measured on a device unless others are named.
        bases: the networks with their methods; `plain` is what the others are compared with.
        precision: that of the recipes, measured on every device; a CPU measures fp32 too.
        peer: the library whose network is measured beside them, and what that network is.
        fused_eager: our fused operations are measured in an uncompiled network too.
        plain_counts_eager: an uncompiled plain variant may be the best plain one.
        decides_kernels: `kernels: auto` reads these rows, which then name the kind of device.
        said: sentences of its page.
    """

    page: str
    title: str
    stage: str
    command: str
    shapes: Mapping[str, Shape]
    gpu_sizes: tuple[str, ...]
    cpu_sizes: tuple[str, ...]
    bases: Mapping[str, Base]
    precision: Precision
    peer: tuple[str, str] | None = None
    fused_eager: bool = False
    plain_counts_eager: bool = True
    decides_kernels: bool = False
    asked: Asked = NOTHING
    said: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What its speeds count: tokens, images."""
        return task_of(self.command).unit.name

    @property
    def variants(self) -> dict[str, str]:
        """What is measured, by name, in words."""
        compiled = "the same under torch.compile"
        found: dict[str, str] = {}
        if self.peer is not None:
            library, network = self.peer
            found |= {library: network, f"{library}-compiled": compiled}
        for name, base in self.bases.items():
            found |= {self._eager(name): base.meaning, f"{name}-compiled": compiled}
            fused = f"the same with {base.fused}"
            if self.fused_eager:
                found[f"{name}-fused-eager"] = f"{fused}, uncompiled"
                fused = "the same"
            found[f"{name}-fused"] = f"{fused}, the rest compiled"
        return found

    @staticmethod
    def _eager(base: str) -> str:
        return base if base == "plain" else f"{base}-eager"

    @property
    def best_plain(self) -> list[str]:
        """The quickest of these is what steps with gates are measured against: on a CPU it need not be compiled."""
        plain = [name for name in self.variants if name.partition("-")[0] == "plain"]
        return plain if self.plain_counts_eager else [name for name in plain if name != "plain"]

    @property
    def optional(self) -> set[str]:
        """The variants that are left out where they do not fit in a device's memory; for the others the batch is made
        smaller. They are the library's, and the uncompiled ones but those that the comparison needs."""
        eager = {self._eager(name) for name in self.bases} - {*self.best_plain}
        return eager | {name for name in self.variants if self.is_peer(name)}

    def is_peer(self, variant: str) -> bool:
        """Whether a variant is the other library's network."""
        return self.peer is not None and variant.partition("-")[0] == self.peer[0]

    def default_sizes(self, device_type: str) -> Sequence[str]:
        """The sizes that are measured on a kind of device unless others are named."""
        return self.gpu_sizes if device_type == "cuda" else self.cpu_sizes

    def default_precisions(self, device_type: str) -> list[Precision]:
        """The same of precisions."""
        return [self.precision] if device_type == "cuda" else ["fp32", self.precision]

    @property
    def goal_columns(self) -> dict[str, str]:
        """The columns of its goals, by what they are about."""
        names = {"step": "step_ratio", "forward": "forward_ratio", "saved": "saved_ratio", "mfu": "mfu"}
        return {kind: f"goal_{names.get(kind, f'{self.unit}_per_second')}" for kind in self.asked.kinds}

    def goals(self, row: Mapping[str, Any], device_type: str = "cpu") -> dict[str, float | None]:
        """The goals of a row as they are now, by its columns; `device_type` is the kind of device it is of."""
        shape = self.shapes.get(row["size"])
        whole = row["variant"] == row["best_plain"] and row["shape"] == str(shape)
        device = goal_device(device_type, row["device"])
        found = self.asked.of(row["variant"], row["size"], device, row["precision"], is_best_plain=whole)
        return {self.goal_columns[kind]: found.get(kind) for kind in self.asked.kinds}


_EAGER = "the reference path, uncompiled"
_BATCH_NORM = f"{FUSED} (batch norm with gate, addition and ReLU)"

LANGUAGE = Subject(
    page="step",
    title="Training step",
    stage="training step",
    command="train-lm",
    shapes=LLAMAS,
    gpu_sizes=("60m", "130m", "250m", "350m", "1b"),
    cpu_sizes=("bench",),
    bases={
        "plain": Base(
            {"name": "pre-ln"},
            "our LLaMA, Pre-LN, no gates, uncompiled",
            f"{FUSED} (rotation, SwiGLU, addition and norm)",
        ),
        "comt": Base({"name": "comt"}, f"CoMT, h = 2, at all seven projections: {_EAGER}"),
        "transponder": Base({"name": "transponder"}, f"Transponder, r = 8, at all seven projections: {_EAGER}"),
    },
    precision="bf16-pure",
    peer=("transformers", "LlamaForCausalLM of the transformers library, as it comes"),
    plain_counts_eager=False,
    asked=OF_LLAMAS,
)
IMAGES = Subject(
    page="step-images",
    title="Training step of ResNets",
    stage="image training step",
    command="train-resnet",
    shapes=RESNETS,
    gpu_sizes=("resnet18", "resnet18-b64", "resnet50", "resnet152", "resnet50-224"),
    cpu_sizes=("resnet18-b32",),
    bases={
        "plain": Base({"name": "addition"}, f"our ResNet, no modulators: {_EAGER}", _BATCH_NORM),
        "window": Base(
            {"name": "comt-sliding-window", "ratio": 64},
            f"CoMT's sliding window, C_in // 64 filters, at the convolutions of all blocks: {_EAGER}",
            _BATCH_NORM,
        ),
        "pixel": Base(
            {"name": "comt-pixel", "hidden": 2},
            f"CoMT's pixel modulator, h = 2, at the norms of all blocks: {_EAGER}",
            _BATCH_NORM,
        ),
    },
    precision="bf16-mixed",
    peer=("torchvision", "torchvision's ResNet of that name, with this stem, uncompiled"),
    fused_eager=True,
    decides_kernels=True,
    asked=OF_RESNETS,
    said=(
        "Images lie ready, channels last; augmentation is not timed.",
        "A shape ends in classes, images and their width: c10-b512x32.",
    ),
)
SUBJECTS = (LANGUAGE, IMAGES)


def subject_of(size: str) -> Subject:
    """The subject that has a size of that name; there is one."""
    return next(subject for subject in SUBJECTS if size in subject.shapes)


def check_variants(sizes: Iterable[str], variants: Collection[str]) -> None:
    """Raises `UserError` where a size has none of the variants."""
    for size in sizes:
        there = subject_of(size).variants
        if not set(there) & set(variants):
            raise UserError(
                f"--variants {','.join(variants)}: of {size} there are no such", f"It has {', '.join(there)}."
            )
