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


def draw_image_samples(
    images: Sequence[NDArray[np.uint8]], frame: pd.DataFrame, class_names: Sequence[str]
) -> tuple[Figure, pd.DataFrame]:
    """A grid of images, one row a class, named at its left.

    `images` are uint8 [H, W, 3], one for each row of `frame`, which has `row, column` (from 0) and `label`, the place
    in `class_names`; it may have more columns. Of more than 20 rows as many at even distances are drawn.

    Returns the figure, and the rows that were drawn.
    """
    rows = sorted(frame["row"].unique())
    if len(rows) > _MOST_ROWS:
        rows = [rows[place * len(rows) // _MOST_ROWS] for place in range(_MOST_ROWS)]
    drawn = frame[frame["row"].isin(rows)]
    columns = int(frame["column"].max()) + 1
    cell = (PAGE_WIDTH - _MARGIN) / columns
    height = cell * len(rows)
    with style():
        figure = Figure(figsize=(PAGE_WIDTH, height))
        for place, row in enumerate(rows):
            here = drawn[drawn["row"] == row]
            bottom = (len(rows) - 1 - place) * cell
            name = class_names[int(here["label"].iloc[0])]
            figure.text(
                (_MARGIN - 0.12) / PAGE_WIDTH, (bottom + cell / 2) / height, name, ha="right", va="center", fontsize=9
            )
            for number, column in zip(here.index, here["column"], strict=True):
                left = _MARGIN + column * cell
                box = (left + _GAP * cell / 2, bottom + _GAP * cell / 2, (1 - _GAP) * cell, (1 - _GAP) * cell)
                axes = figure.add_axes((box[0] / PAGE_WIDTH, box[1] / height, box[2] / PAGE_WIDTH, box[3] / height))
                axes.imshow(images[number], interpolation="nearest")
                axes.set_axis_off()
    return figure, drawn
