"""Samples of a data set of images as a network sees them, one row a class; the body of `comt plot-images`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from comt_cli.data.images.dataset import ImageDataset
from comt_cli.data.images.settings import Augmentation, ImageDataSettings
from comt_cli.data.order import sample_indices
from comt_cli.data.prepare import prepare as prepare_images
from comt_cli.layers.image_input import ImageInput
from comt_cli.report.caption import Caption
from comt_cli.report.figures import sign, write_figure
from comt_cli.report.figures.style import PAGE_WIDTH, style
from comt_cli.report.terminal import say_written

COLUMNS = 16
_MOST_ROWS = 20
_SEED = 0
_GAP = 0.06  # of a cell's side
_MARGIN = 0.55  # inches, for the names of the classes
_NOTE = 0.2  # inches, below the grid, where not all classes are drawn


def plot_images(data: ImageDataSettings, folder: Path) -> None:
    """Draw the first images of each class of the training split in the order of seed 0, augmented as they are then, and
    write the figure's files. Raises `UserError` where the images are missing, `StorageError` (see `write_figure`)."""
    dataset = prepare_images(data, _once())
    frame = sampled(dataset)
    drawn = shown_rows(frame)
    figure = draw_samples(_pictures(dataset, data.augmentation, drawn), drawn, frame["row"].nunique())
    stem = f"{data.images}-{data.size}" + ("" if data.augmentation == "none" else f"-{data.augmentation}")
    if data.images == "imagenet" and data.folder is not None:  # another folder has other pictures
        stem += f"-{dataset.content_hash[:8]}"
    caption = Caption(
        f"Images of the training split of {data.images}, a row a class",
        f"{data.size} pixels, augmentation {data.augmentation}, the first of each class in the order of seed {_SEED}",
    )
    sign(figure, f"{data.images}: {caption.trained}")
    say_written(write_figure(figure, drawn, folder, stem, caption))
    print(
        f"{data.images}: {len(dataset.train):,} images for training, {len(dataset.validation):,} for validation, "
        f"{len(dataset.class_names)} classes, {data.size} pixels; content {dataset.content_hash}"
    )
    classes, shown = frame["row"].nunique(), drawn["row"].nunique()
    if shown < classes:
        print(f"The figure shows {shown} of the {classes} classes, at even distances.")


def _once() -> Callable[[str, int, int | None], None]:
    """Progress of preparation: each stage once on the error stream."""
    stages: set[str] = set()

    def report(stage: str, done: int, total: int | None) -> None:  # noqa: ARG001
        if stage not in stages:
            stages.add(stage)
            print(f"{stage} ...", file=sys.stderr)

    return report


def sampled(dataset: ImageDataset) -> pd.DataFrame:
    """The first images of each class in the order of training: `row, column, position` (in that order), `index, label,
    class` (its name)."""
    labels, names = dataset.train.labels, dataset.class_names
    order = sample_indices(_SEED, 0, len(labels), len(labels))
    cells = [
        (row, column, position, int(order[position]), row, name)
        for row, name in enumerate(names)
        for column, position in enumerate(np.flatnonzero(labels[order] == row)[:COLUMNS].tolist())
    ]
    return pd.DataFrame(cells, columns=["row", "column", "position", "index", "label", "class"])


def shown_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of at most `_MOST_ROWS` classes, at even distances."""
    rows = sorted(frame["row"].unique())
    if len(rows) > _MOST_ROWS:
        rows = [rows[place * len(rows) // _MOST_ROWS] for place in range(_MOST_ROWS)]
    return frame[frame["row"].isin(rows)]


def _pictures(dataset: ImageDataset, augmentation: Augmentation, frame: pd.DataFrame) -> list[NDArray[np.uint8]]:
    """The images of a frame's lines as a network reads them, uint8 [S, S, 3]."""
    look = ImageInput(dataset, "train", augmentation, torch.device("cpu"))
    pictures = []
    for index, position in zip(frame["index"], frame["position"], strict=True):
        batch = dataset.train.train_batch(np.array([index]), _SEED, position)
        pictures.append(look.shown(look(batch)[0])[0])
    return pictures


def draw_samples(pictures: Sequence[NDArray[np.uint8]], frame: pd.DataFrame, classes: int) -> Figure:
    """A grid of the images of a frame's lines, one row a class, named at its left; a note states of how many classes
    where these are not all."""
    rows, columns = list(frame.groupby("row")), int(frame["column"].max()) + 1
    note = _NOTE if classes > len(rows) else 0
    height = (PAGE_WIDTH - _MARGIN) / columns * len(rows) + note
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, height))
        axes = figure.add_axes((_MARGIN / PAGE_WIDTH, note / height, 1 - _MARGIN / PAGE_WIDTH, 1 - note / height))
        if note:
            text = f"{len(rows)} of {classes} classes, at even distances"
            figure.text(_MARGIN / PAGE_WIDTH, note / 2 / height, text, va="center")
        numbered = iter(pictures)
        for place, (_, own) in enumerate(rows):
            axes.text(-_GAP * 2, place + 0.5, own["class"].iloc[0], ha="right", va="center", fontsize=9)
            for column, picture in zip(own["column"], numbered, strict=False):
                edges = (column + _GAP / 2, column + 1 - _GAP / 2, place + 1 - _GAP / 2, place + _GAP / 2)
                axes.imshow(picture, extent=edges, interpolation="nearest", aspect="auto")
        axes.set(xlim=(0, columns), ylim=(len(rows), 0))
        axes.set_axis_off()
    return figure
