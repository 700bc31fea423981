"""Measured speeds drawn: how many times the plain model's time each variant takes, and what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from comt_cli.report.figures.style import OKABE_ITO, QUIET, page_figure, style

Row = Mapping[str, str]

_COLOURS = {
    "transformers": "#404040",
    "torchvision": "#404040",
    "plain": QUIET,
    "comt": OKABE_ITO[0],
    "window": OKABE_ITO[0],
    "transponder": OKABE_ITO[5],
    "pixel": OKABE_ITO[5],
    "sas": OKABE_ITO[3],
    "grc": OKABE_ITO[4],
    "laurel": OKABE_ITO[1],
    "highway": OKABE_ITO[5],
    "torch": "#404040",
    "marian": "#404040",
}
_GOAL = OKABE_ITO[2]
_STEP, _FORWARD = "step_ratio_to_best_plain", "forward_ratio_to_best_plain"
_APART = 0.16
"""Of a line's height, between the middle and a mark."""
_NARROW = 14
"""Columns of a table of ratios of which two have room beside each other."""
_LINEAR = 10.0
"""Per cent up to which the axis of overheads is linear."""
_TICKS = (0.2, 0.25, 0.33, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5)


def draw_steps(rows: Sequence[Row]) -> Figure | None:
    """One panel a size and precision, one line a variant: by how many per cent its step (full, above) and its forward
    pass (hollow, below) take longer than the best plain one's, and what was asked of the step as a mark. The axis is
    linear up to 10 %, where the goals are, and logarithmic beyond."""
    rows = [row for row in rows if row.get(_STEP)]
    if not rows:
        return None
    names = list(dict.fromkeys(row["variant"] for row in rows))
    panels: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        panels.setdefault((row["size"], row["precision"]), []).append(row)
    across = min(5, len(panels))
    down = -(-len(panels) // across)
    with style():
        figure = page_figure(0.8 + down * (0.6 + 0.16 * len(names)))
        grid = figure.subplots(down, across, squeeze=False, sharey=True)
        for axes, (key, of) in zip(grid.flat, panels.items(), strict=False):
            _panel(axes, of, names, is_narrow=across > 3)
            axes.set_title(", ".join(key))
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_axis_off()
        label = "time beyond that of the best plain model, %"
        figure.supxlabel(f"{label} (linear up to {_LINEAR:g} %, shaded; logarithmic beyond)", fontsize=8)
        has_goals = any(row.get("goal_step_ratio") for row in rows)
        figure.legend(handles=_handles(has_goals), loc="outside upper center", ncols=4)
    return figure


def _panel(axes: Axes, rows: Sequence[Row], names: Sequence[str], *, is_narrow: bool) -> None:
    seen = [0.0, _LINEAR]
    for row in rows:
        place = len(names) - 1 - names.index(row["variant"])
        colour = _colour(row["variant"])
        marks: list[tuple[str, dict[str, Any]]] = [
            ("goal_step_ratio", {"marker": "|", "markersize": 9, "markeredgewidth": 1.6, "color": _GOAL}),
            (_FORWARD, {"marker": "o", "markersize": 3.6, "color": colour, "markerfacecolor": "white"}),
            (_STEP, {"marker": "o", "markersize": 3.8, "color": colour}),
        ]
        for order, (name, look) in enumerate(marks):
            if row.get(name):
                percent = 100 * (float(row[name]) - 1)
                seen.append(percent)
                # forward passes stand below the steps: filled marks would hide hollow ones
                height = place - _APART if name == _FORWARD else place + _APART
                axes.plot([percent], [height], linestyle="none", zorder=3 + order, **look)
    axes.axvline(0, color=QUIET, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=1.4)
    axes.set_xlim(min(seen) * (1.3 if min(seen) < -_LINEAR else 1) - 3, max(seen) * 1.3)
    # all of them have no room beside each other
    beyond = [100, 1000] if max(seen) >= 100 else [50] if is_narrow else [20, 50]
    below = [-50, -10] if min(seen) < -_LINEAR else [-10, -5]
    axes.xaxis.set_major_locator(FixedLocator([*below, 0, 5, 10, *beyond]))
    axes.axvspan(-_LINEAR, _LINEAR, color="#F4F4F4", zorder=0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))


