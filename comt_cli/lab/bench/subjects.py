"""The tasks whose training steps are measured: on which networks, with which methods, beside what. Torch-free.

Another task is an entry of `SUBJECTS` with its sizes; whatever else is left out has a default that measures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comt_cli.errors import UserError
from comt_cli.lab.bench.goals import (
    NOTHING,
    OF_BERTS,
    OF_CONNECTIONS,
    OF_LLAMAS,
    OF_RESNETS,
    OF_TRANSLATORS,
    Asked,
    goal_device,
)
from comt_cli.lab.bench.names import DECODE_VARIANTS, TRANSLATION_VARIANTS
from comt_cli.lab.bench.shapes import BERTS, CAPTIONERS, CONNECTED, LLAMAS, RESNETS, TRANSLATORS, Shape
from comt_cli.recipe.settings import Precision
from comt_cli.tasks import task_of

FUSED = "our fused operations"
NONDETERMINISTIC = "plain-compiled-nondeterministic"
"""The plain step with `train.deterministic: false`, on CUDA: how much the others' ratios owe to determinism, which all
of them run under."""
GRAPHS = "-graphs"
"""How the names of steps with `train.cuda_graphs` end, on CUDA: how much of a step is waiting for the host."""

ARITHMETIC = "arithmetic_ratio_to_plain"
"""The column of a network's arithmetic beside the plain one's: the larger of the ratios of their FLOPs and of their
parameters, since the extra matrices must at least be read."""


@dataclass(frozen=True)
class Base:
    """A network whose step is measured in several variants: its method, what it is in words, and what is fused; None
    where nothing in it has a kernel."""

    method: Mapping[str, Any]
    meaning: str
    fused: str | None = FUSED


@dataclass(frozen=True)
class Subject:
    """The training steps of one task.

    Attributes:
        page: what its rows' file is called; `title` its heading, `stage` a part of `comt bench all`.
        shapes: the networks by size; `gpu_sizes` and `cpu_sizes` are measured on a device unless others are named.
        host_bound: sizes whose batches are so small that a GPU may wait for the host; `captured`: all sizes at which
            steps in CUDA graphs are measured. They keep their memory while other variants are timed.
        bases: the networks with their methods; `plain` is what the others are compared with.
        precision: that of the recipes, measured on every device; a CPU measures fp32 too.
        peers: other libraries' networks that are measured beside them, by name, and what these are.
        compiles: a step can be compiled: all batches have one shape.
        fused_eager: our fused operations are measured in an uncompiled network too.
        plain_counts_eager: an uncompiled plain variant may be the best plain one.
        decides_kernels: `kernels: auto` reads these rows, which then name the kind of device.
        counts_arithmetic: the rows have `ARITHMETIC`, which says what of a step is more than extra matrices.
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
    peers: Mapping[str, str] = field(default_factory=dict)
    host_bound: tuple[str, ...] = ()
    captured: tuple[str, ...] = ()
    compiles: bool = True
    fused_eager: bool = False
    plain_counts_eager: bool = True
    decides_kernels: bool = False
    counts_arithmetic: bool = False
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
        networks = {name: Base({}, network, None) for name, network in self.peers.items()} | {**self.bases}
        for name, base in networks.items():
            found[name if name in self.peers else self._eager(name)] = base.meaning
            if self.compiles:
                found[f"{name}-compiled"] = compiled
            if base.fused is None:
                continue
            said = f"the same with {base.fused}"
            if self.fused_eager:
                found[f"{name}-fused-eager"] = f"{said}, uncompiled" if self.compiles else said
                said = "the same"
            if self.compiles:
                found[f"{name}-fused"] = f"{said}, the rest compiled"
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
    def _eager(base: str) -> str:
        return base if base == "plain" else f"{base}-eager"

    @property
    def best_plain(self) -> list[str]:
        """The quickest of these is what steps with gates are measured against: on a CPU it need not be compiled."""
        plain = [name for name in self.variants if name.partition("-")[0] == "plain" and name != NONDETERMINISTIC]
        return plain if self.plain_counts_eager else [name for name in plain if name != "plain"]

    @property
    def optional(self) -> set[str]:
        """The variants that are left out where they do not fit in a device's memory; for the others the batch is made
        smaller. They are other libraries', the nondeterministic one, those in CUDA graphs, and the uncompiled ones but
        those that the comparison needs."""
        eager = {self._eager(name) for name in self.bases} - {*self.best_plain}
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
        """The columns of its goals, by what they are about."""
        names = {"step": "step_ratio", "forward": "forward_ratio", "saved": "saved_ratio"}
        if self.peers:
            names["peer"] = f"step_ratio_to_{next(iter(self.peers))}"
        names |= {"compiled": "step_ratio_to_plain_compiled", "compiled_peer": "least_step_ratio"}
        return {kind: f"goal_{names.get(kind, f'{self.unit}_per_second')}" for kind in self.asked.kinds}

    def goals(self, row: Mapping[str, Any], device_type: str = "cpu") -> dict[str, float | None]:
        """The goals of a row as they are now, by its columns; `device_type` is the kind of device it is of."""
        shape = self.shapes.get(row["size"])
        whole = row["variant"] == row.get("best_plain") and row["shape"] == str(shape)
        device = goal_device(device_type, row["device"])
        arithmetic = float(row[ARITHMETIC]) if row.get(ARITHMETIC) else None
        found = self.asked.of(
            row["variant"],
            row["size"],
            device,
            row["precision"],
            is_best_plain=whole,
            arithmetic=arithmetic,
        )
        return {self.goal_columns[kind]: found.get(kind) for kind in self.asked.kinds}


