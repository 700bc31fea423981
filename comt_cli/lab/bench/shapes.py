"""Networks of a task on batches of so many samples, in the words of a recipe. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from comt_cli.recipe.settings import Precision, RunSettings
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task, task_of


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
        """The settings of its training. The rate, which no schedule changes here, only has to keep the weights
        finite."""
        return self._settings("fp32")

    def _settings(self, precision: Precision) -> RunSettings:
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

    @property
    def amount(self) -> str:
        """The same in words: `2,048 tokens`."""
        return f"{self.units:,} {self.task.unit.name}"

    def halved(self) -> Shape:
        """The same with half the batch."""
        return replace(self, batch=self.batch // 2)

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
