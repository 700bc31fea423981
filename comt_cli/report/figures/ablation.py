"""An ablation: the metric against the ablated quantity, ours on the left, the paper's on the right."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from comt_cli.report import format
from comt_cli.report.ablation import AblationData, Panel, Point
from comt_cli.report.figures.labels import place_labels
from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, QUIET, page_figure, style

_COLOURS: dict[Panel, str] = {"ours": OKABE_ITO[0], "paper": OKABE_ITO[5]}
_BAD = OKABE_ITO[5]
_STRIPS = 3
"""So many panels stand above each other before a second stack is begun."""
_NOTE_WIDTH = 128
"""Characters of the note's size on a line of page width."""
_SMALL = 6.5
_LETTER = 0.058
"""Inches that a letter of a tick's label takes."""
_SPREAD = 30
"""Numbers of which not all are positive stand on a linear axis while none is so many times the smallest but 0."""
_OUTLIER = 1.6
"""A value so many times worse than its panel's median stands off the scale with its number, as a collapsed one does, if
it is also farther from the others than those are from each other."""
_LEVEL = 0.11
"""Of a panel's height, that a mark off the scale takes."""


@dataclass(frozen=True)
class _Curve:
    """One column of one side: what is on the panel's scale, and what is off it, at the edge of the worse values."""

    panel: Panel
    column: str
    points: tuple[Point, ...]
    baseline: Point | None
    worse_is_up: bool

    def is_off(self, point: Point) -> bool:
        """Whether the value is collapsed, or so bad that the others could not be told apart beside it."""
        if point.value is None or point.collapsed:
            return point.collapsed
        known = [p.value for p in self.points if p.value is not None and not p.collapsed] or [point.value]
        median = statistics.median(known)

        def is_bad(value: float) -> bool:
            return value > _OUTLIER * median if self.worse_is_up else value < median / _OUTLIER

        near = [value for value in known if not is_bad(value)]
        gap = min(abs(point.value - value) for value in near)
        return is_bad(point.value) and gap > max(near) - min(near)

    def on_scale(self) -> list[Point]:
        """The points that the axis of values is made for."""
        return [point for point in self.points if point.value is not None and not self.is_off(point)]

    def off_scale(self) -> list[Point]:
        """The points at the edge of the worse values, the rightmost first."""
        return sorted((p for p in self.points if self.is_off(p)), key=lambda p: p.x or 0, reverse=True)

    def line(self) -> Point | None:
        """The baseline, where it has a value on the scale."""
        known = self.baseline is not None and self.baseline.value is not None
        return self.baseline if self.baseline is not None and known and not self.is_off(self.baseline) else None

    def height(self, level: int) -> float:
        """Where the marks off the scale stand, as a share of the panel's height: line by line from that edge."""
        from_edge = (level + 0.7) * _LEVEL
        return 1 - from_edge if self.worse_is_up else from_edge


def draw_ablation(data: AblationData) -> Figure:
    """One panel a column, each with its own axis of values: sizes and corpora differ more than methods do.

    Options that are numbers stand on a logarithmic axis of base 2 (where not all are positive a linear one, or, if they
    are spread out, one that is linear around 0 and logarithmic beyond), other rows by name, the cost in per cent of
    parameters, linear up to 1 and logarithmic beyond. A broken line is the baseline. A value off the scale (collapsed,
    above 1000, or far worse than its panel's others) is a triangle at the edge of the worse values, the upper one of a
    perplexity and the lower of an accuracy, with its number; a run without a value is a word at the other edge.
    """
    sides: dict[Panel, list[_Curve]] = {"ours": _curves(data, "ours"), "paper": _curves(data, "paper")}
    most = max(len(curves) for curves in sides.values())
    # Two stacks on both sides would be too narrow for what is written in them.
    strips = _STRIPS if min(len(curves) for curves in sides.values()) <= _STRIPS else most
    stacks = {panel: _stacks(curves, strips) for panel, curves in sides.items() if curves}
    width = PAGE_WIDTH / sum(len(side) for side in stacks.values()) - 0.45
    high = max(len(stack) for side in stacks.values() for stack in side)
    with style():
        figure = page_figure(1.2 + (1.35 if high > 1 else 1.9) * high + (0.5 if _is_slanted(data, width) else 0))
        parts = figure.subfigures(1, len(stacks), squeeze=False, width_ratios=[len(side) for side in stacks.values()])
        panels = [
            drawn
            for part, (panel, side) in zip(parts[0], stacks.items(), strict=True)
            for drawn in _side(part, data, panel, side, width)
        ]
        figure.suptitle(textwrap.fill(data.title, 100), fontsize=9)
        figure.supxlabel(textwrap.fill(" ".join(_notes(data, panels)), _NOTE_WIDTH), fontsize=7, color="#404040")
        if data.axis == "cost":
            _name_points(figure, panels)
    return figure


