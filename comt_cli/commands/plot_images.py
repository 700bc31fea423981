"""`comt plot-images`: what a data set of images looks like to a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import figure_options, options
from comt_cli.commands.loading import loading
from comt_cli.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from comt_cli.data.images.settings import ImageDataSettings

COLUMNS = 16
_SEED = 0


def plot_images(
    images: Annotated[
        str,
        typer.Argument(help="glyphs10, glyphs100, cifar10, cifar100 or imagenet.", show_default=False),
    ],
    size: Annotated[int | None, typer.Option(help="Height and width in pixels: 32, and 224 for imagenet.")] = None,
    augmentation: Annotated[str, typer.Option(help="none, crop, crop-flip or resized-crop-flip.")] = "none",
    folder: Annotated[
        Path | None, typer.Option(help="Where cifar10, cifar100 or imagenet lies, if not in the cache.")
    ] = None,
    out: figure_options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw images of the training split as a network sees them. One row a class, for 20 classes at most.

    Of more classes 20 are shown, at even distances. The images are the first of each class in the order of seed 0,
    augmented as they are then. Writes PNG, PDF and the CSV of which image stands where.

    Examples:

      comt plot-images glyphs10

      comt plot-images glyphs100 --size 64 --augmentation crop

      comt plot-images imagenet --folder /data/imagenet --augmentation resized-crop-flip
    """
    if images in ("glyphs10", "glyphs100"):
        _check_letters(images, augmentation, folder)
    data = _settings(images, size, augmentation, folder)
    loading("the images")
    import numpy as np
    import torch

    from comt_cli.data.prepare import prepare as prepare_images
    from comt_cli.layers.image_input import ImageInput
    from comt_cli.report import figures
    from comt_cli.report.caption import Caption
    from comt_cli.report.terminal import say_written

    dataset = prepare_images(data, _Once())
    frame = _choose(dataset.train.labels, len(dataset.class_names))
    look = ImageInput(dataset, "train", data.augmentation, torch.device("cpu"))
    pictures = []
    for index, position in zip(frame["index"], frame["position"], strict=True):
        batch = dataset.train.train_batch(np.array([index]), _SEED, position)
        pictures.append(look.shown(look(batch)[0])[0])
    frame["class"] = [dataset.class_names[label] for label in frame["label"]]
    figure, drawn = figures.draw_image_samples(pictures, frame, dataset.class_names)
    stem = f"{data.images}-{data.size}" + ("" if data.augmentation == "none" else f"-{data.augmentation}")
    if data.images == "imagenet" and folder is not None:  # another folder has other pictures
        stem += f"-{dataset.content_hash[:8]}"
    said = Caption(
        f"Images of the training split of {data.images}, a row a class",
        f"{data.size} pixels, augmentation {data.augmentation}, the first of each class in the order of seed {_SEED}",
    )
    figures.sign(figure, f"{data.images}: {said.trained}")
    say_written(figures.write_figure(figure, drawn, out or results / "figures" / "images", stem, said))
    typer.echo(
        f"{data.images}: {len(dataset.train):,} images for training, {len(dataset.validation):,} for validation, "
        f"{len(dataset.class_names)} classes, {data.size} pixels; content {dataset.content_hash}"
    )
    classes = frame["row"].nunique()
    if (shown := drawn["row"].nunique()) < classes:
        typer.echo(f"The figure shows {shown} of the {classes} classes, at even distances.")


class _Once:
    """Says on the error stream what is being done, each thing once."""

    def __init__(self) -> None:
        self.stage: str | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage != self.stage:
            typer.echo(f"{stage} ...", err=True)
        self.stage = stage


def _settings(images: str, size: int | None, augmentation: str, folder: Path | None) -> ImageDataSettings:
    from pydantic import ValidationError

    from comt_cli.data.images.settings import ImageDataSettings

    given = {
        "images": images,
        "size": size if size is not None else 224 if images == "imagenet" else 32,
        "augmentation": augmentation,
        "folder": None if folder is None else str(folder),
    }
    try:
        return ImageDataSettings.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        said = problem["msg"].removeprefix("Value error, ")
        raise UserError(f"{key}: {said}" if key else said, "comt plot-images --help has examples.") from error


def _check_letters(images: str, augmentation: str, folder: Path | None) -> None:
    if folder is not None:
        raise UserError(
            f"--folder {folder}: --folder is for cifar10, cifar100 and imagenet; {images} is drawn into the cache",
            "Leave --folder out; COMT_CACHE=/some/folder moves the cache, --out says where the figure goes.",
        )
    if augmentation == "crop-flip":
        typer.echo("comt: crop-flip mirrors letters, which makes other signs of many; crop does not", err=True)


def _choose(labels: NDArray[np.int64], classes: int) -> pd.DataFrame:
    """The first images of each class in the order of training: row, column, position in the order, index, label."""
    import numpy as np
    import pandas as pd

    from comt_cli.data.order import sample_indices

    order = sample_indices(_SEED, 0, len(labels), len(labels))
    labels_in_order = labels[order]
    cells = []
    for row in range(classes):
        for column, position in enumerate(np.flatnonzero(labels_in_order == row)[:COLUMNS].tolist()):
            cells.append((row, column, position, int(order[position]), row))
    return pd.DataFrame(cells, columns=["row", "column", "position", "index", "label"])
