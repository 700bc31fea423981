"""An ablation: the metric against the ablated quantity, ours on the left, the paper's on the right."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox

from comt_cli.report.ablation import AblationData
from comt_cli.report.ablation_points import Curve, Panel
from comt_cli.report.ablation_words import row_words
from comt_cli.report.figures.ablation_panel import SMALL, Drawn, baseline_text, draw_curve
from comt_cli.report.figures.labels import place_labels
from comt_cli.report.figures.style import PAGE_WIDTH, letters_on, page_figure, style
from comt_cli.words import in_words

_STRIPS = 3
"""Panels in a stack, before a second stack is begun."""
_LETTER = 0.058
"""Inches that a letter of a tick's label takes."""
_SPREAD = 30
"""Numbers of which not all are positive stand on a linear axis while none is so many times the smallest but 0."""
_BESIDE = 0.62
"""Inches beside a panel: its ticks, and its share of the axis' name."""
_TIGHT = 1.15
"""Panels may be so many times narrower than they would like to be, before they are stacked."""
_LEANING = 0.65
"""About what slanted names leave of a panel's width."""
_LEAST_WIDTH = 3.6
"""Inches: a narrower figure has no room for what is written under it."""


def draw_ablation(data: AblationData, *, shared: bool = False) -> Figure:
    """One panel a column, each with its own axis of values (or, `shared`, one for all of a side): sizes and corpora
    differ more than methods do. The figure is as wide as its points need, and no wider than a page.

    Options that are numbers stand on a logarithmic axis of base 2 (shares, and where not all are positive, on a linear
    axis, or, if they are spread out, on one that is linear around 0 and logarithmic beyond), other rows by name, the
    cost in per cent of parameters, linear up to 1 and logarithmic beyond. A broken line is the baseline, over the panel
    its value. Bars are the paired intervals that verdicts are taken from, drawn from that line. A value off the scale
    (collapsed, above 1000, or far worse than its panel's others) is a triangle with its number on a broken axis beyond
    the end of the worse values; a run without a value is a word at the other end.
    """
    sides: dict[Panel, list[Curve]] = {"ours": data.curves("ours"), "paper": data.curves("paper")}
    wanted = {panel: _wanted(data, panel) for panel, curves in sides.items() if curves}
    stacks, total = _arranged(sides, wanted)
    page = min(max(total, _LEAST_WIDTH), PAGE_WIDTH)
    shrink = page / total
    widths = {panel: (wanted[panel] + _BESIDE) * shrink - _BESIDE for panel in stacks}
    high = max(len(stack) for side in stacks.values() for stack in side)
    is_slanted = any(_is_slanted(data, panel, widths[panel]) for panel in stacks)
    foot = _foot(data, page)
    with style():
        above = 0.75 + 0.135 * (foot.count("\n") + 1) + (0.5 if is_slanted else 0)
        figure = page_figure(above + (1.45 if high > 1 else 1.75) * high, page)
        ratios = [(wanted[panel] + _BESIDE) * len(side) for panel, side in stacks.items()]
        parts = figure.subfigures(1, len(stacks), squeeze=False, width_ratios=ratios)
        panels = [
            drawn
            for part, (panel, side) in zip(parts[0], stacks.items(), strict=True)
            for drawn in _side(part, data, panel, side, widths[panel], is_alone=len(stacks) == 1, shared=shared)
        ]
        figure.suptitle(textwrap.fill(data.title, letters_on(page, 9)), fontsize=9)
        figure.supxlabel(foot, fontsize=SMALL, color="#404040")
        if data.axis == "cost":
            _name_points(figure, panels)
    return figure


def _wanted(data: AblationData, panel: Panel) -> float:
    """Inches that a panel's points need, labels beside it not counted."""
    if data.axis == "category":
        return 0.4 + 0.48 * max(len(data.rows(panel)), 2)
    return 2.6 if data.axis == "cost" else 0.9 + 0.28 * max(len(data.rows(panel)), 3)


def _arranged(
    sides: dict[Panel, list[Curve]], wanted: dict[Panel, float]
) -> tuple[dict[Panel, list[list[Curve]]], float]:
    """Panels in stacks as low as a page is wide enough for; with the inches that they would be wide."""
    most = max(len(curves) for curves in sides.values())
    # Two stacks on both sides would be too narrow for what is written in them.
    last = _STRIPS if min(len(curves) for curves in sides.values()) <= _STRIPS else most
    for high in range(1, last + 1):
        stacks = {panel: _stacks(curves, high) for panel, curves in sides.items() if curves}
        total = sum((wanted[panel] + _BESIDE) * len(side) for panel, side in stacks.items())
        if total <= _TIGHT * PAGE_WIDTH:
            break
    return stacks, total


