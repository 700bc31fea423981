"""A trained image classifier, from our own checkpoints and runs, with what is needed to show it images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import (
    assign,
    check_blocks,
    checkpoint_in,
    command_in,
    name_of,
    read_state,
    shown_names,
    spec_in,
    wired,
)
from comt_cli.models.build import empty_network
from comt_cli.models.flops import parameter_count
from comt_cli.models.resnet import ResNet
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings

COMMAND = "train-resnet"
"""What trains the models that are loaded here."""
ACCEPTED = "Give a checkpoint.pt or run directory of comt train-resnet."


@dataclass(frozen=True)
class LoadedImageModel:
    """`model` has the types that the file stored, its running statistics with it.

    `name` is short and fit for a folder; `description` says what the source holds. The model was trained on images of
    `size` x `size` pixels whose colours, from 0 to 1, had `mean` subtracted and were divided by `std`.
    """

    model: ResNet
    name: str
    description: str
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    spec: RunSpec


def holds_image_model(source: str | Path) -> bool:
    """Whether `source` is a checkpoint or run directory of an image classifier. Its tensors are not read.

    Raises:
        UserError: it is a run without a checkpoint, or a damaged one.
    """
    path = Path(source)
    checkpoint = checkpoint_in(path) if path.is_dir() else path
    if checkpoint is None or not checkpoint.is_file() or checkpoint.suffix in (".gguf", ".safetensors"):
        return False
    with checkpoint.open("rb") as handle:
        if handle.read(4) == b"GGUF":
            return False
    return command_in(read_state(checkpoint, checked=False)) == COMMAND


def load_image_model(source: str | Path) -> LoadedImageModel:
    """Load the image classifier at `source`, a checkpoint file or run directory, onto the CPU; it is training.

    Raises:
        UserError: nothing is there, or it is damaged, foreign, or of a language model; says what was expected.
    """
    path = Path(source)
    if path.is_dir():
        checkpoint = checkpoint_in(path)
        if checkpoint is None:
            raise UserError(f"{path} holds no image classifier: it has {shown_names(path)}", ACCEPTED)
        path = checkpoint
    elif not path.is_file():
        raise UserError(f"there is no image classifier {source}", ACCEPTED)
    state = read_state(path)
    spec = spec_in(state, path)
    if spec.command != COMMAND:
        raise UserError(
            f"{path} is a checkpoint of comt {spec.command}, not of an image classifier (comt {COMMAND})",
            "comt analyze-gates, plot-cosine, generate and export take it.",
        )
    wiring = wired(spec, path)
    settings = spec.settings_as(ImageSettings)
    check_blocks(state["model"], sum(settings.model.shape().blocks), path)
    names, mean, std, size = _parts(state, path)
    if len(names) != settings.data.classes:
        raise UserError(f"{path} names {len(names)} classes; its spec has {settings.data.classes}")
    model = empty_network(settings.model, wiring, classes=len(names), size=size)
    assign(model, state["model"], path)
    description = (
        f"method {spec.method['name']}, {settings.model.size} of width {settings.model.shape().width} with "
        f"{len(model.blocks)} blocks, {len(names)} classes, {parameter_count(model):,} parameters"
    )
    return LoadedImageModel(model, name_of(spec), description, names, mean, std, size, spec)


def _parts(state: Mapping[str, Any], path: Path) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...], int]:
    """Class names, mean, standard deviation and size, as a file from anywhere may not have them."""
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
    return tuple(names), tuple(state["mean"]), tuple(state["std"]), size
