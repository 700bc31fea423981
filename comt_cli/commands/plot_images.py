"""`comt plot-images`: what a data set of images looks like to a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options


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
    out: options.Out = None,
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
    from comt_cli.verbs import models

    models.plot_images(images, size, augmentation, folder, out or results / "figures" / "images")
