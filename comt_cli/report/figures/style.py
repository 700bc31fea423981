"""The one style of all figures: sizes for a page of a paper, fonts that carry the tokens' signs, safe colours; labels
at the ends of lines, and the note under a figure."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Iterator, Mapping
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
ROUND = (1, 2, 5, 10)  # ticks are these times a power of ten apart
_SIGNED = 6.5  # points of the note under a figure
MARKERS = "osD^vP*Xph"

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


def page_figure(height: float, width: float = PAGE_WIDTH) -> Figure:
    """An empty figure of so many inches whose panels are laid out without overlap."""
    return Figure(figsize=(width, height), layout="constrained")


def letters_on(inches: float, size: float) -> int:
    """The number of letters of so many points that fit on a line: one is 0.52 of its size wide on average."""
    return max(int(inches * 72 / (0.52 * size)), 12)


def series_colours(count: int) -> list[Any]:
    """One colour a series: apart where they are few, in order along the map where they are many."""
    if count <= len(OKABE_ITO):
        return list(OKABE_ITO[:count])
    # the map's yellow end is too light for a line on white
    return [mpl.colormaps[SEQUENCE](0.93 * number / (count - 1)) for number in range(count)]


def end_labels(axes: Axes, ends: Mapping[str, tuple[float, Any]], least: float) -> None:
    """Labels at the right edge in order of their values, each in its colour and with a thin line to its value there, so
    much of the axis apart at least; infinite values are at the top, without a line. Limits must be set."""
    at = axes.transScale + axes.transLimits
    heights = {name: at.transform((axes.get_xlim()[1], value))[1] if math.isfinite(value) else 1.0
               for name, (value, _) in ends.items()}  # fmt: skip
    order, places = sorted(ends, key=lambda name: heights[name]), dict[str, float]()
    for name in order:
        places[name] = max(heights[name], max(places.values(), default=-1.0) + least)
    for below, name in enumerate(reversed(order)):
        places[name] = min(places[name], 1.0 - below * least)
    for name, (value, colour) in ends.items():
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        axes.annotate(name, (1.0, heights[name]), (1.05, places[name]), "axes fraction", "axes fraction", va="center",
                      fontsize=7, color=colour, arrowprops=line if math.isfinite(value) else None)  # fmt: skip


def layer_axis(axes: Axes, layers: int) -> None:
    """The x-axis of a panel over layers, which count from 1: whole numbers, a little air at both ends."""
    axes.set_xlim(1 - 0.03 * layers, layers + 0.03 * layers)
    axes.set_xticks(layer_ticks(layers))


def layer_ticks(layers: int) -> list[int]:
    """At most six layers at even distances; layer 1 too, where it does not crowd the next."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, layers) if layers <= 6 * step)
    return [*([1] if step > 2 else []), *range(step, layers + 1, step)]


def sign(figure: Figure, text: str) -> None:
    """Write under a figure what was trained, in small letters, and make it higher by that.

    For figures that lay out themselves, once all else of them is there.
    """
    width, height = figure.get_size_inches()
    lines = textwrap.fill(text, letters_on(width - 0.1, _SIGNED))
    room = 0.06 + 0.125 * (lines.count("\n") + 1)
    taller = height + room
    engine = figure.get_layout_engine()
    figure.set_figheight(taller)
    label, beside = figure.get_supxlabel(), 0.0
    if label:  # it would stay at the figure's edge, where the note is; a place of its own takes it out of the layout
        figure.supxlabel(label, y=(room + 0.02) / taller, fontsize=8)
        beside = 0.2
    if engine is not None:
        rect = (0, (room + beside) / taller, 1, (height - beside) / taller)
        engine.set(rect=rect)  # type: ignore[call-arg]
    else:
        for axes in figure.axes:
            box = axes.get_position()
            axes.set_position((box.x0, (box.y0 * height + room) / taller, box.width, box.height * height / taller))
    note = figure.text(0.5, 0.04 / taller, lines, fontsize=_SIGNED, color="#404040", ha="center", va="bottom")
    note.set_in_layout(False)
