"""Sample images of a data set as a network reads them, one row per class; the body of `comt plot-images`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

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
    """Draw the first training images of each class in the order of seed 0, with that order's augmentation, one row per
    class, and write the files. The CSV has `row, column, position` (in that order), `index, label, class` (its
    name)."""
    said = functools.cache(lambda stage: print(f"{stage} ...", file=sys.stderr))  # each stage once
    dataset = prepare_images(data, lambda stage, *_: said(stage))
    labels, names = dataset.train.labels, dataset.class_names
    order = sample_indices(_SEED, 0, len(labels), len(labels))
    classes = np.unique(labels).tolist()
    count = min(len(classes), _MOST_ROWS)
    rows = [classes[place * len(classes) // count] for place in range(count)]
    look, cells = ImageInput(dataset, "train", data.augmentation, torch.device("cpu")), []
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, (PAGE_WIDTH - _MARGIN) / COLUMNS * count))
        axes = figure.add_axes((_MARGIN / PAGE_WIDTH, 0, 1 - _MARGIN / PAGE_WIDTH, 1))
        for place, label in enumerate(rows):
            axes.text(-_GAP * 2, place + 0.5, names[label], ha="right", va="center", fontsize=9)
            for column, position in enumerate(np.flatnonzero(labels[order] == label)[:COLUMNS].tolist()):
                index = int(order[position])
                cells.append((label, column, position, index, label, names[label]))
                shown = look.shown(look(dataset.train.train_batch(np.array([index]), _SEED, position))[0])[0]
                edges = (column + _GAP / 2, column + 1 - _GAP / 2, place + 1 - _GAP / 2, place + _GAP / 2)
                axes.imshow(shown, extent=edges, interpolation="nearest", aspect="auto")
        axes.set(xlim=(0, COLUMNS), ylim=(count, 0))
        axes.set_axis_off()
    stem = f"{data.images}-{data.size}" + ("" if data.augmentation == "none" else f"-{data.augmentation}")
    if data.images == "imagenet" and data.folder is not None:  # another folder has other pictures
        stem += f"-{dataset.content_hash[:8]}"
    caption = Caption(
        f"Images of the training split of {data.images}, a row a class",
        f"{data.size} pixels, augmentation {data.augmentation}, the first of each class in the order of seed {_SEED}; "
        f"{count} of {len(classes)} classes, at even distances",
    )
    sign(figure, f"{data.images}: {caption.trained}")
    frame = pd.DataFrame(cells, columns=["row", "column", "position", "index", "label", "class"])
    say_written(write_figure(figure, frame, folder, stem, caption))
    print(
        f"{data.images}: {len(dataset.train):,} images for training, {len(dataset.validation):,} for validation, "
        f"{len(classes)} classes, {data.size} pixels; content {dataset.content_hash}"
    )
