"""Spatial gate maps beside the images that they belong to: one line an image, one column a gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from comt_cli.report.figures.style import PAGE_WIDTH, SEQUENCE, page_figure, style

_LEAST_SPAN = 1e-4
"""A scale's colours span at least this much, so that rounding noise does not look like structure."""
_MARGIN = 1.1
"""Inches that are not images: names on the left, and air between columns."""


def draw_gate_maps(
    frame: pd.DataFrame, images: Sequence[NDArray[np.uint8]], *, shared: bool = True
) -> tuple[Figure, pd.DataFrame]:
    """The images on the left, to the right of each the values of gates over its pixels, stretched to the image's size.

    `frame` has rows `image, label, prediction, block, site, y, x, value` (`analysis.image_gates.map_frame`), and
    `images` are the images in the order of the frame's, uint8 [S, S, 3]. All maps share their colours, which the bar
    explains, so that a gate that is almost constant looks so; where they are not `shared`, those of a column do, and
    small differences are seen.

    Returns the figure and `frame`.
    """
    gates = list(dict.fromkeys(zip(frame["block"], frame["site"], strict=True)))
    shown = frame.drop_duplicates("image")
    side = (PAGE_WIDTH - _MARGIN) / (len(gates) + 1)
    with style():
        figure = page_figure(0.75 + (side + 0.06) * len(shown))
        panels = figure.subplots(len(shown), len(gates) + 1, squeeze=False)
        for axes in panels.ravel():
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        for line, picture, (_, one) in zip(panels, images, shown.iterrows(), strict=True):
            line[0].imshow(picture, interpolation="nearest")
            line[0].set_anchor("S")  # as a colour bar anchors the maps: else they are apart where a cell is not square
            line[0].set_ylabel(_name(one), rotation=0, ha="right", va="center", fontsize=6.5)
        panels[0][0].set_title("image")
        for column, (block, site) in zip(panels.T[1:], gates, strict=True):
            own = frame[(frame["block"] == block) & (frame["site"] == site)]
            ends = _ends(frame["value"] if shared else own["value"])
            norm = Normalize(*ends)
            for axes, (_, one) in zip(column, own.groupby("image", sort=False), strict=True):
                table = one.pivot(index="y", columns="x", values="value").to_numpy()
                axes.imshow(table, norm=norm, cmap=SEQUENCE, interpolation="nearest", extent=(0, 1, 1, 0))
            column[0].set_title(f"block {block}\n{site}")
            if shared:
                continue
            bar = figure.colorbar(
                ScalarMappable(norm, SEQUENCE), ax=list(column), location="bottom", pad=0.02, aspect=9, shrink=0.95
            )
            bar.set_ticks(list(ends), labels=_texts(ends))
            bar.ax.tick_params(labelsize=6, length=2)
            low, high = bar.ax.get_xticklabels()
            low.set_horizontalalignment("left")
            high.set_horizontalalignment("right")
        if shared:
            bar = figure.colorbar(
                ScalarMappable(norm, SEQUENCE), ax=list(panels[:, 1:].ravel()), location="bottom", pad=0.02, aspect=40,
                shrink=0.6,
            )  # fmt: skip
            bar.set_label("gate value")
    return figure, frame


def _name(one: Any) -> str:
    """What an image shows, and what it was taken for where that is something else."""
    label, taken = str(one["label"]), str(one["prediction"])
    if taken == label:
        return label
    # letters have short names: they fit on a line, and names of animals and cars do not
    return f"{label}, taken\nfor {taken}" if len(label) < 4 else f"{label},\ntaken for\n{taken}"


def _ends(values: pd.Series[float]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    air = max(_LEAST_SPAN - (high - low), 0) / 2
    return low - air, high + air


def _texts(ends: tuple[float, float]) -> list[str]:
    """The ends of a scale, with as many digits as tell them apart."""
    low, high = ends
    digits = max(2, 1 - int(np.floor(np.log10(high - low))))
    return [f"{low:.{digits}f}", f"{high:.{digits}f}"]
