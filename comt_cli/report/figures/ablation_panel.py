"""One panel of an ablation: the points of one column, the baseline as a line, intervals, and what is off the scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2DBase, ScaledTranslation, Transform

from comt_cli.report import format
from comt_cli.report.ablation import AblationData
from comt_cli.report.ablation_points import Curve, Panel, Point
from comt_cli.report.figures import broken
from comt_cli.report.figures.style import OKABE_ITO, QUIET, ROUND

COLOURS: dict[Panel, str] = {"ours": OKABE_ITO[0], "paper": OKABE_ITO[5]}
_BAD = OKABE_ITO[5]
SMALL = 6.5
_WIDE = 2.5
"""A bar so many times as long as the shorter half of its panel's does not set the scale: it leaves the frame."""
_FAR = 2.0
"""Nor does one that reaches so many times higher than all values: the interval of two seeds may, of their ratio."""
_NEAR = 0.05
"""Inches: points nearer to each other are drawn side by side."""


@dataclass(frozen=True)
class Drawn:
    """A panel that was drawn: the inches of its strip; its points, with the inches by which each was moved aside; and
    its bars, from x and the lower to the upper end."""

    axes: Axes
    curve: Curve
    strip: float
    points: tuple[tuple[Point, float], ...]
    bars: tuple[tuple[float, float, float], ...]


def draw_curve(axes: Axes, data: AblationData, curve: Curve, places: dict[str, float], width: float) -> Drawn:
    """Draw a column into its panel, some `width` inches wide; `places` are the categories' abscissae.

    The limits of the x-axis must be set already.
    """
    colour = COLOURS[curve.panel]

    def at(point: Point) -> float | None:
        return places.get(point.row) if data.axis == "category" else point.abscissa

    on_scale = [point for point in curve.on_scale() if at(point) is not None]
    line = curve.line()
    floor = data.floors.get(curve.column) if any(data.at_floor(point) for point in on_scale) else None
    bars = [bar for point in on_scale if (bar := curve.bar(point)) is not None]
    values = [p.value for p in (*on_scale, *([line] if line else [])) if p.value is not None]
    limits = _limits(values, bars, floor)
    _value_axis(axes, limits)
    if data.axis == "number":
        # A point that is missing, or off the scale, breaks the line.
        heights = [point.value if point in on_scale else None for point in curve.points]
        known = [(at(point), height) for point, height in zip(curve.points, heights, strict=True)]
        axes.plot(*zip(*[(x, float("nan") if y is None else y) for x, y in known], strict=True), color=colour, zorder=2)
    drawn = []
    aside = _aside(axes, [(at(point) or 0.0, point.value or 0.0) for point in on_scale], width)
    for point, inches in zip(on_scale, aside, strict=True):
        x, bar = at(point), curve.bar(point)
        assert x is not None
        assert point.value is not None
        moved = axes.transData + ScaledTranslation(inches, 0, _dpi(axes))
        axes.plot(
            [x],
            [point.value],
            "o",
            color=colour,
            markersize=3.6,
            markerfacecolor=colour if point.state in ("done", "printed") else "white",
            zorder=4,
            transform=moved,
        )
        if bar is not None:
            assert limits is not None
            drawn.append(_draw_bar(axes, moved, x, bar, limits, colour, is_paired=point.interval_low is not None))
    if line is not None and line.value is not None:
        axes.axhline(line.value, color="#606060", linewidth=0.9, linestyle="--", zorder=1)
        if data.axis == "cost" and line.abscissa is not None:
            axes.plot([line.abscissa], [line.value], "s", color="#606060", markerfacecolor="white", markersize=3.6)
    if floor is not None:
        axes.axhline(floor, color=_BAD, linewidth=0.7, linestyle=":", zorder=1)
        axes.annotate("guessing", (1, floor), xycoords=axes.get_yaxis_transform(), xytext=(2, 0), fontsize=SMALL,
                      textcoords="offset points", va="center", color=_BAD, annotation_clip=False)  # fmt: skip
    strip = _off_scale(axes, data, curve, [(x, p) for p in curve.off_scale() if (x := at(p)) is not None], width)
    for point in curve.points:
        x = at(point)
        if point.value is None and x is not None:
            axes.text(
                x, 0.05 if curve.worse_is_up else 0.95, word(point.state), transform=axes.get_xaxis_transform(),
                rotation=90, ha="center", va="bottom" if curve.worse_is_up else "top", fontsize=SMALL,
                color=_BAD if "diverged" in point.state else QUIET,
            )  # fmt: skip
    return Drawn(axes, curve, strip, tuple(zip(on_scale, aside, strict=True)), tuple(drawn))


def _aside(axes: Axes, points: Sequence[tuple[float, float]], width: float) -> list[float]:
    """By how many inches each point is moved aside: none, but where bars would lie on each other. Equal points, which
    are of one network, stay together."""
    scale = axes.xaxis.get_transform()
    left, right = scale.transform(list(axes.get_xlim()))
    inches = [float(width * (place - left) / (right - left)) for place in scale.transform([x for x, _ in points])]
    moved = []
    for here, point in zip(inches, points, strict=True):
        near = list(
            dict.fromkeys(other for other, there in zip(points, inches, strict=True) if abs(here - there) < _NEAR)
        )
        moved.append(_NEAR * (near.index(point) - (len(near) - 1) / 2))
    return moved


def _dpi(axes: Axes) -> Affine2DBase:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure.dpi_scale_trans


