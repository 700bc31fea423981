"""What residual connections and attention mix, junction by junction: one map a kind of weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure

from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, page_figure, style

DISPERSION, READ_OUT = "dispersion", "read-out"
"""What `analysis.mixing` calls the distance of streams from their mean, and the mixture behind the last block."""
SIAMESE = "x-y"
"""What SiameseNorm calls the shares of its two streams."""
_SIGNED = "PuOr_r"
"""White is 0, and its two ends are told apart by the colour blind."""
_ABSENT = "#D0D0D0"
"""Where a junction has no such source, which is no weight of 0."""
LINEAR = 4
"""The greatest weight beyond which colours are logarithmic above 1: one large weight would make all others white."""
_NUMBERED = 40
"""Lines beyond which a number does not fit into each."""
_WIDEST = 16
"""Columns beyond which a map gets no wider: those of all heads would leave no place for the others."""
_TITLES = {
    "read": "read: share of\neach stream",
    "mix": "mix:\nnew stream ← stream",
    "write": "write: share of\nthe output",
    "attention": "attention over\nearlier outputs",
    "queries": "shares in\nthe queries",
    "keys": "shares in\nthe keys",
    "values": "shares in\nthe values",
    "heads": "keys and values:\nhead ← head",
    "first-own": "shares in\nthe values",
    "stream": "shares in\nthe stream",
    SIAMESE: "share of x (blue),\nof y (orange)",
    DISPERSION: "dispersion of\nthe streams",
}
_SOURCES = {"first-own": ("first", "own"), SIAMESE: ("x", "y")}
"""The names of sources that do not count from 0."""


def draw_mixing(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """One map a kind of weight: a line for every junction, from the first at the top, and last what is read behind the
    last block; a column for every source, or for every pair of a target and a source. The mean over the tokens; white
    is 0, and all maps share their colours. On axes of their own are bars: the shares of SiameseNorm's two streams,
    which are all near one half, and the dispersion of streams, which is small beside weights.

    `frame` has rows `stack, layer, part, weight, target, source, mean, std` (`analysis.mixing`). Returns the figure and
    `frame`.
    """
    named = frame.assign(junction=_junctions(frame))
    lines = list(dict.fromkeys(named["junction"]))
    tables = {str(kind): _table(own, lines) for kind, own in named.groupby("weight", sort=False)}
    bars = {kind: tables.pop(kind) for kind in (SIAMESE, DISPERSION) if kind in tables}
    with style():
        figure = page_figure(min(6.5, 1.3 + 0.16 * len(lines)), PAGE_WIDTH)
        widths = [2 + min(len(table.columns), _WIDEST) for table in tables.values()] + [6 for _ in bars]
        row = figure.subplots(1, len(widths), squeeze=False, sharey=True, width_ratios=widths)[0]
        for axes, kind in zip(row, (*tables, *bars), strict=True):
            axes.set_title(_TITLES.get(kind, kind), fontsize=7)
        _draw_maps(figure, row[: len(tables)], list(tables.values()))
        for axes, (kind, table) in zip(row[len(tables) :], bars.items(), strict=True):
            _draw_bars(axes, table, shares=kind == SIAMESE)
        row[0].set_yticks(range(len(lines)), lines)
        row[0].set_ylim(len(lines) - 0.5, -0.5)
    return figure, frame


def _draw_maps(figure: Figure, row: Sequence[Axes], tables: Sequence[pd.DataFrame]) -> None:
    """Beside them stands what their colours mean, right of everything."""
    if not tables:
        return
    end = max(float(np.nanmax(np.abs(table.to_numpy()))) for table in tables)
    norm = SymLogNorm(1, vmin=-end, vmax=end) if end > LINEAR else Normalize(-end, end)
    for axes, table in zip(row, tables, strict=True):
        drawn = axes.imshow(table.to_numpy(), cmap=_SIGNED, norm=norm, aspect="auto")
        axes.set_facecolor(_ABSENT)
        axes.grid(visible=False)
        step = max(1, len(table.columns) // 8)
        axes.set_xticks(range(0, len(table.columns), step), list(table.columns)[::step], rotation=60)
    bar = figure.colorbar(drawn, ax=figure.axes, location="right", pad=0.01, aspect=30)
    bar.set_label("weight, mean over the tokens")
    if end > LINEAR:
        ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000) if tick <= end]
        signed = [*(-tick for tick in reversed(ticks)), 0, *ticks]
        bar.set_ticks(signed, labels=[f"{tick:g}" for tick in signed])
        bar.minorticks_off()


def _draw_bars(axes: Axes, table: pd.DataFrame, *, shares: bool) -> None:
    """A bar a junction; of shares, which add up to 1, one behind the other, with the first one's number."""
    places, start = range(len(table)), np.zeros(len(table))
    for column, colour in zip(table.columns, OKABE_ITO, strict=False):
        axes.barh(places, table[column], height=0.7, left=start, color=colour)
        start = start + table[column].to_numpy()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="x", rotation=60)
    if not shares:
        axes.set_xlim(0, max(1.05 * float(table.max().max()), 1e-3))
        return
    axes.set_xlim(0, 1)
    if len(table) <= _NUMBERED:
        for place, number in zip(places, table[table.columns[0]], strict=True):
            axes.text(0.02, place, f"{number:.2f}", color="white", fontsize=6, va="center")


def _junctions(frame: pd.DataFrame) -> pd.Series[str]:
    """The name of each row's line, with its stack where there are several."""
    layered = frame["layer"].astype(str) + " " + frame["part"]
    names = layered.where(frame["part"] != READ_OUT, READ_OUT)
    return frame["stack"] + " " + names if frame["stack"].nunique() > 1 else names


def _table(own: pd.DataFrame, lines: list[str]) -> pd.DataFrame:
    """Junctions by sources, NaN where a junction has no such source."""
    kind = str(own["weight"].iloc[0])
    sources = own["source"].map(dict(enumerate(_SOURCES[kind]))) if kind in _SOURCES else own["source"].astype(str)
    column = own["target"].astype(str) + "←" + sources if own["target"].max() > 0 else sources
    wide = own.assign(column=column)
    order = list(dict.fromkeys(wide.sort_values(["target", "source"])["column"]))
    table: pd.DataFrame = wide.pivot(index="junction", columns="column", values="mean")
    return table.reindex(index=lines, columns=order)