def _handles(goals: bool) -> list[Line2D]:
    looks: list[tuple[str, dict[str, Any]]] = [
        ("training step", {"marker": "o", "color": "#404040"}),
        ("forward pass", {"marker": "o", "color": "#404040", "markerfacecolor": "white"}),
    ]
    if goals:
        looks.append(("goal of the step", {"marker": "|", "color": _GOAL, "markeredgewidth": 1.6, "markersize": 9}))
    return [Line2D([], [], linestyle="none", label=label, **({"markersize": 4.6} | look)) for label, look in looks]


def draw_kernels(rows: Sequence[Row]) -> Figure | None:
    """A table for each type: down the operations and the products that they are of, across gates and variants, and in
    each cell how many times the time of the compiled operation without gates a forward and backward pass takes.
    Coloured by it, evenly for so many times as long and as short."""
    value = "step_ratio_to_plain_compiled"
    rows = [row for row in rows if row["op"] != "gemm" and row.get(value)]
    if not rows:
        return None
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    down = list(dict.fromkeys((row["op"], row["tokens"], row["width"], row["shape"]) for row in rows))
    across = sorted(
        dict.fromkeys((row["gates"], row["variant"]) for row in rows), key=lambda each: _first(rows, "gates", each[0])
    )
    ratios = [float(row[value]) for row in rows]
    most = max(2.0, *ratios, *(1 / ratio for ratio in ratios))
    norm = LogNorm(1 / most, most)
    abreast = 2 if len(across) <= _NARROW else 1
    stacked = -(-len(dtypes) // abreast)
    with style():
        figure = page_figure(0.4 + stacked * (1.35 + 0.135 * len(down)))
        grid = figure.subplots(stacked, min(abreast, len(dtypes)), squeeze=False, sharey=True)
        for axes, dtype in zip(grid.flat, dtypes, strict=False):
            cells = np.full((len(down), len(across)), np.nan)
            for row in rows:
                if row["dtype"] == dtype:
                    place = down.index((row["op"], row["tokens"], row["width"], row["shape"]))
                    cells[place, across.index((row["gates"], row["variant"]))] = float(row[value])
            image = axes.imshow(cells, norm=norm, cmap="PuOr_r", aspect="auto", interpolation="nearest")
            write_cells(axes, cells, lambda ratio: abs(np.log(ratio)) > 0.6 * np.log(most))
            axes.set_title(dtype)
            names = [f"{variant}, {gates}" if gates != "none" else f"{variant}, no gates" for gates, variant in across]
            axes.set_xticks(range(len(across)), names, rotation=90, fontsize=6)
            axes.set_yticks(range(len(down)), [_row_name(*each) for each in down], fontsize=6)
            axes.tick_params(length=0)
            axes.grid(visible=False)
        for axes in list(grid.flat)[len(dtypes) :]:
            axes.set_axis_off()
        bar = figure.colorbar(image, ax=grid, pad=0.01, aspect=30)
        bar.set_label("times the compiled one\nwithout gates (log scale)")
        ticks = [tick for tick in _TICKS if 1 / most <= tick <= most]
        bar.set_ticks([0.2, 0.5, 1, 2, 5] if most >= 5 else ticks[:: max(1, len(ticks) // 5)])
        bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    return figure


def write_cells(axes: Axes, cells: NDArray[np.float64], is_dark: Callable[[float], bool], digits: int = 2) -> None:
    """Every number into its cell, white where the cell `is_dark`."""
    for (down, across), number in np.ndenumerate(cells):
        if np.isfinite(number):
            text = f"{number:.{digits}f}" if abs(number) < 9.95 else f"{number:.0f}"
            axes.text(across, down, text, ha="center", va="center", fontsize=5.2,
                      color="white" if is_dark(float(number)) else "black")  # fmt: skip


def _first(rows: Sequence[Row], key: str, value: str) -> int:
    return next(number for number, row in enumerate(rows) if row[key] == value)


def _row_name(op: str, tokens: str, width: str, shape: str) -> str:
    """`heads, qkv: 512 x 384`: the operation, its matrix product, the product's rows and channels."""
    product = shape.rpartition("x")[2].partition("-")[2]
    return f"{op}{f', {product}' if product else ''}: {tokens} x {width}"


def _colour(name: str) -> str:
    return next((colour for start, colour in _COLOURS.items() if name.startswith(start)), QUIET)
