"""What a captioner looks at: an image, and for each word of its caption the weights of its regions laid over it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, QUIET, page_figure, style
from comt_cli.report.figures.tokens import token_labels

_COLUMNS = 6
_ROW = 1.25
_HEAD = 0.45
"""Inches of a row of panels, and of the caption above them."""
_INK = 0.75
"""How opaque what differs most from the paper is."""
_WEIGHTS = LinearSegmentedColormap.from_list("weights", ["white", OKABE_ITO[1]])
"""Light, so that black ink shows on all of it."""


def draw_captioned(
    pixels: NDArray[np.uint8], caption: str, weights: NDArray[np.floating], words: Sequence[str]
) -> tuple[Figure, pd.DataFrame]:
    """The image [H, W, 3] under its caption, then a panel for each of the `words`: its `weights`, [T, R], as colours, R
    regions row by row in a square grid, and over them what is on the paper, in black. All panels share one range of
    colours, from 0 to the greatest weight.

    Returns the figure and the weights as a table: the column `word`, then one for each region, `row-column` from 1, so
    that each row sums to 1. Raises `ValueError` where the regions are no square.
    """
    side = math.isqrt(weights.shape[1])
    if side * side != weights.shape[1]:
        raise ValueError(f"{weights.shape[1]} regions are no square grid")
    labels = token_labels(words)
    names = [f"{row}-{column}" for row in range(1, side + 1) for column in range(1, side + 1)]
    frame = pd.DataFrame(np.asarray(weights, dtype=np.float64), columns=names)
    frame.insert(0, "word", labels)
    rows = math.ceil((1 + len(labels)) / _COLUMNS)
    with style():
        figure = page_figure(rows * _ROW + _HEAD, PAGE_WIDTH)
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
        figure.suptitle(caption, fontsize=9, wrap=True)
        extent = (0, side, side, 0)
        for axes in panels:
            axes.set_axis_off()
        panels[0].imshow(pixels, extent=extent, interpolation="nearest")
        panels[0].set_title("image", fontsize=8)
        shown, ink = None, _ink(pixels)
        for axes, label, weights_R in zip(panels[1:], labels, weights, strict=False):
            grid = weights_R.reshape(side, side)
            shown = axes.imshow(grid, extent=extent, vmin=0, vmax=weights.max(), cmap=_WEIGHTS, interpolation="nearest")
            axes.imshow(ink, extent=extent, interpolation="nearest")
            axes.add_patch(Rectangle((0, 0), side, side, fill=False, color=QUIET, linewidth=0.6))
            axes.set_title(label, fontsize=8)
        if shown is not None:
            bar = figure.colorbar(shown, ax=list(panels), shrink=0.8, aspect=25)
            bar.set_label("weight")
    return figure, frame


def _ink(pixels: NDArray[np.uint8]) -> NDArray[np.floating]:
    """The image as ink, RGBA [H, W, 4]: black, the more opaque the more a pixel differs, in any of its colours, from
    the commonest ones, which are the paper's."""
    apart = np.abs(pixels - np.median(pixels, axis=(0, 1))).max(axis=-1)
    ink = np.zeros((*apart.shape, 4))
    ink[..., 3] = _INK * apart / max(apart.max(), 1)
    return ink