_EAGER = "the reference path, uncompiled"
_PRODUCTS = f"{FUSED} (the gates of a product in one pass)"
_SAS = Base({"name": "sas"}, "SAS at all junctions, which adds products of its own", None)
_TRANSPONDER = Base(
    {"name": "transponder", "residual": "post-norm"},
    "Post-LN with Transponder, r = 8, at the projections of all branches",
    _PRODUCTS,
)
_BATCH_NORM = f"{FUSED} (batch norm with gate, addition and ReLU)"


def _of_pytorch(meaning: str, name: str, **options: Any) -> Base:
    return Base({"name": name, **options}, f"{meaning}: PyTorch's operations, uncompiled", None)


_PLAIN_LLAMA = Base(
    {"name": "pre-ln"}, "our LLaMA, Pre-LN, no gates, uncompiled", f"{FUSED} (rotation, SwiGLU, addition and norm)"
)

LANGUAGE = Subject(
    page="step",
    title="Training step",
    stage="training step",
    command="train-lm",
    shapes=LLAMAS,
    gpu_sizes=("60m", "130m", "250m", "350m", "1b"),
    host_bound=("60m-b64",),
    captured=("60m-b64", "60m", "350m", "1b"),
    cpu_sizes=("bench",),
    bases={
        "plain": _PLAIN_LLAMA,
        "comt": Base({"name": "comt"}, f"CoMT, h = 2, at all seven projections: {_EAGER}"),
        "transponder": Base({"name": "transponder"}, f"Transponder, r = 8, at all seven projections: {_EAGER}"),
    },
    precision="bf16-pure",
    peers={"transformers": "LlamaForCausalLM of the transformers library, as it comes"},
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
    host_bound=("resnet18-b64",),
    captured=("resnet18-b64",),
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
    peers={"torchvision": "torchvision's ResNet of that name, with this stem, uncompiled"},
    fused_eager=True,
    decides_kernels=True,
    asked=OF_RESNETS,
    said=(
        "Images lie ready, channels last; augmentation is not timed.",
        "A shape ends in classes, images and their width: c10-b512x32.",
    ),
)
TRANSLATION = Subject(
    page="step-translation",
    title="Training step of translators",
    stage="translation step",
    command="train-mt",
    shapes=TRANSLATORS,
    gpu_sizes=("base",),
    cpu_sizes=("mt-bench",),
    bases={
        "plain": Base({"name": "post-ln"}, "our encoder-decoder, Post-LN, no gates", None),
        "sas": _SAS,
        "grc": Base({"name": "grc"}, "GRC at all junctions: a gate a channel, reading the skip path", None),
        "comt": Base(
            {"name": "comt", "residual": "post-norm"},
            "Post-LN with CoMT, h = 2, at the projections of all branches",
            _PRODUCTS,
        ),
        "transponder": _TRANSPONDER,
    },
    precision="bf16-mixed",
    peers={
        "torch": "the same network of torch.nn.Transformer's layers, whose loss has the logits of all tokens at once",
        "marian": "MarianMTModel of the transformers library, the same sizes, with that loss",
    },
    compiles=False,
    fused_eager=True,
    asked=OF_TRANSLATORS,
    said=(
        "Nothing is compiled: in training every batch of a translator has another shape. All have dropout on",
        "embeddings and branches. `FLOPs / plain` is how much more arithmetic a network has; what `step / best plain`",
        "has beyond it is memory traffic and calls. A shape ends in words, tokens of either sentence, buckets, and",
        "pairs in a bucket: v4096-l32-b1x64.",
    ),
)
CAPTIONING = Subject(
    page="step-captioning",
    title="Training step of captioners",
    stage="captioning step",
    command="train-caption",
    shapes=CAPTIONERS,
    gpu_sizes=("caption-base",),
    cpu_sizes=("caption-bench",),
    bases={
        "plain": Base({"name": "post-ln"}, "our captioner, Post-LN, no gates", None),
        "sas": _SAS,
        "transponder": _TRANSPONDER,
    },
    precision="bf16-mixed",
    compiles=False,
    fused_eager=True,
    said=(
        "Nothing is compiled: in training every batch has captions of another length. Steps are of cross-entropy; in",
        "self-critical training drawing captions comes on top. `FLOPs / plain` is how much more arithmetic a network",
        "has. A shape ends in words known, regions, numbers of a region, words of a caption, and images with the",
        "captions of each: v4096-r36-f2048-l13-b64x1.",
    ),
)
MASKED_LM = Subject(
    page="step-bert",
    title="Training step of BERTs",
    stage="BERT step",
    command="train-bert",
    shapes=BERTS,
    gpu_sizes=("bert-base",),
    cpu_sizes=("bert-bench",),
    bases={
        "plain": Base({"name": "post-ln"}, "our BERT, Post-LN, no gates", None),
        "eau": Base({"name": "eau", "residual": "post-norm"}, "EAU-like units on what attention puts out", None),
        "grc": Base({"name": "grc", "norm": "post"}, "GRC at all junctions: a gate a channel", None),
        "transponder": _TRANSPONDER,
    },
    precision="bf16-mixed",
    peers={"bertformaskedlm": "BertForMaskedLM of the transformers library, the same sizes, as it comes"},
    compiles=False,
    fused_eager=True,
    asked=OF_BERTS,
    said=(
        "Nothing is compiled, as at scale smoke. All have dropout on embeddings, branches and attention's weights.",
        "Our head reads the hidden tokens alone, the library's all of them. A shape ends in tokens known, tokens of a",
        "sequence, and sequences with the hidden tokens of each: v4096-l128-b16x19.",
    ),
)
CONNECTIONS = Subject(
    page="step-residual",
    title="Training step by residual connection",
    stage="training step of residual connections",
    command="train-lm",
    shapes=CONNECTED,
    gpu_sizes=("residual-60m",),
    cpu_sizes=("residual-bench",),
    bases={
        "plain": _PLAIN_LLAMA,
        "sas": _of_pytorch("SAS", "sas"),
        "grc": _of_pytorch("GRC, a gate a channel that reads the skip path", "grc"),
        "laurel": _of_pytorch("LAuReL-RW+LR, rank 32", "laurel-rw-lr"),
        "highway": _of_pytorch("Highway", "highway"),
    },
    precision="bf16-pure",
    plain_counts_eager=False,
    counts_arithmetic=True,
    asked=OF_CONNECTIONS,
    said=(
        "The LLaMAs of `step.md` with other residual connections. Whatever `train.kernels` says, the connections are",
        "PyTorch's operations, which `train.compile` fuses. `arithmetic / plain` is what a step would take beside the",
        "plain one if time were arithmetic alone: the larger of the ratios of FLOPs and of parameters, since the extra",
        "matrices must at least be read. What `step / best plain` has beyond it is element-wise work and calls; of a",
        "compiled step on a CPU it is to be at most 1.05 times `arithmetic / plain`.",
    ),
)
SUBJECTS = (LANGUAGE, IMAGES, TRANSLATION, CAPTIONING, MASKED_LM, CONNECTIONS)


def needs_cuda(variant: str) -> bool:
    """Whether a variant can be measured on CUDA devices alone."""
    return variant == NONDETERMINISTIC or variant.endswith(GRAPHS)


def subject_of(size: str) -> Subject:
    """The subject that has a size of that name; there is one."""
    return next(subject for subject in SUBJECTS if size in subject.shapes)


@dataclass(frozen=True)
class Decoded:
    """A subject whose models put tokens out one by one, which is measured too: the page of its rows, its variants in
    words, and the types and batch sizes that are measured unless others are named."""

    subject: Subject
    page: str
    variants: Mapping[str, str]
    dtype: str
    batches: tuple[int, ...]


DECODED = (
    Decoded(LANGUAGE, "decode", DECODE_VARIANTS, "bf16", (1, 4, 16, 64)),
    Decoded(TRANSLATION, "decode-translation", TRANSLATION_VARIANTS, "fp32", (1, 16)),
)


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
