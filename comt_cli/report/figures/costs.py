"""Differences to the baseline against what a training step takes: which row is better, and at what cost."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from comt_cli.report.figures.labels import place_labels
from comt_cli.report.figures.style import OKABE_ITO, QUIET, page_figure, style

_SMALL = 6.5
_INK = "#303030"


def draw_costs(frame: pd.DataFrame, baseline: str, unit: str, how: str) -> Figure:
    """`frame` is `costs_words.costs_frame`; `unit` is that of differences, `how` what the step is.

    A line joins the rows of a column that no other beats in both.
    """
    columns = list(dict.fromkeys(frame["column"]))
    with style():
        figure = page_figure(3.6 * len(columns))
        every = figure.subplots(len(columns), 1, squeeze=False)[:, 0]
        for axes, column in zip(every, columns, strict=True):
            here = frame[frame["column"] == column]
            axes.axhline(0, color=QUIET, linewidth=0.6)
            axes.axvline(1, color=QUIET, linewidth=0.6)
            front = here[here["on_front"]].sort_values("step")
            axes.plot(front["step"], front["difference"], color=QUIET, linestyle="--", drawstyle="steps-post")
            bars = [(here["difference"] - here["low"]).fillna(0), (here["high"] - here["difference"]).fillna(0)]
            reach = (here["step"] * here["error"]).fillna(0)
            axes.errorbar(here["step"], here["difference"], yerr=bars, xerr=reach, color=OKABE_ITO[0], marker="o",
                          markersize=3.5, linestyle="none", elinewidth=0.6)  # fmt: skip
            axes.margins(x=0.08, y=0.08)
            axes.set_ylabel(f"difference to {baseline}, {unit}")
            if len(columns) > 1:
                axes.set_title(str(column))
        every[-1].set_xlabel(f"time {how}, over that of {baseline}")
        figure.draw_without_rendering()
        for axes, column in zip(every, columns, strict=True):
            here = frame[frame["column"] == column]
            ends = [axes.transData.transform([(row.step, row.low), (row.step, row.high)]) for row in here.itertuples()]
            covered = [Bbox([low, high]).padded(1.0) for low, high in ends]
            names = [(row.step, row.difference, str(row.row)) for row in here.itertuples()]
            place_labels(axes, names, _INK, _SMALL, covered)
    return figure
