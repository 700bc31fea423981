"""Samples of a data set of images as a network sees them, one row a class; the body of `comt plot-images`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from comt_cli.data.images.dataset import ImageDataset
from comt_cli.data.images.settings import ImageDataSettings
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


def plot_images(data: ImageDataSettings, folder: Path) -> None:
    """Draw the first images of each class of the training split in the order of seed 0, augmented as they are then, and
    write the figure's files."""
    said = functools.cache(lambda stage: print(f"{stage} ...", file=sys.stderr))  # each stage once
    dataset = prepare_images(data, lambda stage, *_: said(stage))
    frame = _sampled(dataset)
    rows = sorted(frame["row"].unique())
    count = min(len(rows), _MOST_ROWS)
    drawn = frame[frame["row"].isin([rows[place * len(rows) // count] for place in range(count)])]
    figure = _draw(drawn, dataset, data)
    stem = f"{data.images}-{data.size}" + ("" if data.augmentation == "none" else f"-{data.augmentation}")
    if data.images == "imagenet" and data.folder is not None:  # another folder has other pictures
        stem += f"-{dataset.content_hash[:8]}"
    caption = Caption(
        f"Images of the training split of {data.images}, a row a class",
        f"{data.size} pixels, augmentation {data.augmentation}, the first of each class in the order of seed {_SEED}; "
        f"{count} of {len(rows)} classes, at even distances",
    )
    sign(figure, f"{data.images}: {caption.trained}")
    say_written(write_figure(figure, drawn, folder, stem, caption))
    print(
        f"{data.images}: {len(dataset.train):,} images for training, {len(dataset.validation):,} for validation, "
        f"{len(rows)} classes, {data.size} pixels; content {dataset.content_hash}"
    )


def _sampled(dataset: ImageDataset) -> pd.DataFrame:
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


def _draw(frame: pd.DataFrame, dataset: ImageDataset, data: ImageDataSettings) -> Figure:
    """A grid of the images of a frame's lines, as a network reads them, one row a class, named at its left."""
    look = ImageInput(dataset, "train", data.augmentation, torch.device("cpu"))
    rows, columns = list(frame.groupby("row")), int(frame["column"].max()) + 1
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, (PAGE_WIDTH - _MARGIN) / columns * len(rows)))
        axes = figure.add_axes((_MARGIN / PAGE_WIDTH, 0, 1 - _MARGIN / PAGE_WIDTH, 1))
        for place, (_, own) in enumerate(rows):
            axes.text(-_GAP * 2, place + 0.5, own["class"].iloc[0], ha="right", va="center", fontsize=9)
            for column, index, position in zip(own["column"], own["index"], own["position"], strict=True):
                batch = dataset.train.train_batch(np.array([index]), _SEED, position)
                edges = (column + _GAP / 2, column + 1 - _GAP / 2, place + 1 - _GAP / 2, place + _GAP / 2)
                axes.imshow(look.shown(look(batch)[0])[0], extent=edges, interpolation="nearest", aspect="auto")
        axes.set(xlim=(0, columns), ylim=(len(rows), 0))
        axes.set_axis_off()
    return figure
