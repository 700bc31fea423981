"""The one style of all figures: sizes for a page of a paper, fonts that carry the tokens' signs, safe colours; and the
layout of names and signatures."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

PAGE_WIDTH = 7.2
"""Inches: the text width of a two-column page. Figures are printed at this size, so font sizes below are real."""
DPI = 200

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Colours that people with any kind of colour blindness can tell apart (Okabe and Ito 2008, without yellow)."""
SEQUENCE = "viridis"
"""For more series than that, and for surfaces and maps: its order survives in grey and for the colour blind."""
QUIET = "#8C8C8C"
ROUND = (1, 2, 5, 10)
"""Ticks are these times a power of ten apart."""
_SIGNED = 6.5
"""Points of what stands under a figure."""
_INK = "#303030"
_SPOT = 3.0
"""Pixels around a point's centre that no name may cover."""
_PLACES = [
    (across * far, up * far)
    for far in (4.0, 12.0, 24.0, 40.0)
    for across, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
]
"""Points (1/72 inch) from a point to its name, the best first."""

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
    """How many letters of so many points fit on a line: one is 0.52 of its size wide on average."""
    return max(int(inches * 72 / (0.52 * size)), 12)


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
        for each in figure.texts:
            x, y = each.get_position()
            each.set_position((x, (y * height + room) / taller))
    note = figure.text(0.5, 0.04 / taller, lines, fontsize=_SIGNED, color="#404040", ha="center", va="bottom")
    note.set_in_layout(False)


def place_labels(axes: Axes, points: Sequence[tuple[float, float, str]], size: float = 6.5) -> None:
    """Write each (x, y, name) at the first of some places around its point that is free and within the panel, else at
    the last; a name that is not beside its point gets a thin line to it. The axes must have their final limits."""
    frame = axes.get_window_extent()
    taken = [Bbox([centre - _SPOT, centre + _SPOT]) for centre in (axes.transData.transform(p[:2]) for p in points)]
    for x, y, name in sorted(points, reverse=True):
        note = axes.annotate(name, (x, y), xytext=_PLACES[0], fontsize=size, color=_INK, textcoords="offset points",
                             path_effects=[withStroke(linewidth=1.4, foreground="white")])  # fmt: skip
        note.set_in_layout(False)
        for across, up in _PLACES:
            note.set(position=(across, up), ha="left" if across > 0 else "right" if across < 0 else "center",
                     va="bottom" if up > 0 else "top" if up < 0 else "center")  # fmt: skip
            box = note.get_window_extent()
            is_inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if is_inside and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
        if max(abs(across), abs(up)) > _PLACES[0][0]:
            line = {"arrowstyle": "-", "linewidth": 0.4, "color": _INK, "shrinkA": 0, "shrinkB": 2}
            axes.annotate("", (x, y), (across, up), textcoords="offset points", arrowprops=line).set_in_layout(False)
