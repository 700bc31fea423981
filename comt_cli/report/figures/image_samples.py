"""Samples of a data set of images: one row a class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from comt_cli.report.figures.style import PAGE_WIDTH, style

_MOST_ROWS = 20
_GAP = 0.06  # of a cell's side
_MARGIN = 0.55  # inches, for the names of the classes
_NOTE = 0.2  # inches, below the grid, where not all classes are drawn


def draw_image_samples(
    images: Sequence[NDArray[np.uint8]], frame: pd.DataFrame, class_names: Sequence[str]
) -> tuple[Figure, pd.DataFrame]:
    """A grid of images, one row a class, named at its left.

    `images` are uint8 [H, W, 3], one for each row of `frame`, which has `row, column` (from 0) and `label`, the place
    in `class_names`; it may have more columns. Of more than 20 rows as many at even distances are drawn, and a
    note below says so.

    Returns the figure, and the rows that were drawn.
    """
    rows = sorted(frame["row"].unique())
    note = _NOTE if len(rows) > _MOST_ROWS else 0
    said = f"{_MOST_ROWS} of {len(rows)} classes, at even distances"
    if note:
        rows = [rows[place * len(rows) // _MOST_ROWS] for place in range(_MOST_ROWS)]
    drawn = frame[frame["row"].isin(rows)]
    columns = int(frame["column"].max()) + 1
    cell = (PAGE_WIDTH - _MARGIN) / columns
    with style():
        height = cell * len(rows) + note
        figure = Figure(figsize=(PAGE_WIDTH, height))
        axes = figure.add_axes((_MARGIN / PAGE_WIDTH, note / height, 1 - _MARGIN / PAGE_WIDTH, 1 - note / height))
        if note:
            figure.text(_MARGIN / PAGE_WIDTH, note / 2 / height, said, va="center")
        for place, row in enumerate(rows):
            here = drawn[drawn["row"] == row]
            name = class_names[int(here["label"].iloc[0])]
            axes.text(-_GAP * 2, place + 0.5, name, ha="right", va="center", fontsize=9)
            for number, column in zip(here.index, here["column"], strict=True):
                edges = (column + _GAP / 2, column + 1 - _GAP / 2, place + 1 - _GAP / 2, place + _GAP / 2)
                axes.imshow(images[number], extent=edges, interpolation="nearest", aspect="auto")
        axes.set(xlim=(0, columns), ylim=(len(rows), 0))
        axes.set_axis_off()
    return figure, drawn
