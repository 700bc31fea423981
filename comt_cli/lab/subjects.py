"""The networks and variants of `comt bench`, read from `measured.yaml`. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from comt_cli.recipe.settings import Precision, RunSettings
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import task_of

PEER = "transformers"  # the library whose LLaMA of equal shape is timed with ours
GRAPHS = "-graphs"  # ends the names of steps with `train.cuda_graphs`, on CUDA

TABLES: dict[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("measured.yaml").read_text(encoding="utf-8"))
KERNELS = TABLES["kernels"]
OPS: dict[str, str] = KERNELS["ops"]  # the operations on which kernels are timed, with a text
GATES: dict[str, str] = KERNELS["gates"]  # kinds of gates, and the method of each
DTYPES: list[str] = KERNELS["dtypes"]
DECODED: dict[str, str] = TABLES["decoding"]  # the decoding variants, with a text


@dataclass(frozen=True)
class Shape:
    """A network of the task that `command` trains, named by its `size`; `model` and `data` are sections of a recipe."""

    size: str
    command: str
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    batch: int

    def __str__(self) -> str:
        """The network, the data's dimensions, the batch, and the length or width of a sample: `...-v4096-b16x128`."""
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

    def spec(self, method: Mapping[str, Any], precision: Precision = "fp32") -> RunSpec:
        train: dict[str, Any] = {"steps": 1, "warmup_steps": 1, "batch_size": self.batch, "precision": precision}
        train |= {"learning_rate": 1e-4, "gradient_clipping": 0}  # the rate only has to keep the weights finite
        given = {"model": dict(self.model), "data": dict(self.data), "train": train}
        settings = task_of(self.command).settings.model_validate(given)
        names: dict[str, Any] = {"paper": "bench", "table": "step", "scale": "smoke", "row": "bench"}
        names |= {"column": self.size, "command": self.command, "data_fingerprint": "none"}
        return RunSpec(**names, seed=0, method=dict(method), settings=settings)

    @cached_property
    def settings(self) -> RunSettings:
        return self.spec({}).settings

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


@dataclass(frozen=True)
class Subject:
    """The training steps of one task; `measured.yaml` explains its fields. `page`: the name of the file."""

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
    captured: Sequence[str] = ()
    older: Mapping[str, str] = field(default_factory=dict)
    decides_kernels: bool = False
    counts_arithmetic: bool = False
    compared: Sequence[str] = ()
    notes: str = ""

    @property
    def unit(self) -> str:
        return task_of(self.command).unit.name

    def variants_of(self, size: str) -> list[str]:
        return [name for name in self.variants if size in self.captured or not name.endswith(GRAPHS)]

    def default_sizes(self, device_type: str) -> Sequence[str]:
        return self.gpu_sizes if device_type == "cuda" else self.cpu_sizes


def _subject(page: str, sizes: Mapping[str, Any], command: str, **fields: Any) -> Subject:
    shapes = {size: Shape(size, command, **shape) for size, shape in sizes.items()}
    return Subject(page, command=command, shapes=shapes, **fields)


SUBJECTS = {page: _subject(page, **fields) for page, fields in TABLES["steps"].items()}
LANGUAGE = SUBJECTS["step"]


def subject_of(size: str) -> Subject:
    """The subject with a size of this name; there is one."""
    return next(subject for subject in SUBJECTS.values() if size in subject.shapes)
