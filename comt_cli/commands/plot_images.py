"""`comt plot-images`: what a data set of images looks like to a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import figure_options, options
from comt_cli.commands.loading import loading
from comt_cli.errors import UserError

if TYPE_CHECKING:
    from comt_cli.data.images.settings import ImageDataSettings


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
    data = _settings(images, size, augmentation, folder)
    loading("the images")
    from comt_cli.analysis.image_samples import plot_images

    plot_images(data, out or results / "figures" / "images")


def _settings(images: str, size: int | None, augmentation: str, folder: Path | None) -> ImageDataSettings:
    """The settings of the data set. Raises `UserError` where they are wrong."""
    from pydantic import ValidationError

    from comt_cli.data.images.settings import ImageDataSettings

    if images.startswith("glyphs") and folder is not None:
        raise UserError(
            f"--folder {folder}: --folder is for cifar10, cifar100 and imagenet; {images} is drawn into the cache",
            "Leave --folder out; COMT_CACHE=/some/folder moves the cache, --out says where the figure goes.",
        )
    given = {
        "images": images,
        "size": size if size is not None else 224 if images == "imagenet" else 32,
        "augmentation": augmentation,
        "folder": None if folder is None else str(folder),
    }
    try:
        settings = ImageDataSettings.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        said = problem["msg"].removeprefix("Value error, ")
        raise UserError(f"{key}: {said}" if key else said, "comt plot-images --help has examples.") from error
    if images.startswith("glyphs") and augmentation == "crop-flip":
        typer.echo("comt: crop-flip mirrors letters, which makes other signs of many; crop does not", err=True)
    return settings
