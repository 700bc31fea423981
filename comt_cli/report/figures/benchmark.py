"""Measured speeds drawn: how many times the plain model's time each variant takes, and what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

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
}
_GOAL = OKABE_ITO[2]
_LINEAR = 10.0
"""Per cent up to which the axis of overheads is linear."""
_MARKS = {"reference": "o", "reference-compiled": "s", "fused": "D", "library": "^", "epilogue": "v"}
_TICKS = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.5, 3, 4, 6, 8, 12, 16, 24, 32)


def draw_steps(rows: Sequence[Row]) -> Figure | None:
    """One panel a size and precision, one line a variant: by how many per cent its step (full) and its forward pass
    (hollow) take longer than the best plain one's; what was asked of the step, and what was predicted, as marks. The
    axis is linear up to 10 %, where the goals are, and logarithmic beyond."""
    return _ratios(
        rows,
        ("size", "precision"),
        "step_ratio_to_best_plain",
        "forward_ratio_to_best_plain",
        "time beyond that of the best plain model, %",
        "predicted_step_ratio",
    )


def draw_predicted(rows: Sequence[Row]) -> Figure | None:
    """The same of predicted times."""
    return _ratios(
        rows,
        ("size",),
        "predicted_step_ratio",
        "predicted_forward_ratio",
        "predicted time beyond that of the plain model, % (not measured)",
    )


def _ratios(
    rows: Sequence[Row], by: tuple[str, ...], step: str, forward: str, label: str, predicted: str | None = None
) -> Figure | None:
    rows = [row for row in rows if row.get(step)]
    if not rows:
        return None
    names = list(dict.fromkeys(row["variant"] for row in rows))
    panels: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        panels.setdefault(tuple(row[name] for name in by), []).append(row)
    across = min(5, len(panels))
    down = -(-len(panels) // across)
    with style():
        figure = page_figure(0.8 + down * (0.6 + 0.16 * len(names)))
        grid = figure.subplots(down, across, squeeze=False, sharey=True)
        for axes, (key, of) in zip(grid.flat, panels.items(), strict=False):
            _panel(axes, of, names, (step, forward, predicted), is_narrow=across > 3)
            axes.set_title(", ".join(key))
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_axis_off()
        figure.supxlabel(label, fontsize=8)
        has_goals = any(row.get("goal_step_ratio") for row in rows)
        has_predictions = predicted is not None and any(row.get(predicted) for row in rows)
        figure.legend(handles=_handles(has_goals, has_predictions), loc="outside upper center", ncols=4)
    return figure


def _panel(
    axes: Axes, rows: Sequence[Row], names: Sequence[str], columns: tuple[str, str, str | None], *, is_narrow: bool
) -> None:
    step, forward, predicted = columns
    seen = [0.0, _LINEAR]
    for row in rows:
        place = len(names) - 1 - names.index(row["variant"])
        colour = _colour(row["variant"])
        marks: list[tuple[str | None, dict[str, Any]]] = [
            ("goal_step_ratio", {"marker": "|", "markersize": 9, "markeredgewidth": 1.6, "color": _GOAL}),
            (forward, {"marker": "o", "markersize": 4, "color": colour, "markerfacecolor": "white"}),
            (step, {"marker": "o", "markersize": 4.6, "color": colour}),
            (predicted, {"marker": "x", "markersize": 4, "color": "black"}),
        ]
        for order, (name, look) in enumerate(marks):
            if name and row.get(name):
                percent = 100 * (float(row[name]) - 1)
                seen.append(percent)
                axes.plot([percent], [place], linestyle="none", zorder=3 + order, **look)
    axes.axvline(0, color=QUIET, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=1.4)
    axes.set_xlim(min(seen) * (1.3 if min(seen) < -_LINEAR else 1) - 3, max(seen) * 1.3)
    # all four have no room beside each other
    beyond = [100, 1000] if max(seen) >= 100 else [50] if is_narrow else [20, 50]
    axes.xaxis.set_major_locator(FixedLocator([-50, -20, -10, 0, 5, 10, *beyond]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))


def _handles(goals: bool, predictions: bool) -> list[Line2D]:
    looks: list[tuple[str, dict[str, Any]]] = [
        ("training step", {"marker": "o", "color": "#404040"}),
        ("forward pass", {"marker": "o", "color": "#404040", "markerfacecolor": "white"}),
    ]
    if goals:
        looks.append(("goal of the step", {"marker": "|", "color": _GOAL, "markeredgewidth": 1.6, "markersize": 9}))
    if predictions:
        looks.append(("predicted step", {"marker": "x", "color": "black"}))
    return [Line2D([], [], linestyle="none", label=label, **({"markersize": 4.6} | look)) for label, look in looks]


def draw_kernels(rows: Sequence[Row]) -> Figure | None:
    """One panel an operation and type: a forward and backward pass of every variant over that of the compiled operation
    without gates, against the channels of its product."""
    value = "step_ratio_to_plain_compiled"
    rows = [row for row in rows if row["op"] != "gemm" and row.get(value)]
    if not rows:
        return None
    ops = list(dict.fromkeys(row["op"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    with style():
        figure = page_figure(1.1 + 1.6 * len(dtypes))
        grid = figure.subplots(len(dtypes), len(ops), squeeze=False, sharey="row")
        for line, dtype in zip(grid, dtypes, strict=True):
            for axes, op in zip(line, ops, strict=True):
                _curves(axes, [row for row in rows if (row["op"], row["dtype"]) == (op, dtype)], value)
                axes.set_title(f"{op}, {dtype}")
            seen = [float(row[value]) for row in rows if row["dtype"] == dtype]
            _log_axis(line[0], [1.0, *seen])
        figure.supxlabel("channels of the product", fontsize=8)
        figure.supylabel("forward and backward / compiled, without gates", fontsize=8)
        variants = list(dict.fromkeys(row["variant"] for row in rows))
        gates = list(dict.fromkeys(row["gates"] for row in rows))
        handles = [Line2D([], [], color=_colour(gate), label=f"gates: {gate}") for gate in gates]
        handles += [
            Line2D([], [], linestyle="none", color="#404040", marker=_MARKS.get(each, "o"), markersize=4, label=each)
            for each in variants
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def _curves(axes: Axes, rows: Sequence[Row], value: str) -> None:
    lines: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for row in rows:
        # products of one width may differ in what they are of: each has its line
        lines.setdefault((row["gates"], row["variant"], _product(row)), []).append(
            (int(row["width"]), float(row[value]))
        )
    for (gates, variant, _), points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), color=_colour(gates), marker=_MARKS.get(variant, "o"),
                  markersize=3.4, linewidth=0.7, alpha=0.9)  # fmt: skip
    axes.axhline(1, color=QUIET, linewidth=0.8, zorder=1)
    widths = sorted({int(row["width"]) for row in rows})
    if widths:
        axes.set_xscale("log", base=2)
        shown = [w for place, w in enumerate(widths) if place in (0, len(widths) - 1) or len(widths) < 4]
        axes.set_xlim(widths[0] / 1.3, widths[-1] * 1.3)
        axes.xaxis.set_major_locator(FixedLocator(shown))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))


def _product(row: Row) -> str:
    """`qkv` of `d512-f1376-h8-b256x256-qkv`."""
    return row["shape"].rpartition("x")[2].partition("-")[2]


def _colour(name: str) -> str:
    return next((colour for start, colour in _COLOURS.items() if name.startswith(start)), QUIET)


def _log_axis(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic, with few and plain numbers; a ratio and its inverse then lie equally far from 1."""
    low, high = min(values) / 1.06, max(values) * 1.06
    axis = axes.yaxis
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    inside = [tick for tick in _TICKS if low <= tick <= high]
    most = 5
    while len(inside) > most:  # every other one, 1 always among them
        place = inside.index(1) if 1 in inside else 0
        inside = [tick for number, tick in enumerate(inside) if (number - place) % 2 == 0]
    axis.set_major_locator(FixedLocator(inside))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
