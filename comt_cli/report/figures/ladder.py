"""A ladder of sizes: gains over the baseline against training FLOPs, with the lines through them."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from comt_cli.report.figures.style import page_figure, series_colours, style
from comt_cli.report.ladder import NOT_RESOLVED

_MARKERS = "osD^vP*Xph"
_ASIDE = 0.012
"""How far the rows of a size are drawn beside each other, as a share of the axis, so that no bar hides another."""


def draw_ladder(frame: pd.DataFrame, baseline: str, unit: str) -> Figure:
    """`frame` is `ladder_words.ladder_frame`, of which a line at least has a gain; `unit` is that of gains."""
    rows = list(dict.fromkeys(frame["row"]))
    places = frame.dropna(subset=["gain"]).groupby("column", sort=False)["flops"].first()
    low, high = np.log10(places.min()), np.log10(places.max())
    aside = _ASIDE * max(high - low, 0.5)
    with style():
        figure = page_figure(3.0, 5.6)
        axes = figure.subplots()
        axes.axhline(0, color="black", linewidth=0.8)
        for number, (row, colour) in enumerate(zip(rows, series_colours(len(rows)), strict=True)):
            here = frame[(frame["row"] == row) & frame["gain"].notna()]
            x = 10 ** (np.log10(here["flops"]) + aside * (number - (len(rows) - 1) / 2))
            bars = [(here["gain"] - here["low"]).fillna(0), (here["high"] - here["gain"]).fillna(0)]
            axes.errorbar(x, here["gain"], yerr=bars, color=colour, linestyle="none", elinewidth=0.7, markersize=4,
                          marker=_MARKERS[number % len(_MARKERS)], label=row)  # fmt: skip
            line = frame[frame["row"] == row].iloc[0]
            if np.isfinite(line["slope"]):
                ends = np.array([low - 3 * aside, high + 3 * aside])
                dashes = "--" if line["verdict"] == NOT_RESOLVED else "-"
                axes.plot(10**ends, line["intercept"] + line["slope"] * ends, color=colour, linestyle=dashes)
        axes.set_xscale("log")
        axes.set_xlabel(f"training FLOPs of {baseline}")
        axes.set_ylabel(f"gain over {baseline}, {unit}")
        for column, flops in places.items():
            axes.annotate(str(column), (flops, 1.0), xycoords=axes.get_xaxis_transform(), ha="center", va="bottom",
                          fontsize=6.5, color="#404040")  # fmt: skip
        figure.legend(loc="outside right upper")
    return figure
