"""A trained image classifier, with what is needed to show it images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import check_blocks, name_of
from comt_cli.exchange.loaded import Loaded
from comt_cli.models.flops import parameter_count
from comt_cli.models.resnet import ResNet
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings


@dataclass(frozen=True)
class LoadedImageModel(Loaded):
    """The model has its running statistics, and is training. It was trained on images of `size` x `size` pixels whose
    colours, from 0 to 1, had `mean` subtracted and were divided by `std`."""

    command: ClassVar = "train-resnet"
    foreign: ClassVar = False

    model: ResNet
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int

    @classmethod
    def check(cls, state: Mapping[str, Any], spec: RunSpec, path: Path) -> None:
        """Class names, mean, standard deviation and size, as a file from anywhere may not have them."""
        settings = spec.settings_as(ImageSettings)
        check_blocks(state["model"], path, blocks=sum(settings.model.shape().blocks))
        names, size = state["classes"], state["size"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{path}: its classes are not a list of names")
        if type(size) is not int or size < 1:
            raise UserError(f"{path}: its size is {size!r}, not a number of pixels")
        for key in ("mean", "std"):
            numbers = state[key]
            if (
                not isinstance(numbers, list)
                or len(numbers) != 3
                or not all(isinstance(number, float) and math.isfinite(number) for number in numbers)
            ):
                raise UserError(f"{path}: its {key} is not a number for each of three colours")
        if min(state["std"]) <= 0:
            raise UserError(f"{path}: its std is not positive")
        if len(names) != settings.data.classes:
            raise UserError(f"{path} names {len(names)} classes; its spec has {settings.data.classes}")

    @classmethod
    def from_checkpoint(cls, model: ResNet, state: Mapping[str, Any], spec: RunSpec, path: Path) -> Self:  # noqa: ARG003
        names, mean, std = (tuple(state[key]) for key in ("classes", "mean", "std"))
        network = spec.settings_as(ImageSettings).model
        description = (
            f"method {spec.method_words}, {network.size} of width {network.shape().width} with "
            f"{len(model.blocks)} blocks, {len(names)} classes, {parameter_count(model):,} parameters"
        )
        return cls(model, name_of(spec), description, names, mean, std, state["size"], spec=spec)
