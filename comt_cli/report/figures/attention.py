"""Weights of cross-attention: source tokens by target tokens, or laid over an image for each word of its caption."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from comt_cli.report.figures.lines import token_labels
from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, QUIET, SEQUENCE, page_figure, style

_CELL = 0.21
"""Inches of a token at most: room for its label."""
_MARGIN = 1.1
_LEAST = 2.6
_SMALLEST = 4.0
"""Points of a letter that can still be read."""
_MOST = 9.0
"""Inches of the height: a page."""
_ABREAST = 6
_ROW, _HEAD = 1.25, 0.45
"""Inches of a row of panels, and of the caption above them."""
_INK = 0.75
"""How opaque the pixels are that differ most from the paper."""
_WEIGHTS = LinearSegmentedColormap.from_list("weights", ["white", OKABE_ITO[1]])
"""Light, so that black ink shows on all of it."""


def draw_attention(
    weights: NDArray[np.floating],
    target: Sequence[str],
    source: Sequence[str],
    called: tuple[str, str] = ("target token", "source token"),
) -> tuple[Figure, pd.DataFrame]:
    """A heat map with a row for each token of the target and a column for each of the source, which are named by the
    axes' labels, `called`.

    `weights` are [T, S]. Returns the figure and the weights as a table: the column `target`, then one for each source
    token, so that each row sums to 1.
    """
    rows, columns = token_labels(target), token_labels(source)
    frame = _table("target", rows, columns, weights)
    width = min(max(_CELL * len(columns) + 2 * _MARGIN, _LEAST), PAGE_WIDTH)
    height = min(max(_CELL * len(rows) + _MARGIN, _LEAST), _MOST)
    (down, down_size), (across, across_size) = _labels(height - _MARGIN, rows), _labels(width - 2 * _MARGIN, columns)
    names = [
        f"{name} (one of {every} is named)" if every > 1 else name
        for name, every in zip(called, (down, across), strict=True)
    ]
    with style():
        figure = page_figure(height, width)
        axes = figure.subplots()
        image = axes.imshow(weights, vmin=0, vmax=1, cmap=SEQUENCE, aspect="auto", interpolation="nearest")
        axes.grid(visible=False)
        axes.set_yticks(range(0, len(rows), down), rows[::down], fontsize=down_size)
        axes.set_xticks(range(0, len(columns), across), columns[::across], fontsize=across_size, rotation=90)
        axes.tick_params(length=0)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.spines[:].set_visible(False)
        axes.set(ylabel=names[0], xlabel=names[1])
        figure.colorbar(image, ax=axes, shrink=0.8, aspect=25, label="weight")
    return figure, frame


def draw_captioned(
    pixels: NDArray[np.uint8], caption: str, weights: NDArray[np.floating], words: Sequence[str]
) -> tuple[Figure, pd.DataFrame]:
    """The image [H, W, 3] under its caption, then a panel for each of the `words`: its `weights`, [T, R], as colours, R
    regions row by row in a square grid, and over them the image's ink, in black. All panels share one range of colours,
    from 0 to the greatest weight.

    Returns the figure and the weights as a table: the column `word`, then one for each region, `row-column` from 1, so
    that each row sums to 1. Raises `ValueError` where the regions are no square.
    """
    side = math.isqrt(weights.shape[1])
    if side * side != weights.shape[1]:
        raise ValueError(f"{weights.shape[1]} regions are no square grid")
    regions = [f"{row}-{column}" for row in range(1, side + 1) for column in range(1, side + 1)]
    frame = _table("word", token_labels(words), regions, weights)
    rows = math.ceil((1 + len(frame)) / _ABREAST)
    with style():
        figure = page_figure(rows * _ROW + _HEAD, PAGE_WIDTH)
        panels = figure.subplots(rows, _ABREAST, squeeze=False).flatten()
        figure.suptitle(caption, fontsize=9, wrap=True)
        extent = (0, side, side, 0)
        for axes in panels:
            axes.set_axis_off()
        panels[0].imshow(pixels, extent=extent, interpolation="nearest")
        panels[0].set_title("image", fontsize=8)
        shown, ink = None, _ink(pixels)
        for axes, label, weights_R in zip(panels[1:], frame["word"], weights, strict=False):
            grid = weights_R.reshape(side, side)
            shown = axes.imshow(grid, extent=extent, vmin=0, vmax=weights.max(), cmap=_WEIGHTS, interpolation="nearest")
            axes.imshow(ink, extent=extent, interpolation="nearest")
            axes.add_patch(Rectangle((0, 0), side, side, fill=False, color=QUIET, linewidth=0.6))
            axes.set_title(label, fontsize=8)
        if shown is not None:
            figure.colorbar(shown, ax=list(panels), shrink=0.8, aspect=25, label="weight")
    return figure, frame


def _table(name: str, labels: list[str], columns: list[str], weights: NDArray[np.floating]) -> pd.DataFrame:
    """The weights behind a column of labels."""
    frame = pd.DataFrame(np.asarray(weights, dtype=np.float64), columns=columns)
    frame.insert(0, name, labels)
    return frame


def _labels(inches: float, tokens: Sequence[str]) -> tuple[int, float]:
    """Of how many tokens one has a label, so that it can be read, and its size: labels must not overlap."""
    room = 0.85 * 72 * inches / max(len(tokens), 1)
    every = math.ceil(_SMALLEST / room)
    return every, min(7.0, every * room)


def _ink(pixels: NDArray[np.uint8]) -> NDArray[np.floating]:
    """The image as ink, RGBA [H, W, 4]: black, the more opaque the more a pixel differs, in any of its colours, from
    the commonest ones, which are the paper's."""
    apart = np.abs(pixels - np.median(pixels, axis=(0, 1))).max(axis=-1)
    ink = np.zeros((*apart.shape, 4))
    ink[..., 3] = _INK * apart / max(apart.max(), 1)
    return ink
