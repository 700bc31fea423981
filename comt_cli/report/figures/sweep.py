"""A sweep: what decides against the swept value, a line a row, or of many rows a map, the chosen point marked."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from comt_cli.report.figures.lines import log_ticks
from comt_cli.report.figures.style import SEQUENCE, page_figure, series_colours, style
from comt_cli.report.sweep_figure import FAR, is_map, key_in_words, tried_rows

_MARKERS = "osD^vP*Xph<>"
_DARK = 0.5
"""Of a map's shades, from 0 for the best: beyond it letters are white."""


def draw_sweep(frame: pd.DataFrame, key: str, metric: str, *, lower: bool, decimals: int = 2) -> Figure:
    """One panel a column. `frame` has a line a point: `column`, `row`, `value` of the key, `mean` of what decides (NaN
    where a trial diverged, has no value or has not ended), `least` and `greatest` of the trials, whether all have
    `ended`, and `chosen`. `key` names the x-axis, `metric` what decides; `lower` says which way is better.

    A star is the chosen point, bars span the trials; a cross at the end of the worse values is a point of which a
    trial diverged or has no value, or that is far off. Rows of which no trial has ended are left out, unless none has.
    Of many rows (`is_map`) a map is drawn, the best first, with so many `decimals`: a frame is the chosen point, a
    cross one without a value.
    """
    frame = tried_rows(frame)
    if is_map(frame):
        return _draw_maps(frame, key, metric, lower=lower, decimals=decimals)
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
        panels[-1].set_xlabel(key_in_words(key))
        handles, _ = panels[0].get_legend_handles_labels()
        star = {"marker": "*", "markersize": 9, "markerfacecolor": "white", "markeredgewidth": 0.5}
        handles.append(Line2D([], [], linestyle="", color="black", label="chosen", **star))
        if (frame["greatest"] > frame["least"]).any():
            handles.append(Line2D([], [], linestyle="", color="black", label="bars: all trials", marker="|"))
        figure.legend(handles=handles, loc="outside right upper")
    return figure


def _draw_maps(frame: pd.DataFrame, key: str, metric: str, *, lower: bool, decimals: int) -> Figure:
    """One map a column: a line a row, a cell a value."""
    with style():
        groups = {str(column): own for column, own in frame.groupby("column", sort=False)}
        heights = [2 + own["row"].nunique() for own in groups.values()]
        figure = page_figure(0.6 + 0.17 * sum(heights), 5.6)
        panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (column, own) in zip(panels, groups.items(), strict=True):
            axes.set_title(f"{column}: {metric}")
            _draw_map(axes, own, lower=lower, decimals=decimals)
        panels[-1].set_xlabel(key_in_words(key))
        shades = ScalarMappable(LogNorm(1, FAR), colormaps[SEQUENCE].reversed())
        bar = figure.colorbar(shades, ax=list(panels), label="times worse than the best", ticks=[1, 2, FAR], aspect=40)
        bar.ax.set_yticklabels(["1", "2", f"{FAR:g} or more"])
        bar.minorticks_off()
    return figure


def _draw_map(axes: Axes, own: pd.DataFrame, *, lower: bool, decimals: int) -> None:
    order = own.groupby("row", sort=False)["mean"].agg("min" if lower else "max")
    rows = list(order.sort_values(ascending=lower, kind="stable", na_position="last").index)
    table = own.pivot(index="row", columns="value", values="mean").loc[rows]
    means = table.to_numpy(dtype=float)
    shades = _shades(means, lower=lower)
    axes.imshow(1 - shades, cmap=SEQUENCE, vmin=0, vmax=1, aspect="auto")
    axes.grid(visible=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=6.5)
    axes.set_xticks(range(table.shape[1]), [f"{float(value):.3g}" for value in table.columns.to_list()])
    points = own.set_index(["row", "value"])[["ended", "chosen"]].to_dict("index")
    for (down, across), mean in np.ndenumerate(means):
        point = points[rows[down], table.columns[across]]
        if point["chosen"]:
            axes.add_patch(Rectangle((across - 0.48, down - 0.46), 0.96, 0.92, fill=False, linewidth=1.2))
        if np.isfinite(mean) or point["ended"]:
            said = f"{mean:,.{decimals}f}" if np.isfinite(mean) else "×"
            colour = "white" if shades[down, across] > _DARK else "black"  # black on no colour, too
            weight = "bold" if point["chosen"] else "normal"
            axes.text(across, down, said, ha="center", va="center", fontsize=6, color=colour, fontweight=weight)


def _shades(means: NDArray[np.float64], *, lower: bool) -> NDArray[np.float64]:
    """0 for the best to 1 for what is `FAR` times worse or more, or, of scores whose best is, not above zero; all 0
    where the best is not: no multiple says how far off a value is. NaN stays."""
    if np.isnan(means).all():
        return means
    best = np.nanmin(means) if lower else np.nanmax(means)
    if not best > 0:
        return np.where(np.isnan(means), np.nan, 0.0)
    worse = means / best if lower else best / np.maximum(means, best / FAR)
    shades: NDArray[np.float64] = np.clip(np.log(worse) / np.log(FAR), 0, 1)
    return shades