def _stacks(curves: Sequence[Curve], most: int) -> list[list[Curve]]:
    """Panels above each other, in as many equal stacks side by side as keep them at most so high."""
    count = -(-len(curves) // most)
    size = -(-len(curves) // count)
    return [list(curves[start : start + size]) for start in range(0, len(curves), size)]


def _side(
    part: SubFigure,
    data: AblationData,
    panel: Panel,
    stacks: list[list[Curve]],
    width: float,
    *,
    is_alone: bool,
    shared: bool,
) -> list[Drawn]:
    high = max(len(stack) for stack in stacks)
    grid = part.subplots(high, len(stacks), squeeze=False)
    letter = "" if is_alone else "(a) " if panel == "ours" else "(b) "
    heading = f"trained here, scale {data.scale}" if panel == "ours" else f"as printed in {data.paper}"
    part.suptitle(textwrap.fill(letter + heading, letters_on((width + _BESIDE) * len(stacks), 8)), fontsize=8)
    part.supylabel(f"{data.metric} ({data.better} is better)" if high > 1 else data.metric, fontsize=8)
    numbers = sorted({x for stack in stacks for curve in stack for p in curve.points if (x := p.abscissa) is not None})
    drawn = []
    places = {row: float(number) for number, row in enumerate(data.rows(panel))}
    for across, stack in enumerate(stacks):
        for down in range(high):
            axes = grid[down][across]
            if down >= len(stack):
                axes.set_axis_off()
                continue
            curve = stack[down]
            _x_axis(axes, data, panel, numbers, width)
            drawn.append(draw_curve(axes, data, curve, places, width))
            is_last = down == len(stack) - 1
            _around(drawn[-1], data, width, is_last=is_last)
    if drawn:
        kind = drawn[0].axes.get_xscale()
        said = {
            "log": " (log scale)",
            "symlog": " (log scale from 1 on)" if data.axis == "cost" else " (log scale away from 0)",
        }.get(kind, "")
        letters = letters_on((width + _BESIDE) * len(stacks) - 0.2, 8)
        part.supxlabel(textwrap.fill(data.quantity + said, letters) if data.quantity else "", fontsize=8)
    if shared:
        _share(drawn)
    return drawn


def _around(drawn: Drawn, data: AblationData, width: float, *, is_last: bool) -> None:
    """What stands over a panel, its column and its baseline's value, and under it, with room for a broken axis."""
    axes, curve = drawn.axes, drawn.curve
    above, below = (drawn.strip, 0.0) if curve.worse_is_up else (0.0, drawn.strip)
    axes.tick_params(labelbottom=is_last, pad=3 + 72 * below)
    if below:
        axes.tick_params(axis="y", pad=3)
    pad = 3 + 72 * above
    column = in_words(curve.column)
    # Slanted names below take room from the panel. Where it is too narrow, corpus and size stand below each other.
    narrowed = _LEANING * width if _is_slanted(data, curve.panel, width) else width
    if _LETTER * 0.9 * len(column) > narrowed:
        column = column.replace(", ", ",\n")
    axes.set_title(column, fontsize=7, loc="left", pad=pad)
    said = baseline_text(curve)
    named = f"- - {data.baseline} {said}"
    room = width - _LETTER * 0.9 * max(map(len, column.splitlines())) - 0.1
    shown = named if len(named) * _LETTER * 0.85 < room else f"- - {said}"
    if len(shown) * _LETTER * 0.85 < room:
        axes.set_title(shown, fontsize=SMALL, loc="right", pad=pad, color="#606060")
    else:  # in a line of its own
        axes.set_title(f"{column}\n{shown}", fontsize=7, loc="left", pad=pad)


def _share(drawn: Sequence[Drawn]) -> None:
    """One axis of values for all panels."""
    ends = [panel.axes.get_ylim() for panel in drawn if len(panel.axes.get_yticks())]
    for panel in drawn:
        if len(panel.axes.get_yticks()):
            panel.axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))


