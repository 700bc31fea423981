"""Learning curves: levels with the span over seeds, and paired differences to the baseline with their intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from comt_cli.report.curves import BEGINNING
from comt_cli.report.figures.style import OKABE_ITO, ROUND, page_figure, style
from comt_cli.report.format import short_count

_COLOURS, _DASHES = OKABE_ITO[:6], ("-", "--", ":", "-.")
"""Of the rows beside the baseline, which is black: lines cross, so colours that are far apart, then dashes."""


def draw_curves(frame: pd.DataFrame, unit: str, quantity: str, baseline: str) -> Figure:
    """Two panels a column: means with the span over seeds, and differences to the baseline with their intervals.

    `frame` is `Curves.frame`; `unit` the column of the x-axis, or `step` where a log has no counts.
    """
    columns = list(dict.fromkeys(frame["column"]))
    others = [row for row in dict.fromkeys(frame["row"]) if row != baseline]
    looks: dict[str, dict[str, Any]] = {baseline: {"color": "black", "linewidth": 1.6, "zorder": 4}}
    for number, row in enumerate(others):
        dashes, colour = divmod(number, len(_COLOURS))
        looks[row] = {"color": _COLOURS[colour], "linestyle": _DASHES[dashes % len(_DASHES)], "zorder": 3}
    x = unit if frame[unit].notna().all() else "step"
    with style():
        figure = page_figure(2.5 * len(columns) + 0.2)
        panels = figure.subplots(len(columns), 2, squeeze=False)
        for (levels, apart), column in zip(panels, columns, strict=True):
            here = frame[frame["column"] == column]
            late = here[here["step"] >= BEGINNING * here["step"].max()]
            for row, line in here.groupby("row", sort=False):
                look = looks[str(row)]
                levels.plot(line[x], line["mean"], label=str(row), **look)
                _band(levels, line[x], line["least"], line["greatest"], look["color"])
                if line["difference"].notna().any():
                    apart.plot(line[x], line["difference"], **look)
                    _band(apart, line[x], line["low"], line["high"], look["color"])
            apart.axhline(0, color="black", linewidth=0.8)
            _range(levels, late["least"], late["greatest"])
            _range(apart, *_inner(late))
            for axes in (levels, apart):
                axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: short_count(number) if number else "0"))
                axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
            levels.set_title(column)
            levels.set_ylabel(quantity)
            apart.set_ylabel(f"difference to {baseline}")
        for axes in panels[-1]:
            axes.set_xlabel("steps" if x == "step" else x)
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
    return figure


def _inner(late: pd.DataFrame) -> tuple[pd.Series[float], pd.Series[float]]:
    """The ends of intervals, and zero; but no farther from zero than three times the farthest mean: of two seeds they
    may reach so far that nothing else could be seen."""
    farthest = 3 * float(late["difference"].abs().max()) if late["difference"].notna().any() else 1.0
    low, high = (late[key].fillna(late["difference"]).clip(-farthest, farthest) for key in ("low", "high"))
    return low.clip(upper=0), high.clip(lower=0)


def _band(axes: Axes, x: pd.Series[float], low: pd.Series[float], high: pd.Series[float], colour: str) -> None:
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _range(axes: Axes, low: pd.Series[float], high: pd.Series[float]) -> None:
    ends = np.array([low.min(), high.max()], dtype=float)
    if np.isfinite(ends).all():
        air = 0.04 * (ends[1] - ends[0]) or 0.5
        axes.set_ylim(ends[0] - air, ends[1] + air)