def _curves(data: AblationData, panel: Panel) -> list[_Curve]:
    return [
        _Curve(panel, column, tuple(data.of(panel, column)), data.baseline_of(panel, column), data.better == "lower")
        for column in data.columns(panel)
    ]


def _stacks(curves: Sequence[_Curve], most: int) -> list[list[_Curve]]:
    """Panels above each other, in as many equal stacks side by side as keep them at most so high."""
    count = -(-len(curves) // most)
    size = -(-len(curves) // count)
    return [list(curves[start : start + size]) for start in range(0, len(curves), size)]


def _side(
    part: SubFigure, data: AblationData, panel: Panel, stacks: list[list[_Curve]], width: float
) -> list[tuple[Axes, _Curve]]:
    high = max(len(stack) for stack in stacks)
    grid = part.subplots(high, len(stacks), squeeze=False)
    part.suptitle(f"(a) ours, scale {data.scale}" if panel == "ours" else "(b) printed in the paper", fontsize=8.5)
    part.supylabel(data.metric, fontsize=8)
    part.supxlabel(data.quantity, fontsize=8)
    drawn = []
    numbers = sorted({p.x for stack in stacks for curve in stack for p in curve.points if p.x is not None})
    for across, stack in enumerate(stacks):
        for down in range(high):
            axes = grid[down][across]
            if down >= len(stack):
                axes.set_axis_off()
                continue
            curve = stack[down]
            _x_axis(axes, data, numbers, width)
            _draw_curve(axes, data, curve)
            axes.tick_params(labelbottom=down == len(stack) - 1)
            axes.set_title(curve.column, fontsize=7.5, loc="left", pad=3)
            drawn.append((axes, curve))
    return drawn


def _draw_curve(axes: Axes, data: AblationData, curve: _Curve) -> None:
    colour = _COLOURS[curve.panel]
    places = {row: float(number) for number, row in enumerate(data.rows())}

    def at(point: Point) -> float | None:
        return places[point.row] if data.axis == "category" else point.x

    on_scale = curve.on_scale()
    if data.axis == "number":
        # A point that is missing, or off the scale, breaks the line.
        heights = [point.value if point in on_scale else None for point in curve.points]
        known = [(at(point), height) for point, height in zip(curve.points, heights, strict=True)]
        axes.plot(*zip(*[(x, float("nan") if y is None else y) for x, y in known], strict=True), color=colour, zorder=2)
    for point in on_scale:
        x = at(point)
        if x is None or point.value is None:
            continue
        axes.errorbar(
            x,
            point.value,
            yerr=point.stderr,
            fmt="o",
            color=colour,
            markersize=3.6,
            markerfacecolor=colour if point.state in ("done", "printed") else "white",
            elinewidth=0.9,
            capsize=2.2,
            zorder=3,
        )
    line = curve.line()
    if line is not None and line.value is not None:
        axes.axhline(line.value, color=QUIET, linewidth=0.9, linestyle="--", zorder=1)
        if line.stderr is not None:
            low, high = line.value - line.stderr, line.value + line.stderr
            axes.axhspan(low, high, color=QUIET, alpha=0.18, linewidth=0, zorder=0.8)
    levels = _mark_off_scale(axes, data, curve, colour, at)
    _value_axis(axes, [*on_scale, *([line] if line else [])], levels, room_above=curve.worse_is_up)
    for point in curve.points:
        x = at(point)
        if point.value is None and x is not None:
            axes.text(
                x, 0.05 if curve.worse_is_up else 0.95, _word(point.state), transform=axes.get_xaxis_transform(),
                rotation=90, ha="center", va="bottom" if curve.worse_is_up else "top", fontsize=_SMALL,
                color=_BAD if "diverged" in point.state else QUIET,
            )  # fmt: skip


def _mark_off_scale(axes: Axes, data: AblationData, curve: _Curve, colour: str, at: object) -> int:
    """Triangles with numbers at the edge of the worse values, and what became of a baseline without a line; returns
    how many lines they take."""
    assert callable(at)
    edge, levels = axes.get_xaxis_transform(), 0
    off = [(at(point), point) for point in curve.off_scale() if at(point) is not None]
    for number, (x, point) in enumerate(off):
        level = number if data.axis == "cost" else 0  # costs may be equal: one line each
        height = curve.height(level)
        name = f"{point.row} " if data.axis == "cost" else ""
        value = f"{point.value:.0f}" if point.collapsed or point.value is None else format.value(point.value)
        axes.plot(
            [x], [height], "^" if curve.worse_is_up else "v", color=colour, markersize=4, transform=edge, zorder=3
        )
        axes.annotate(
            name + value, (x, height), xycoords=edge, xytext=(4, 0), textcoords="offset points",
            fontsize=_SMALL, va="center", color=colour,
        )  # fmt: skip
        levels = level + 1
    if curve.line() is None:
        text = f"baseline: {_baseline_word(curve.baseline)}"
        axes.text(0.99, curve.height(levels), text, transform=axes.transAxes, fontsize=_SMALL, ha="right",
                  va="center", color="#404040")  # fmt: skip
        levels += 1
    return levels


def _baseline_word(baseline: Point | None) -> str:
    if baseline is None:
        return "not printed"
    if baseline.value is None:
        return _word(baseline.state)
    return f"{format.value(baseline.value)}, {'collapsed' if baseline.collapsed else 'off the scale'}"


def _word(state: str) -> str:
    """`diverged`, `running`, ...: of `2 diverged, 1 missing` the first."""
    return next((word for word in ("diverged", "running", "unfinished") if word in state), "missing")


def _value_axis(axes: Axes, points: Sequence[Point], levels: int, *, room_above: bool) -> None:
    """All values and bars with some air; above them, or below, room for so many lines of marks."""
    ends = [(p.value - (p.stderr or 0), p.value + (p.stderr or 0)) for p in points if p.value is not None]
    if not ends:
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    least = 0.05 if len(ends) == 1 else 0.004  # a single value is no reason to show its third decimal
    span = max(high - low, least * abs(high), 1e-6)
    middle = (low + high) / 2
    share = 1 - min(levels * _LEVEL, 0.6)
    bottom, top = middle - 0.64 * span, middle + 0.64 * span
    height = (top - bottom) / share
    axes.set_ylim(*((bottom, bottom + height) if room_above else (top - height, top)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))


def _x_axis(axes: Axes, data: AblationData, numbers: Sequence[float], width: float) -> None:
    axes.xaxis.set_minor_locator(NullLocator())
    if data.axis == "category":
        rows = data.rows()
        axes.set_xlim(-0.5, len(rows) - 0.5)
        slanted = _is_slanted(data, width)
        looks = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
        axes.set_xticks(range(len(rows)), rows, **looks)  # type: ignore[arg-type]
        return
    if not numbers:
        return
    if data.axis == "number":
        if numbers[0] > 0:
            axes.set_xscale("log", base=2)
            axes.set_xlim(numbers[0] / 1.35, numbers[-1] * 1.35)
        elif _is_spread_out(numbers):
            axes.set_xscale("symlog", linthresh=min(abs(number) for number in numbers if number))
            scale = axes.xaxis.get_transform()
            low, high = scale.transform([numbers[0], numbers[-1]])
            air = 0.08 * (high - low)
            axes.set_xlim(*scale.inverted().transform([low - air, high + air]))
        else:
            air = 0.08 * max(numbers[-1] - numbers[0], 1)
            axes.set_xlim(numbers[0] - air, numbers[-1] + air)
        axes.set_xticks(numbers, _labels_apart(axes, numbers, width))
        axes.xaxis.set_minor_locator(NullLocator())
        return
    if numbers[-1] > 3:
        axes.set_xscale("symlog", linthresh=1, linscale=0.9)
        axes.set_xlim(min(-0.12, numbers[0] - 0.1), numbers[-1] * 3)
        axes.xaxis.set_major_locator(FixedLocator([0, 0.5, 1, 3, 10, 30, 100]))
    else:
        span = max(numbers[-1] - min(numbers[0], 0), 0.1)
        axes.set_xlim(min(numbers[0], 0) - 0.06 * span, numbers[-1] + 0.35 * span)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _is_spread_out(numbers: Sequence[float]) -> bool:
    """Whether the small ones could not be told apart on a linear axis."""
    sizes = [abs(number) for number in numbers if number]
    return bool(sizes) and max(sizes) > _SPREAD * min(sizes)


def _labels_apart(axes: Axes, numbers: Sequence[float], width: float) -> list[str]:
    """A label for each of the rising numbers on a panel of `width` inches, empty where it would touch another's. The
    ends come first."""
    labels = [f"{number:g}" for number in numbers]
    scale = axes.xaxis.get_transform()
    left, right = scale.transform(list(axes.get_xlim()))
    inches = [width * (place - left) / (right - left) for place in scale.transform(list(numbers))]
    last = len(numbers) - 1
    kept: list[int] = []
    for number in (0, last, *range(1, last)):
        letters = [(len(labels[number]) + len(labels[other])) / 2 + 1 for other in kept]
        gaps = [abs(inches[number] - inches[other]) for other in kept]
        if all(gap > count * _LETTER for gap, count in zip(gaps, letters, strict=True)):
            kept.append(number)
    return [label if number in kept else "" for number, label in enumerate(labels)]


def _is_slanted(data: AblationData, width: float) -> bool:
    """Whether the categories' names are too long to lie beside each other below a panel of `width` inches."""
    rows = data.rows()
    return data.axis == "category" and max(map(len, rows)) * _LETTER > width / len(rows)


def _notes(data: AblationData, panels: Sequence[tuple[Axes, _Curve]]) -> list[str]:
    curves = [curve for _, curve in panels]
    band = ", its standard error the band" if any((c.line() or c.points[0]).stderr for c in curves) else ""
    said = [f"Broken line: {data.baseline}{band}."] if any(curve.line() for curve in curves) else []
    if any(curve.off_scale() for curve in curves):
        collapse = " (a printed one above 1000 is a collapsed run)" if data.better == "lower" else ""
        said.append(f"Triangles: values off the scale, written beside them{collapse}.")
    return [*data.notes, *said]


def _name_points(figure: Figure, panels: Sequence[tuple[Axes, _Curve]]) -> None:
    """Write the rows' names beside their points, once the panels have their final places."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes, curve in panels:
        named = [(p.x, p.value, p.row) for p in curve.on_scale() if p.x is not None and p.value is not None]
        place_labels(axes, named, "#303030", _SMALL - 0.5)