def _x_axis(axes: Axes, data: AblationData, panel: Panel, numbers: Sequence[float], width: float) -> None:
    axes.xaxis.set_minor_locator(NullLocator())
    if data.axis == "category":
        rows = data.rows(panel)
        axes.set_xlim(-0.5, len(rows) - 0.5)
        names = [row_words(row) for row in rows]
        slanted = _is_slanted(data, panel, width)
        looks = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
        if not slanted:
            names = [name if _fits(name, width / len(rows)) else _halved(name) for name in names]
        axes.set_xticks(range(len(rows)), names, **looks)  # type: ignore[arg-type]
        return
    if not numbers:
        return
    if data.axis == "number":
        if data.shares:
            axes.set_xlim(min(0.0, numbers[0]) - 0.04, max(1.0, numbers[-1]) + 0.04)
        elif numbers[0] > 0:
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
        axes.set_xticks(numbers, _labels_apart(axes, numbers, width, shares=data.shares))
        axes.xaxis.set_minor_locator(NullLocator())
        return
    if numbers[-1] > 3:
        axes.set_xscale("symlog", linthresh=1, linscale=0.9)
        axes.set_xlim(min(-0.12, numbers[0] - 0.1), numbers[-1] * 3)
        ticks = [tick for tick in (0, 0.5, 1, 3, 10, 30, 100, 300, 1000) if tick <= numbers[-1] * 3]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
    else:
        span = max(numbers[-1] - min(numbers[0], 0), 0.1)
        axes.set_xlim(min(numbers[0], 0) - 0.08 * span, numbers[-1] + 0.55 * span)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _is_spread_out(numbers: Sequence[float]) -> bool:
    """Whether the small ones could not be distinguished on a linear axis."""
    sizes = [abs(number) for number in numbers if number]
    return bool(sizes) and max(sizes) > _SPREAD * min(sizes)


def _labels_apart(axes: Axes, numbers: Sequence[float], width: float, *, shares: bool) -> list[str]:
    """A label for each of the rising numbers on a panel of `width` inches, empty where it would touch another's. The
    ends come first."""
    labels = [f"{round(number, 2) if shares else number:g}" for number in numbers]
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


def _fits(name: str, inches: float) -> bool:
    return len(name) * _LETTER <= inches - 0.04


def _halved(name: str) -> str:
    """A name in two lines, broken before a plus, else at the sign that leaves the longer one shortest."""
    places = [place for place in range(1, len(name)) if name[place] == "+"]
    places = places or [place + 1 for place, letter in enumerate(name[:-1]) if letter in "- /_"]
    best = min(places, key=lambda place: max(place, len(name) - place), default=len(name))
    return f"{name[:best].rstrip()}\n{name[best:]}" if best < len(name) else name


def _is_slanted(data: AblationData, panel: Panel, width: float) -> bool:
    """Whether the categories' names are too long to lie beside each other below a panel of `width` inches, even in two
    lines."""
    rows = [row_words(row) for row in data.rows(panel)]
    each = width / max(len(rows), 1)
    return data.axis == "category" and not all(
        _fits(max(_halved(row).split("\n"), key=len), each) or _fits(row, each) for row in rows
    )


def _foot(data: AblationData, page: float) -> str:
    """What was trained, and how to read the marks, in lines under the figure."""
    parts = [f"Trained here: {data.trained}." if data.trained else "", " ".join(data.notes)]
    return "\n".join(textwrap.fill(part, letters_on(page, SMALL)) for part in parts if part)


def _name_points(figure: Figure, panels: Sequence[Drawn]) -> None:
    """Write the rows' names beside their points, once the panels have their final places; rows that are one network,
    with one value at one cost, share a name."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for panel in panels:
        axes, curve = panel.axes, panel.curve
        data = axes.transData
        together: dict[tuple[float, float], list[str]] = {}
        for point, inches in panel.points:
            if (x := point.abscissa) is not None and point.value is not None:
                right, up = data.transform((x, point.value))
                place = data.inverted().transform((right + inches * figure.get_dpi(), up))
                together.setdefault((float(place[0]), point.value), []).append(row_words(point.row))
        named = [(x, value, "\n= ".join(names)) for (x, value), names in together.items()]
        taken = [_covered(axes, *bar) for bar in panel.bars]
        line = curve.line()
        if line is not None and line.value is not None:
            left, right = axes.get_xlim()
            ends = axes.transData.transform([(left, line.value), (right, line.value)])
            taken.append(Bbox([ends[0] - 1, ends[1] + 1]))
            if (x := line.abscissa) is not None and line.row not in {point.row for point in curve.points}:
                named.append((x, line.value, row_words(line.row)))
        place_labels(axes, named, "#303030", SMALL - 0.5, taken)


def _covered(axes: Axes, x: float, low: float, high: float) -> Bbox:
    ends = axes.transData.transform([(x, low), (x, high)])
    return Bbox([ends[0] - 5, ends[1] + 5])
