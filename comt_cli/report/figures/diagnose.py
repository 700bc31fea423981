"""What residual connections do to signals and gradients at the start: lines over depth and over layers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from comt_cli.report.figures.style import QUIET, page_figure, series_colours, style

_PLAIN = "plain"
"""The network without skip paths: grey and dashed in every panel."""
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WORDS = {"depth": "depth, blocks", "layer": "block, counted from the input"}
_WIDE = 3
"""So many panels beside each other are wide enough for these in a line."""
_EVERY = 0.35
"""Of a panel's diagonal, between two markers of a line."""
_TITLE_LETTERS = 90
"""Of the size of titles, on a line of page width."""


def draw_over_setups(
    frame: pd.DataFrame, x: str, values: Mapping[str, str], names: str, says: Mapping[str, str] | None = None
) -> tuple[Figure, pd.DataFrame]:
    """A column of panels for each set-up and a row for each of `values`; one line a connection, its band the seeds'.
    Over each column stands what the set-up `says` that its blocks compute.

    `frame` has rows `setup, connection, <x>` with `<value>_mean`, `_low` and `_high` for every key of `values`, which
    gives the axis its label (`analysis.diagnose.measure.summary`). `names` is the legend's title. All axes of a row
    share a logarithmic scale if what they show differs by less than a million times. Returns the figure and `frame`.
    """
    setups = list(dict.fromkeys(frame["setup"]))
    with style():
        looks = _looks(list(dict.fromkeys(frame["connection"])))
        figure = page_figure((0.85 if says else 0.5) + max(2.0 * len(values), 0.16 * (len(looks) + 2)))
        panels = figure.subplots(len(values), len(setups), squeeze=False)
        for number, (row, (value, label)) in enumerate(zip(panels, values.items(), strict=True)):
            low, high = _ends(frame, value)
            for axes, setup in zip(row, setups, strict=True):
                drawn = frame[frame["setup"] == setup]
                for name, line in drawn.groupby("connection", sort=False):
                    _line(axes, line.sort_values(x), x, value, looks[str(name)])
                _log_axis(axes, *((low, high) if high / low < 1e6 else _ends(drawn, value)))
                axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
                words = _WORDS.get(x, x)
                axes.set_xlabel(textwrap.fill(words, 18) if len(setups) > _WIDE else words)
            letter = f"({chr(ord('a') + number)}) " if len(values) > 1 else ""
            row[0].set_ylabel(f"{letter}{label}\n(log scale)")
        for axes, setup in zip(panels[0], setups, strict=True):
            said = textwrap.fill((says or {}).get(setup, ""), int(_TITLE_LETTERS / len(setups)))
            axes.set_title(f"{setup}\n{said}" if said else setup, fontsize=7)
        handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
        figure.legend(handles=handles, title=names, loc="outside right center", handlelength=1.8)
    return figure, frame


def draw_gradient_by_loss(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """A panel for each kind of network: the gradient at its input over depth, one line a loss, dashed in fp64.

    `frame` has rows `connection, precision, loss, depth` with `gradient_norm_mean`, `_low` and `_high`. All panels
    share one axis: what is rounding error and what is not must be seen. Returns the figure and `frame`.
    """
    losses = list(dict.fromkeys(frame["loss"]))
    precisions = list(dict.fromkeys(frame["precision"]))
    with style():
        looks = {
            loss: {"color": colour, "linewidth": 1.1, **_marker(number, len(losses))}
            for number, (loss, colour) in enumerate(zip(losses, series_colours(len(losses)), strict=True))
        }
        dashes = dict(zip(precisions, _DASHES, strict=False))
        kinds = list(dict.fromkeys(frame["connection"]))
        figure = page_figure(2.6)
        panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        for axes, kind in zip(panels, kinds, strict=True):
            for (loss, precision), line in frame[frame["connection"] == kind].groupby(
                ["loss", "precision"], sort=False
            ):
                look = {**looks[str(loss)], "linestyle": dashes[str(precision)]}
                _line(axes, line.sort_values("depth"), "depth", "gradient_norm", look)
            axes.set_title(kind)
            axes.set_xlabel(_WORDS["depth"])
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        for axes in panels:
            _log_axis(axes, *_ends(frame, "gradient_norm"))
        panels[0].set_ylabel("gradient norm at the input\n(log scale)")
        handles = [Line2D([], [], label=loss, **look) for loss, look in looks.items()]
        handles += [Line2D([], [], label=name, color=QUIET, linestyle=dash) for name, dash in dashes.items()]
        figure.legend(handles=handles, title="loss, precision", loc="outside right center")
    return figure, frame


def _looks(names: list[str]) -> dict[str, dict[str, Any]]:
    """Colour, dashes and marker of each line; the markers stand at other places on each, so that of lines that lie on
    each other every one is seen."""
    coloured = [name for name in names if name != _PLAIN]
    looks: dict[str, dict[str, Any]] = {
        name: {
            "color": colour,
            "linestyle": _DASHES[number % len(_DASHES)],
            "linewidth": 1.1,
            **_marker(number, len(coloured)),
        }
        for number, (name, colour) in enumerate(zip(coloured, series_colours(len(coloured)), strict=True))
    }
    return {name: looks.get(name, {"color": QUIET, "linestyle": "--"}) for name in names}


def _marker(number: int, count: int) -> dict[str, Any]:
    """The marker of a line and where it begins: elsewhere than those of the other lines."""
    return {
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 3.2,
        "markevery": (number / max(count, 1) * _EVERY, _EVERY),
    }


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
    """Logarithmic, with 1 in sight; labels at 1, 2, 5 of a decade over few decades and at powers of ten over many."""
    low, high = min(low, 0.9), max(high, 1.1)
    axes.set_yscale("log")
    decades = float(np.log10(high / low))
    air = 1.1 * 10 ** (0.02 * decades)
    axes.set_ylim(low / air, high * air)
    axes.axhline(1, color=QUIET, linewidth=0.6, zorder=0.5)
    if decades < 3:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1, 3)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
