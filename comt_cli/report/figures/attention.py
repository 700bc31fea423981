"""What a translation model looks at: the weights of cross-attention, source tokens by target tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from comt_cli.report.figures.style import PAGE_WIDTH, SEQUENCE, page_figure, style
from comt_cli.report.figures.tokens import token_labels

_CELL = 0.21
"""Inches of a token at most: room for its label."""
_MARGIN = 1.1
_LEAST = 2.6
_SMALLEST = 4.0
"""Points of a letter that can still be read."""
_MOST = 9.0
"""Inches of the height: a page."""


def draw_attention(
    weights: NDArray[np.floating],
    target: Sequence[str],
    source: Sequence[str],
    called: tuple[str, str] = ("target token", "source token"),
) -> tuple[Figure, pd.DataFrame]:
    """A heat map with a row for each token of the target and a column for each of the source, whose names these are;
    `called` is what the two are.

    `weights` are [T, S]. Returns the figure and the weights as a table: the column `target`, then one for each source
    token, so that each row sums to 1.
    """
    rows, columns = token_labels(target), token_labels(source)
    frame = pd.DataFrame(np.asarray(weights, dtype=np.float64), columns=columns)
    frame.insert(0, "target", rows)
    width = min(max(_CELL * len(columns) + 2 * _MARGIN, _LEAST), PAGE_WIDTH)
    height = min(max(_CELL * len(rows) + _MARGIN, _LEAST), _MOST)
    with style():
        figure = page_figure(height, width)
        axes = figure.subplots()
        image = axes.imshow(weights, vmin=0, vmax=1, cmap=SEQUENCE, aspect="auto", interpolation="nearest")
        axes.grid(visible=False)
        down, across = _labels(height - _MARGIN, len(rows)), _labels(width - 2 * _MARGIN, len(columns))
        axes.set_yticks(range(0, len(rows), down[0]), rows[:: down[0]], fontsize=down[1])
        axes.set_xticks(range(0, len(columns), across[0]), columns[:: across[0]], fontsize=across[1], rotation=90)
        axes.tick_params(length=0)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.spines[:].set_visible(False)
        names = [f"{name} (one of {every} is named)" if every > 1 else name
                 for name, every in zip(called, (down[0], across[0]), strict=True)]  # fmt: skip
        axes.set(ylabel=names[0], xlabel=names[1])
        bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=25)
        bar.set_label("weight")
    return figure, frame


def _labels(inches: float, tokens: int) -> tuple[int, float]:
    """Of how many tokens one has a label, so that it can be read, and its size: labels must not overlap."""
    room = 0.85 * 72 * inches / max(tokens, 1)
    every = math.ceil(_SMALLEST / room)
    return every, min(7.0, every * room)
