"""A sweep: what decides against the swept value, a line a row, the chosen point marked."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from comt_cli.report.figures.lines import log_ticks
from comt_cli.report.figures.style import page_figure, series_colours, style
from comt_cli.report.sweep_figure import FAR

_MARKERS = "osD^vP*Xph<>"


def draw_sweep(frame: pd.DataFrame, key: str, metric: str, *, lower: bool) -> Figure:
    """One panel a column. `frame` has a line a point: `column`, `row`, `value` of the key, `mean` of what decides (NaN
    where a trial diverged, has no value or has not ended), `least` and `greatest` of the trials, whether all have
    `ended`, and `chosen`. `key` names the x-axis, `metric` the y-axis; `lower` says which way is better.

    A star is the chosen point, bars span the trials; a cross at the end of the worse values is a point of which a
    trial diverged or has no value, or that is far off. Rows of which no trial has ended are left out, unless none has.
    """
    tried = frame[frame.groupby("row")["ended"].transform("any")]
    frame = tried if len(tried) else frame
    columns, rows = list(dict.fromkeys(frame["column"])), list(dict.fromkeys(frame["row"]))
    colours = dict(zip(rows, series_colours(len(rows)), strict=True))
    markers = {row: _MARKERS[number % len(_MARKERS)] for number, row in enumerate(rows)}
    with style():
        figure = page_figure(2.7 * len(columns) + 0.2, 5.6)
        panels = figure.subplots(len(columns), 1, squeeze=False)[:, 0]
        for axes, column in zip(panels, columns, strict=True):
            here = frame[frame["column"] == column]
            known = here["mean"].dropna()
            best = (known.min() if lower else known.max()) if len(known) else 1.0
            is_near = here["mean"].notna()
            if best > 0:  # of scores such as correlations no multiple says how far off one is
                is_near &= here["mean"] <= FAR * best if lower else here["mean"] >= best / FAR
            near = here[is_near]
            values = sorted(set(here["value"]))
            for row in rows:
                line = near[near["row"] == row].sort_values("value")
                bars = [line["mean"] - line["least"], line["greatest"] - line["mean"]]
                axes.errorbar(line["value"], line["mean"], yerr=bars, color=colours[row], marker=markers[row],
                              markersize=3.4, elinewidth=0.6, label=row)  # fmt: skip
                star = line[line["chosen"]]
                axes.plot(star["value"], star["mean"], "*", color=colours[row], markersize=10, markeredgecolor="black",
                          markeredgewidth=0.5, zorder=4)  # fmt: skip
            far = here[~is_near & here["ended"]]
            for row in rows:
                lost = far[far["row"] == row]
                if lost.empty:  # the layout would not know where an empty line lies
                    continue
                place = 1.0 - 0.035 * rows.index(row)  # one below the other, so that none hides another
                axes.plot(lost["value"], [place if lower else 1 - place] * len(lost), "x", color=colours[row],
                          markersize=4, transform=axes.get_xaxis_transform(), clip_on=False)  # fmt: skip
            if min(values) > 0:
                axes.set_xscale("log")
            axes.xaxis.set_major_locator(FixedLocator(values))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:.3g}"))
            if len(near) and near["least"].min() > 0:
                axes.set_yscale("log")
                log_ticks(axes, near["greatest"].max() / near["least"].min())
            axes.set_title(column)
            axes.set_ylabel(metric)
        panels[-1].set_xlabel(key)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
    return figure
