"""Measured speeds drawn: how many times the plain model's time each variant takes, and what was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from comt_cli.report.figures.style import OKABE_ITO, QUIET, page_figure, style

_COLOURS = {
    "plain": QUIET,
    **dict.fromkeys(("transformers", "torch", "marian"), "#404040"),
    **dict.fromkeys(("comt", "window"), OKABE_ITO[0]),
    **dict.fromkeys(("transponder", "pixel", "highway"), OKABE_ITO[5]),
    **{"sas": OKABE_ITO[3], "grc": OKABE_ITO[4], "laurel": OKABE_ITO[1]},
}
"""By how the name of a variant begins."""
_STEP, _FORWARD, _GOAL = "step_ratio_to_best_plain", "forward_ratio_to_best_plain", "goal_step_ratio"
_LINEAR = 10.0
"""Per cent up to which the axis of overheads is linear."""
_LOOKS: dict[str, tuple[str, float, dict[str, Any]]] = {
    _STEP: ("training step", 0.16, {"marker": "o", "markersize": 3.8}),
    # below the steps: filled marks would hide hollow ones
    _FORWARD: ("forward pass", -0.16, {"marker": "o", "markersize": 3.6, "markerfacecolor": "white"}),
    _GOAL: (
        "goal of the step",
        0.16,
        {"marker": "|", "markersize": 9, "markeredgewidth": 1.6, "color": OKABE_ITO[2]},
    ),
}
"""By column: its meaning, how far above the middle of its line it stands, and its mark."""
_PLAIN = FuncFormatter(lambda number, _: f"{number:g}")


def draw_steps(frame: pd.DataFrame) -> Figure | None:
    """One panel a size and precision, one line a variant: by how many per cent its step (full, above) and its forward
    pass (hollow, below) take longer than the best plain one's, and what was asked of the step as a mark. The axis is
    linear up to 10 %, where the goals are, and logarithmic beyond."""
    if frame.empty or (frame := frame[frame[_STEP] != ""]).empty:
        return None
    names = frame["variant"].unique().tolist()[::-1]
    ratios = frame.reindex(columns=[*_LOOKS]).apply(pd.to_numeric, errors="coerce")
    percents = (100 * (ratios - 1)).assign(variant=frame["variant"])
    groups = percents.groupby([frame["size"], frame["precision"]], sort=False)
    across = min(5, len(groups))
    down = -(-len(groups) // across)
    with style():
        figure = page_figure(0.8 + down * (0.6 + 0.16 * len(names)))
        grid = figure.subplots(down, across, squeeze=False, sharey=True)
        for axes, (key, panel) in zip(grid.flat, groups, strict=False):
            _panel(axes, panel, names, is_narrow=across > 3)
            axes.set_title(", ".join(key))
        for axes in list(grid.flat)[len(groups) :]:
            axes.set_axis_off()
        label = "time beyond that of the best plain model, %"
        figure.supxlabel(f"{label} (linear up to {_LINEAR:g} %, shaded; logarithmic beyond)", fontsize=8)
        handles = [
            Line2D([], [], linestyle="none", label=meaning, **{"color": "#404040", **look, "markersize": size})
            for column, (meaning, _, look) in _LOOKS.items()
            for size in [max(look["markersize"], 4.6)]
            if percents[column].notna().any()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def _panel(axes: Axes, percents: pd.DataFrame, names: list[str], *, is_narrow: bool) -> None:
    for place, name in enumerate(names):
        colour = next((colour for start, colour in _COLOURS.items() if name.startswith(start)), QUIET)
        for order, (column, (_, above, look)) in enumerate(reversed(_LOOKS.items())):
            seen = percents.loc[percents["variant"] == name, column].dropna()
            axes.plot(
                seen, [place + above] * len(seen), linestyle="none", zorder=3 + order, **{"color": colour, **look}
            )
    low, high = np.nanmin(percents[[*_LOOKS]], initial=0.0), np.nanmax(percents[[*_LOOKS]], initial=_LINEAR)
    axes.axvline(0, color=QUIET, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=1.4)
    axes.set_xlim(low * (1.3 if low < -_LINEAR else 1) - 3, high * 1.3)
    beyond = [100, 1000] if high >= 100 else [50] if is_narrow else [20, 50]  # all have no room beside each other
    axes.xaxis.set_major_locator(FixedLocator([*([-50, -10] if low < -_LINEAR else [-10, -5]), 0, 5, 10, *beyond]))
    axes.axvspan(-_LINEAR, _LINEAR, color="#F4F4F4", zorder=0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(_PLAIN)


def draw_kernels(frame: pd.DataFrame) -> Figure | None:
    """A table for each type: down the operations and the products that they are of, across gates and variants, and in
    each cell how many times the time of the compiled operation without gates a forward and backward pass takes.
    Coloured by it, evenly for so many times as long and as short."""
    value = "step_ratio_to_plain_compiled"
    if frame.empty or (frame := frame[(frame["op"] != "gemm") & (frame[value] != "")]).empty:
        return None
    product = frame["shape"].str.rpartition("x")[2].str.partition("-")[2]
    gates = frame["gates"].replace("none", "no gates")
    frame = frame.assign(
        ratio=frame[value].astype(float),
        line=frame["op"] + (", " + product).where(product != "", "") + ": " + frame["tokens"] + " x " + frame["width"],
        cell=frame["variant"] + ", " + gates,
    )
    across = [cell for _, of in frame.groupby("gates", sort=False) for cell in of["cell"].unique()]
    tables = {
        str(dtype): of.pivot_table(index="line", columns="cell", values="ratio", sort=False).reindex(
            index=frame["line"].unique(), columns=across
        )
        for dtype, of in frame.groupby("dtype", sort=False)
    }
    most = max(2.0, frame["ratio"].max(), 1 / frame["ratio"].min())
    abreast = min(2 if len(across) <= 14 else 1, len(tables))
    stacked = -(-len(tables) // abreast)
    with style():
        figure = page_figure(0.4 + stacked * (1.35 + 0.135 * frame["line"].nunique()))
        grid = figure.subplots(stacked, abreast, squeeze=False, sharey=True)
        for axes, (dtype, table) in zip(grid.flat, tables.items(), strict=False):
            image = axes.imshow(
                table, norm=LogNorm(1 / most, most), cmap="PuOr_r", aspect="auto", interpolation="nearest"
            )
            for (down, right), ratio in np.ndenumerate(table.to_numpy()):
                if np.isfinite(ratio):
                    colour = "white" if abs(np.log(ratio)) > 0.6 * np.log(most) else "black"
                    text = f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
                    axes.text(right, down, text, ha="center", va="center", fontsize=5.2, color=colour)
            axes.set_title(dtype)
            axes.set_xticks(range(len(across)), across, rotation=90, fontsize=6)
            axes.set_yticks(range(len(table)), table.index, fontsize=6)
            axes.tick_params(length=0)
            axes.grid(visible=False)
        for axes in list(grid.flat)[len(tables) :]:
            axes.set_axis_off()
        bar = figure.colorbar(image, ax=grid, pad=0.01, aspect=30)
        bar.set_label("times the compiled one\nwithout gates (log scale)")
        bar.set_ticks([tick for tick in (0.2, 0.5, 1, 2, 5) if 1 / most <= tick <= most])
        bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.ax.yaxis.set_major_formatter(_PLAIN)
    return figure
