"""The one style of all figures: sizes for a page of a paper, fonts that carry the tokens' signs, safe colours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PAGE_WIDTH = 7.2
"""Inches: the text width of a two-column page. Figures are printed at this size, so font sizes below are real."""
DPI = 200

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Colours that people with any kind of colour blindness can tell apart (Okabe and Ito 2008, without yellow)."""
SEQUENCE = "viridis"
"""For more series than that, and for surfaces and maps: its order survives in grey and for the colour blind."""
QUIET = "#8C8C8C"

_SETTINGS: Any = {
    "backend": "agg",
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.0,
    "lines.markersize": 2.2,
    "legend.frameon": False,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "pdf.fonttype": 42,  # fonts as outlines that stay text: journals ask for it
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw, and write, inside this context. Nothing outside it is changed; pyplot is never used."""
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's matplotlibrc must not change a paper's figures
        mpl.rcParams.update(_SETTINGS)
        yield


def page_figure(height: float) -> Figure:
    """An empty figure of page width and `height` inches whose panels are laid out without overlap."""
    return Figure(figsize=(PAGE_WIDTH, height), layout="constrained")


def series_colours(count: int) -> list[Any]:
    """One colour a series: apart where they are few, in order along the map where they are many."""
    if count <= len(OKABE_ITO):
        return list(OKABE_ITO[:count])
    colours = mpl.colormaps[SEQUENCE]
    # the map's yellow end is too light for a line on white
    return [colours(0.93 * number / (count - 1)) for number in range(count)]


def layer_axis(axes: Axes, layers: int) -> None:
    """The x-axis of a panel over layers, which count from 1: whole numbers, a little air at both ends."""
    axes.set_xlim(1 - 0.03 * layers, layers + 0.03 * layers)
    axes.set_xticks(layer_ticks(layers))


def layer_ticks(layers: int) -> list[int]:
    """At most six layers at even distances; layer 1 too, where it does not crowd the next."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, layers) if layers <= 6 * step)
    return [*([1] if step > 2 else []), *range(step, layers + 1, step)]
