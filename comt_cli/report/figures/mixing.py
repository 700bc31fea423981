"""What residual connections and attention mix, junction by junction: one map a kind of weight."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from comt_cli.report.figures.style import PAGE_WIDTH, page_figure, style

DISPERSION = "dispersion"
"""What `analysis.mixing` calls the distance of streams from their mean."""
_SIGNED = "PuOr_r"
"""White is 0, and its two ends are told apart by the colour blind."""
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
    "first-own": "values: first\nblock, own",
    "stream": "shares in\nthe stream",
    DISPERSION: "dispersion of\nthe streams",
}


def draw_mixing(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """One map a kind of weight: a line for every junction, from the first at the top, and a column for every source, or
    for every pair of a target and a source. The mean over the tokens; white is 0, and all maps share their colours.

    `frame` has rows `stack, layer, part, weight, target, source, mean, std` (`analysis.mixing`). Returns the figure and
    `frame`.
    """
    kinds = list(dict.fromkeys(frame["weight"]))
    tables = {kind: _table(frame[frame["weight"] == kind]) for kind in kinds}
    end = max(float(np.nanmax(np.abs(table.to_numpy()))) for table in tables.values())
    with style():
        lines = max(len(table) for table in tables.values())
        figure = page_figure(min(6.5, 1.3 + 0.16 * lines), PAGE_WIDTH)
        widths = [2 + min(len(table.columns), _WIDEST) for table in tables.values()]
        row = figure.subplots(1, len(kinds), squeeze=False, width_ratios=widths)[0]
        for axes, (kind, table) in zip(row, tables.items(), strict=True):
            drawn = axes.imshow(table.to_numpy(), cmap=_SIGNED, vmin=-end, vmax=end, aspect="auto")
            axes.set_title(_TITLES.get(kind, kind), fontsize=7)
            axes.grid(visible=False)
            axes.set_yticks(range(len(table)), list(table.index) if axes is row[0] or len(table) != lines else [])
            step = max(1, len(table.columns) // 8)
            axes.set_xticks(range(0, len(table.columns), step), list(table.columns)[::step], rotation=60)
        bar = figure.colorbar(drawn, ax=list(row), location="right", pad=0.01, aspect=30)
        bar.set_label("weight, mean over the tokens")
    return figure, frame


def _table(own: pd.DataFrame) -> pd.DataFrame:
    """Junctions by sources, NaN where a junction has no such source."""
    has_targets = own["target"].max() > 0
    wide = own.assign(
        junction=own["layer"].astype(str) + " " + own["part"],
        column=(own["target"].astype(str) + "←" if has_targets else "") + own["source"].astype(str),
    )
    order = list(dict.fromkeys(wide["junction"])), list(dict.fromkeys(wide.sort_values(["target", "source"])["column"]))
    table: pd.DataFrame = wide.pivot(index="junction", columns="column", values="mean")
    return table.loc[order[0], order[1]]
