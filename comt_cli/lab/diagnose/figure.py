"""What residual connections do to signals and gradients at the start: lines over depth and over layers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator
from ruamel.yaml import YAML

from comt_cli.report.figures.lines import log_ticks
from comt_cli.report.figures.style import QUIET, page_figure, series_colours, style

_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WORDS = {"depth": "depth, blocks", "layer": "block, counted from the input"}
_EVERY = 0.35
"""Of a panel's diagonal, between two markers of a line."""
_TITLE_LETTERS = 90
"""Of the size of titles, on a line of page width."""


@dataclass(frozen=True)
class Drawing:
    """What is drawn of a table: a column of panels for each of the names in its column `panels`, and a row for each of
    `values`, which gives the axis its label; one line over `x` for each combination of `series`.

    `title`, what of the networks is `measured`, what the `rows` are and how to read it are for the caption.
    """

    title: str
    measured: str
    x: str
    values: Mapping[str, str]
    reading: str = ""
    legend: str = "connection"
    rows: str = ""
    panels: str = "setup"
    series: Sequence[str] = ("connection",)


BAND = "Lines are means, bands from the least to the greatest of the seeds."
DRAWINGS = {
    name: Drawing(**drawing)
    for name, drawing in YAML(typ="safe").load(Path(__file__).with_name("drawings.yaml").read_text("utf-8")).items()
}
"""By the name of the table, which is the figure's too. `{depth}`: how many blocks the networks of a table have."""


def draw_diagnosis(frame: pd.DataFrame, drawing: Drawing, says: Mapping[str, str]) -> Figure:
    """The figure, with what each set-up `says` that it is over its panels.

    `frame` is a summary: it has `<value>_mean`, `_low` and `_high`; bands are from the least to the greatest. A row
    shares its logarithmic axis, unless it is of set-ups that differ by more than a million times.
    """
    panels, x, values = drawing.panels, drawing.x, drawing.values
    frame = frame.assign(line=frame[[*drawing.series]].agg(", ".join, axis=1))
    names, lines = frame[panels].unique().tolist(), frame["line"].unique().tolist()
    with style():
        looks = _looks(lines)
        figure = page_figure((0.85 if panels == "setup" else 0.5) + max(2.0 * len(values), 0.16 * (len(looks) + 2)))
        grid = figure.subplots(len(values), len(names), squeeze=False)
        for number, (row, (value, label)) in enumerate(zip(grid, values.items(), strict=True)):
            low, high = _ends(frame, value)
            for axes, name in zip(row, names, strict=True):
                drawn = frame[frame[panels] == name]
                for line, points in drawn.groupby("line", sort=False):
                    _line(axes, points.sort_values(x), x, value, looks[str(line)])
                is_shared = high / low < 1e6 or panels != "setup"
                _log_axis(axes, *((low, high) if is_shared else _ends(drawn, value)))
                axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
                axes.set_xlabel(textwrap.fill(_WORDS[x], 18) if len(names) > 3 else _WORDS[x])
            letter = f"({chr(ord('a') + number)}) " if len(values) > 1 else ""
            row[0].set_ylabel(f"{letter}{label}\n(log scale)")
        for axes, name in zip(grid[0], names, strict=True):
            said = textwrap.fill(says.get(name, ""), int(_TITLE_LETTERS / len(names)))
            axes.set_title(f"{name}\n{said}".rstrip(), fontsize=7)
        handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
        figure.legend(handles=handles, title=drawing.legend, loc="outside right center", handlelength=1.8)
    return figure


def _looks(names: list[str]) -> dict[str, dict[str, Any]]:
    """Colour, dashes and marker of each line; the markers stand at other places on each, so that of lines that lie on
    each other every one is seen. The network without skip paths is grey and dashed."""
    coloured = [name for name in names if name != "plain"]
    looks: dict[str, dict[str, Any]] = {
        name: {
            "color": colour,
            "linestyle": _DASHES[number % len(_DASHES)],
            "linewidth": 1.1,
            "marker": _MARKERS[number % len(_MARKERS)],
            "markersize": 3.2,
            "markevery": (number / len(coloured) * _EVERY, _EVERY),
        }
        for number, (name, colour) in enumerate(zip(coloured, series_colours(len(coloured)), strict=True))
    }
    return {name: looks.get(name, {"color": QUIET, "linestyle": "--"}) for name in names}


def _ends(frame: pd.DataFrame, value: str) -> tuple[float, float]:
    """The least and the greatest that a logarithmic axis can show: very deep networks have gradients of 0, or none."""
    numbers = frame[[f"{value}_low", f"{value}_high"]].to_numpy(dtype=float)
    seen = numbers[np.isfinite(numbers) & (numbers > 0)]
    return (float(seen.min()), float(seen.max())) if seen.size else (1.0, 1.0)


def _line(axes: Axes, line: pd.DataFrame, x: str, value: str, look: Mapping[str, Any]) -> None:
    """The means, and a band from the least to the greatest of the seeds, where the least is not 0 (the axis is
    logarithmic; a gradient of rounding errors may be). A single mean is a point: it makes no line."""
    at = line[x].to_numpy()
    single = {"marker": "o", "markevery": None} if len(at) == 1 else {}
    axes.plot(at, line[f"{value}_mean"].to_numpy(), **{**look, **single})
    low, high = line[f"{value}_low"].to_numpy(), line[f"{value}_high"].to_numpy()
    axes.fill_between(at, low, high, where=(low > 0).tolist(), color=look["color"], alpha=0.15, linewidth=0)


def _log_axis(axes: Axes, low: float, high: float) -> None:
    """Logarithmic, with 1 in sight; plain numbers over few decades and powers of ten over many."""
    low, high = min(low, 0.9), max(high, 1.1)
    air = 1.1 * (high / low) ** 0.02
    axes.set_yscale("log")
    axes.set_ylim(low / air, high * air)
    axes.axhline(1, color=QUIET, linewidth=0.6, zorder=0.5)
    if high / low < 1000:
        log_ticks(axes, high / low)
    else:
        axes.yaxis.set_major_locator(LogLocator(numticks=7))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