def _draw_bar(
    axes: Axes,
    moved: Transform,
    x: float,
    bar: tuple[float, float],
    limits: tuple[float, float],
    colour: str,
    *,
    is_paired: bool,
) -> tuple[float, float, float]:
    """A bar from end to end with caps, or to the frame with an arrow where it leaves it; returns what it covers."""
    inside = 0.02 * (limits[1] - limits[0])  # arrows must not reach into what stands over the panel
    low, high = max(bar[0], limits[0] + inside), min(bar[1], limits[1] - inside)
    axes.plot(
        [x, x], [low, high], color=colour, linewidth=0.9 if is_paired else 0.5, zorder=3, label="bar", transform=moved
    )
    for value, is_cut, arrow in ((low, low > bar[0], "v"), (high, high < bar[1], "^")):
        look = {"marker": arrow, "markersize": 3.4} if is_cut else {"marker": "_", "markersize": 5}
        axes.plot([x], [value], color=colour, linestyle="none", zorder=3, clip_on=False, transform=moved, **look)  # type: ignore[arg-type]
    return x, low, high


def _limits(
    values: Sequence[float], bars: Sequence[tuple[float, float]], floor: float | None
) -> tuple[float, float] | None:
    """The ends of an axis: all values, and every bar but those that are far longer than most and than the values'
    span, or reach far beyond all values."""
    if not values:
        return None
    low, high = min(values), max(values)
    if floor is not None:
        low, high = min(low, floor), max(high, floor)
    lengths = sorted((bar[1] - bar[0]) / 2 for bar in bars)
    if lengths:
        longest = max(_WIDE * lengths[(len(lengths) - 1) // 2], high - low)
        usual = [bar for bar in bars if (bar[1] - bar[0]) / 2 <= longest and bar[1] <= _FAR * high]
        low, high = min([low, *(bar[0] for bar in usual)]), max([high, *(bar[1] for bar in usual)])
    least = 0.05 if len(values) == 1 else 0.004  # a single value is no reason to show its third decimal
    span = max(high - low, least * abs(high), 1e-6)
    middle = (low + high) / 2
    return middle - 0.6 * span, middle + 0.6 * span


def _value_axis(axes: Axes, limits: tuple[float, float] | None) -> None:
    if limits is None:
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=ROUND, min_n_ticks=2))


def _off_scale(axes: Axes, data: AblationData, curve: Curve, off: Sequence[tuple[float, Point]], width: float) -> float:
    """The strip of what is off the scale, each mark with its value; in the farthest line the baseline, if it is.

    Returns its height in inches; 0 where nothing is off.
    """
    levels = _off_levels(axes, data, off, width)
    base = curve.baseline
    has_line = base is not None and base.value is not None and curve.line() is None
    count = max(levels, default=-1) + 1 + has_line
    if not count:
        return 0.0
    beyond = broken.strip(axes, count, above=curve.worse_is_up)
    left, right = axes.get_xlim()
    scale = axes.xaxis.get_transform()
    ends = scale.transform([left, right])
    for (x, point), level in zip(off, levels, strict=True):
        beyond.plot([x], [level], "^" if curve.worse_is_up else "v", color=COLOURS[curve.panel], markersize=4)
        share = (scale.transform([x])[0] - ends[0]) / (ends[1] - ends[0])
        beyond.annotate(
            _off_text(data, point), (x, level), xytext=(4 if share < 0.6 else -4, 0), textcoords="offset points",
            fontsize=SMALL, va="center_baseline", ha="left" if share < 0.6 else "right", color=COLOURS[curve.panel],
            annotation_clip=False,
        )  # fmt: skip
    if has_line:
        beyond.axhline(count - 1, color="#606060", linewidth=0.9, linestyle="--", zorder=1)
    return broken.height(count)


def _off_text(data: AblationData, point: Point) -> str:
    """The value of a mark off the scale, with its row where the axis does not name it."""
    value = f"{point.value:.0f}" if point.collapsed or point.value is None else format.value(point.value)
    return f"{point.row} {value}" if data.axis == "cost" else value


def _off_levels(axes: Axes, data: AblationData, off: Sequence[tuple[float, Point]], width: float) -> list[int]:
    """The line of each mark in the strip: the nearest to the frame in which its value touches no other's."""
    scale = axes.xaxis.get_transform()
    left, right = scale.transform(list(axes.get_xlim()))
    taken: list[list[tuple[float, float]]] = []
    levels = []
    for x, point in off:
        share = (scale.transform([x])[0] - left) / (right - left)
        long = 0.12 + 0.056 * len(_off_text(data, point))
        start = share * width - 0.05 if share < 0.6 else share * width + 0.05 - long
        free = (n for n, line in enumerate(taken) if all(start + long < a or b < start for a, b in line))
        level = next(free, len(taken))
        if level == len(taken):
            taken.append([])
        taken[level].append((start, start + long))
        levels.append(level)
    return levels


def baseline_text(curve: Curve) -> str:
    """What stands over a panel of its baseline: its value, or why there is none."""
    baseline = curve.baseline
    if baseline is None:
        return "not printed"
    if baseline.value is None:
        return word(baseline.state)
    if baseline.collapsed:
        return f"{baseline.value:.0f} (collapsed)"
    return format.value(baseline.value)


def word(state: str) -> str:
    """`diverged`, `running`, ...: of `2 diverged, 1 missing` the first."""
    return next((each for each in ("diverged", "running", "unfinished") if each in state), "missing")
