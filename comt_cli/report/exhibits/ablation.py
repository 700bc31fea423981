"""An ablation: the metric against the ablated quantity, ours on the left and the paper's on the right."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.schema import AblationName
from comt_cli.report import format, notes
from comt_cli.report.cells import cells_frame, only
from comt_cli.report.exhibits.base import Exhibit
from comt_cli.report.frame import Record, frame_of, rows_of
from comt_cli.report.trained import of_table
from comt_cli.report.words import paper_name
from comt_cli.tasks.base import Metric
from comt_cli.words import in_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_QUESTIONS: dict[AblationName, str] = {
    "hidden-size": "Modulators of different widths",
    "window-ratio": "Sliding-window modulators with fewer and more hidden channels",
    "modules": "Gates on a part of the projections",
    "granularity": "One factor for a token or one for each channel, per projection or per path",
    "context": "Gates that see their input against learned constants",
    "sigmoid": "A learnable sigmoid against a fixed one",
    "gate-form": "Forms of the scaling gate",
    "gate-start": "Self-Adaptive Scaling started at different shares of the branch",
    "placement-norm": "Gates with the norm before and behind the residual addition",
    "residual-norm": "Norms of the third term of Self-Adaptive Scaling",
    "cost": "The gain against the cost in parameters",
}
_OPTIONS = {
    "hidden": "modulator width h",
    "rank": "modulator rank r",
    "ratio": "input channels to a hidden channel",
    "beta_bias": "share of the branch at the start",
    "sites": "projections that carry a gate",
    "gate": "form of the gate",
    "norm": "norm of the third term",
}
"""What the axis of an option is called; one that is not here by its own name."""
_SHARES: dict[str, Callable[[float], float]] = {
    "beta_bias": lambda bias: 1 / (1 + math.exp(-max(min(bias, 700.0), -700.0))),
}
"""Options whose value is less readable than the share, from 0 to 1, that it amounts to."""
COST = "cost"
"""The ablation whose quantity is not an option but the price: parameters beyond the plain model."""
_NEAR_FLOOR = 2
"""An accuracy of at most so many times that of guessing is no learning to speak of."""
_LARGEST = 1e100
"""Of numbers so large, or so near to 0, a drawing's own arithmetic overflows."""
_SPREAD = 30
"""Numbers of which not all are positive are on a linear axis while none is so many times the smallest but 0."""
_OUTLIER = 1.6
"""A value so many times worse than its panel's median is an outlier, as a collapsed one is, if it is also farther from
the others than those are from each other: it is a triangle at the panel's end, with its number."""
_WIDE = 2.5
"""A bar so many times as long as the shorter half of its panel's does not set the scale: it is cut at the frame."""
_COLOURS = {"ours": "#0072B2", "paper": "#D55E00"}
_FIELDS = ("panel", "column", "row", "baseline", "x", "value", "stderr", "n", "state", "collapsed", "printed_increase",
           "difference", "interval_low", "interval_high", "position")  # fmt: skip


class Ablation(Exhibit):
    """One question that some rows of a table answer."""

    digits: ClassVar[int] = 8

    def __init__(self, name: AblationName) -> None:
        self.name: AblationName = name

    @classmethod
    def all_of(cls, loaded: LoadedRecipe) -> list[Exhibit]:
        """One for each question of the recipe."""
        return [cls(name) for name in loaded.recipe.ablations]

    def frame(self, runs: pd.DataFrame, loaded: LoadedRecipe) -> pd.DataFrame:
        """One line a point, in the columns of the recipe's own metric; of each column the baseline's first.

        `panel` is `ours` or `paper`; `x` the option's value, or for the cost the extra parameters in per cent, None of
        a category; `position` where an axis of numbers has it if not there: at the share that it amounts to. `value` is
        the mean over n seeds, or the printed one. Empty while none of its rows but the baseline has ended.
        """
        import pandas as pd

        recipe, key = loaded.recipe, loaded.recipe.metric
        cells = cells_frame(runs, loaded)
        elsewhere = list(dict.fromkeys(cells.loc[cells["metric"] != key, "column"]))
        chosen = [row for row in ablation_rows(loaded, self.name) if row in {*cells["row"]}]
        columns = [column for column in dict.fromkeys(cells["column"]) if column not in elsewhere]
        if not columns:
            return pd.DataFrame()
        cells = only(cells, dict.fromkeys(cells["row"]), columns)
        others = [row for row in chosen if row != recipe.baseline]
        numbers = {} if self.name == COST else _numbers(loaded, self.name, others)
        axis = "cost" if self.name == COST else "number" if numbers else "category"
        ordered = sorted(others, key=lambda row: numbers.get(row, 0.0)) if axis == "number" else others
        rows = [row for row in chosen if row == recipe.baseline] + ordered
        metric: Metric = cells["_metric"].iloc[0]
        points = [*_ours(cells, rows, axis, numbers)]
        if cells.attrs["paper"] is not None:  # no number of the paper's beside runs of another text, size or length
            points += _papers(loaded, metric, rows, axis, numbers)
        if not any(p["panel"] == "ours" and not p["baseline"] and (p["n"] or "diverged" in p["state"]) for p in points):
            return pd.DataFrame()
        option = recipe.ablations[self.name].option
        share = _SHARES.get(option or "") if axis == "number" else None
        frame = frame_of(
            {key: point.get(key) for key in _FIELDS}
            | {"position": share(point["x"]) if share and point["x"] is not None else point["x"]}
            for point in points
        )
        guessed = columns if key == cells["_cell"].iloc[0].runs[0].spec.task.metric else []
        ours = [run.spec for cell in cells["_cell"] if cell.row in rows for run in cell.every]
        frame.attrs = {
            "title": _QUESTIONS[self.name],
            "trained": of_table(cells),
            "axis": axis,
            "quantity": "parameters beyond the plain model, %" if axis == "cost" else
            _OPTIONS.get(option, option.replace("_", " ")) if option else "",
            "is_share": share is not None,
            "metric": metric.label,
            "better": metric.better,
            "is_relative": metric.difference.is_relative,
            "baseline": recipe.baseline,
            "scale": cells.attrs["scale"],
            "paper": paper_name(cells.attrs["paper"] or ""),
            "seeds": cells.attrs["seeds"],
            "floors": {name: floor for name in guessed if (floor := _floor(cells, name)) is not None},
            "notes": (
                *notes.other_settings(ours, recipe.baseline),
                *([f"Not drawn, since they show another metric: {format.listing(elsewhere)}."] if elsewhere else []),
            ),
        }  # fmt: skip
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        """What bars and marks are, seeds that are absent, rows that were trained otherwise, what could not be drawn."""
        return [*_reading(frame), *frame.attrs["notes"]]

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Ours on the left and the paper's on the right, one panel a column, each with its own axis of values.

        A broken line is the baseline. Bars are the paired intervals that verdicts are taken from, drawn from that line.
        An outlier is a triangle with its number at the end of the worse values, and a run without a value a word at the
        other.
        """
        from comt_cli.report.figures.labels import place_labels
        from comt_cli.report.figures.style import PAGE_WIDTH, letters_on, page_figure, style

        attrs = frame.attrs
        sides = {panel: _curves(frame, panel) for panel in ("ours", "paper") if panel in {*frame["panel"]}}
        widest = max(frame.loc[frame["panel"] == panel, "row"].nunique() for panel in sides)
        width = min(PAGE_WIDTH, max(3.6, len(sides) * max(2.6, 0.7 + 0.42 * widest)))
        named = []
        with style():
            figure = page_figure(1.3 + 1.5 * max(map(len, sides.values())), width)
            parts = figure.subfigures(1, len(sides), squeeze=False)[0]
            for part, (panel, curves) in zip(parts, sides.items(), strict=True):
                panels = part.subplots(len(curves), 1, squeeze=False, sharex=True)[:, 0]
                for axes, (column, points) in zip(panels, curves.items(), strict=True):
                    named.append((axes, _draw_panel(axes, frame, panel, column, points)))
                _x_axis(panels[-1], frame, panel)
                origin = f"trained here, scale {attrs['scale']}" if panel == "ours" else f"printed in {attrs['paper']}"
                part.suptitle(origin, fontsize=8)
                part.supxlabel(textwrap.fill(attrs["quantity"], letters_on(width / len(sides), 8)), fontsize=8)
                part.supylabel(f"{attrs['metric']} ({attrs['better']} is better)", fontsize=7)
            figure.suptitle(textwrap.fill(attrs["title"], letters_on(width, 9)), fontsize=9)
            if attrs["axis"] == "cost":
                figure.draw_without_rendering()
                for axes, names in named:
                    place_labels(axes, names)
        return figure


def ablation_rows(loaded: LoadedRecipe, name: AblationName) -> list[str]:
    """The rows of an ablation in table order, with the baseline.

    Those that the recipe names (or all), and every other row that differs from one of them in the varied option alone:
    a point that was added.
    """
    ablation, recipe, option = loaded.recipe.ablations[name], loaded.recipe, loaded.recipe.ablations[name].option

    def without(row: str) -> dict[str, Any]:
        return {key: value for key, value in loaded.methods[row].items() if key != option}

    named = list(ablation.rows or recipe.rows)
    apart = [without(row) for row in named if option in loaded.methods[row]]
    named += [row for row, method in loaded.methods.items() if option in method and without(row) in apart]
    return [row for row in recipe.rows if row in named or row == recipe.baseline]


def _numbers(loaded: LoadedRecipe, name: AblationName, rows: Iterable[str]) -> dict[str, float]:
    """The varied option of every row, where each has a number of its own that an axis can hold; else nothing."""
    option = loaded.recipe.ablations[name].option
    values = {row: loaded.methods[row].get(option) for row in rows} if option else {}
    numbers = {row: float(value) for row, value in values.items()
               if isinstance(value, int | float) and not isinstance(value, bool)}  # fmt: skip
    fit = all(not number or 1 / _LARGEST < abs(number) < _LARGEST for number in numbers.values())
    return numbers if len({*numbers.values()}) == len(values) and fit else {}


def _ours(cells: pd.DataFrame, rows: Sequence[str], axis: str, numbers: dict[str, float]) -> Iterator[Record]:
    every = {(each["column"], each["row"]): each for each in rows_of(cells)}
    for column in dict.fromkeys(cells["column"]):
        for row in rows:
            cell = every[column, row]
            apart = cell["_apart"]
            yield {
                **{key: cell[key] for key in ("column", "row", "stderr", "n", "state")},
                "panel": "ours",
                "baseline": row == cell["baseline"],
                "x": cell["extra_parameters_percent"] if axis == "cost" else numbers.get(row),
                "value": cell["mean"],
                "collapsed": False,
                "difference": apart and apart.mean,
                "interval_low": apart and apart.low,
                "interval_high": apart and apart.high,
            }


def _papers(
    loaded: LoadedRecipe, metric: Metric, rows: Sequence[str], axis: str, numbers: dict[str, float]
) -> Iterator[Record]:
    """Every column of the paper with the recipe's metric, at any scale."""
    recipe = loaded.recipe
    for column, told in recipe.columns.items():
        for row in rows if told.metric in (None, recipe.metric) else ():
            value, printed = recipe.rows[row].paper.get(column), recipe.rows[row].paper_increase.get(column)
            if value is None:
                continue
            yield {
                "panel": "paper",
                "column": column,
                "row": row,
                "baseline": row == recipe.baseline,
                "x": _increase(printed) if axis == "cost" else numbers.get(row),
                "value": value,
                "n": 1,
                "state": "printed",
                "collapsed": metric.collapsed(value),
                "printed_increase": printed,
            }


def _increase(printed: str | None) -> float | None:
    """`22.9%` as a number; `<1%` as the middle of what it may be."""
    if printed is None:
        return None
    number = float(printed.strip("<% "))
    return number / 2 if printed.startswith("<") else number


def _floor(cells: pd.DataFrame, column: str) -> float | None:
    """What guessing gets, where that is known."""
    spec = cells.loc[cells["column"] == column, "_cell"].iloc[0].runs[0].spec
    floor: float | None = spec.task.chance(spec.settings)
    return floor


def _curves(frame: pd.DataFrame, panel: str) -> dict[str, list[Record]]:
    """The points of one side by column, the baseline among them."""
    found: dict[str, list[Record]] = {}
    for point in rows_of(frame[frame["panel"] == panel]):
        found.setdefault(point["column"], []).append(point)
    return found


def outliers(points: Sequence[Record], better: str) -> list[Record]:
    """The points of a panel that are collapsed, or so bad that the others could not be distinguished beside them."""
    known = [p["value"] for p in points if not p["baseline"] and p["value"] is not None and not p["collapsed"]]
    middle = statistics.median(known) if known else 0.0

    def is_bad(value: float) -> bool:
        return value > _OUTLIER * middle if better == "lower" else value < middle / _OUTLIER

    near = [value for value in known if not is_bad(value)]

    def is_off(point: Record) -> bool:
        if point["collapsed"] or point["value"] is None or not near:
            return bool(point["collapsed"])
        gap = min(abs(point["value"] - value) for value in near)
        return is_bad(point["value"]) and gap > max(near) - min(near)

    return [point for point in points if is_off(point)]


def _line(points: Sequence[Record], better: str) -> float | None:
    """Where the baseline's line is in a panel: nowhere if it has no value, or is an outlier."""
    off = outliers(points, better)
    return next((point["value"] for point in points if point["baseline"] and point not in off), None)


def bar(point: Record, baseline: float | None, *, relative: bool) -> tuple[float, float] | None:
    """The ends of a point's bar on the axis of values.

    The paired interval of the difference, or of the ratio, from the baseline: it reaches the baseline's line just where
    it contains 0, and the verdict calls it not resolved. Without a pair, mean ± standard error.
    """
    low, high, value, stderr = (point[key] for key in ("interval_low", "interval_high", "value", "stderr"))
    if low is not None and high is not None and baseline is not None:
        low, high = (baseline * each / 100 if relative else each for each in (low, high))
        return baseline + low, baseline + high
    return None if stderr is None or point["baseline"] else (value - stderr, value + stderr)


def limits(values: Sequence[float], bars: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The ends of an axis: all values, and every bar but those that are far longer than most and than the values' span,
    or reach far beyond all values."""
    low, high = min(values), max(values)
    lengths = sorted(top - bottom for bottom, top in bars)
    longest = max(_WIDE * lengths[(len(lengths) - 1) // 2], 2 * (high - low)) if lengths else 0.0
    usual = [each for each in bars if each[1] - each[0] <= longest and each[1] <= 2 * high]
    low, high = min([low, *(each[0] for each in usual)]), max([high, *(each[1] for each in usual)])
    span = max(high - low, (0.05 if len(values) == 1 else 0.004) * abs(high), 1e-6)
    return (low + high) / 2 - 0.6 * span, (low + high) / 2 + 0.6 * span


def _draw_panel(
    axes: Axes, frame: pd.DataFrame, panel: str, column: str, points: Sequence[Record]
) -> list[tuple[float, float, str]]:
    """Draw the points of a column; returns where they are, with their names."""
    attrs, colour = frame.attrs, _COLOURS[panel]
    rows = [row for row in dict.fromkeys(frame.loc[frame["panel"] == panel, "row"]) if row != attrs["baseline"]]
    off, worse_is_up = outliers(points, attrs["better"]), attrs["better"] == "lower"
    base, line = next((p for p in points if p["baseline"]), None), _line(points, attrs["better"])
    shown = [p for p in points if p["value"] is not None and p not in off]
    axes.set_title(f"{in_words(column)}   - - {attrs['baseline']} {_text(base)}", loc="left", fontsize=7)
    bars = {p["row"]: bar(p, None if base is None else base["value"], relative=attrs["is_relative"]) for p in shown}
    guessed = [attrs["floors"][column]] if any(_is_at_floor(p, attrs["floors"]) for p in shown) else []
    if shown:
        axes.set_ylim(*limits([*(p["value"] for p in shown), *guessed], [each for each in bars.values() if each]))
    low, high = axes.get_ylim()
    if line is not None:
        axes.axhline(line, color="#606060", linewidth=0.9, linestyle="--", zorder=1)
    for floor in guessed:
        axes.axhline(floor, color=_COLOURS["paper"], linewidth=0.7, linestyle=":", zorder=1)
    marked = [p for p in points if attrs["axis"] == "cost" or not p["baseline"]]
    places = [rows.index(p["row"]) if attrs["axis"] == "category" else p["position"] for p in marked]
    placed = [(x, p) for x, p in zip(places, marked, strict=True) if x is not None]
    if attrs["axis"] == "number":  # a point that is missing, or an outlier, breaks the line
        heights = [math.nan if p["value"] is None or p in off else p["value"] for _, p in placed]
        axes.plot([x for x, _ in placed], heights, color=colour, zorder=2)
    names = []
    for x, point in placed:
        value, ends = point["value"], bars.get(point["row"])
        if value is None or point in off:
            up = worse_is_up == (value is not None)
            axes.plot([x], [high if up else low], "^" if up else "v", color=colour if value is not None else "none",
                      markersize=4, clip_on=False)  # fmt: skip
            named = f"{point['row']} {_text(point)}" if attrs["axis"] == "cost" else _text(point)
            beside: dict[str, Any] = {"ha": "center", "va": "top" if up else "bottom", "rotation": 90, "fontsize": 6.5}
            axes.annotate(named, (x, high if up else low), (0, -4 if up else 4), textcoords="offset points",
                          color=colour, **beside)  # fmt: skip
            continue
        is_whole = point["state"] in ("done", "printed") and not point["baseline"]
        axes.plot([x], [value], "s" if point["baseline"] else "o", color="#606060" if point["baseline"] else colour,
                  markersize=3.6, markerfacecolor=None if is_whole else "white", zorder=4)  # fmt: skip
        if ends is not None:
            axes.plot([x, x], ends, "_-", color=colour, markersize=5, zorder=3,
                      linewidth=0.5 if point["interval_low"] is None else 0.9)  # fmt: skip
        names.append((float(x), float(value), point["row"].replace("_", " ")))
    axes.set_ylim(low, high)
    return names


def _x_axis(axes: Axes, frame: pd.DataFrame, panel: str) -> None:
    """The axis of a side: categories by name; options that are numbers on an axis of base 2, and where not all are
    positive on a linear one, or, if they are spread out, on one that is linear around 0; the cost linear up to 1 %."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    attrs, here = frame.attrs, frame[frame["panel"] == panel]
    if attrs["axis"] == "category":
        names = [row.replace("_", " ") for row in dict.fromkeys(here["row"]) if row != attrs["baseline"]]
        is_long = max(map(len, names)) > 8
        turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_xticks(range(len(names)), names, **turned)
        return
    numbers = sorted({*here["position"].dropna()})
    sizes = [abs(number) for number in numbers if number] or [1.0]
    if attrs["axis"] == "cost":
        if max(sizes) > 3:
            axes.set_xscale("symlog", linthresh=1)
        axes.margins(x=0.3)
    elif min(numbers) > 0 and not attrs["is_share"]:
        axes.set_xscale("log", base=2)
    elif max(sizes) > _SPREAD * min(sizes):
        axes.set_xscale("symlog", linthresh=min(sizes))
    if attrs["axis"] == "number":
        axes.xaxis.set_major_locator(FixedLocator(numbers))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:.3g}"))


def _text(point: Record | None) -> str:
    """The value of a point as a text, or why there is none: of `2 diverged, 1 missing` the first reason."""
    if point is None:
        return "not printed"
    if point["value"] is None:
        return next((each for each in ("diverged", "running", "unfinished") if each in point["state"]), "missing")
    return f"{point['value']:.0f}" if point["collapsed"] else format.value(point["value"])


def _is_at_floor(point: Record, floors: dict[str, float]) -> bool:
    """Whether a point of ours is so near to what guessing gets that its network has learned nothing to speak of."""
    floor = floors.get(point["column"]) if point["panel"] == "ours" else None
    return floor is not None and point["value"] is not None and bool(point["value"] <= _NEAR_FLOOR * floor)


def _reading(frame: pd.DataFrame) -> Iterator[str]:
    attrs, points = frame.attrs, rows_of(frame)
    ours = [point for point in points if point["panel"] == "ours"]
    seeds, several = format.seeds(attrs["seeds"]), len({point["column"] for point in ours}) > 1

    def named(chosen: Iterable[Record]) -> str:
        return format.listing(f"{p['row']} at {in_words(p['column'])}" if several else p["row"] for p in chosen)

    curves = [curve for panel in ("ours", "paper") for curve in _curves(frame, panel).values()]
    if any(_line(each, attrs["better"]) is not None for each in curves):
        yield f"Broken line (- -): {attrs['baseline']}."
    if any(point["interval_low"] is not None for point in ours):
        yield (
            f"Bars: 95 % interval of the difference to {attrs['baseline']}, paired by seed ({seeds}), drawn from the "
            "broken line; a bar that reaches the line is not resolved."
        )
    if any(p["stderr"] is not None and p["interval_low"] is None for p in ours if not p["baseline"]):
        yield f"Thin bars: mean ± standard error over the seeds ({seeds}), without a pair of seeds to compare."
    elif len(attrs["seeds"]) == 1:
        yield "Ours: one seed, so no error bars."
    if any(outliers(each, attrs["better"]) for each in curves):
        yield "Triangles at a panel's end: outliers, with their numbers; a printed one above 1000 is a collapsed run."
    if low := [point for point in ours if _is_at_floor(point, attrs["floors"])]:
        yield f"Hardly anything was learned by {named(low)}: at most {_NEAR_FLOOR} times what guessing gets (dotted)."
    if partial := [point for point in ours if point["n"] and point["state"] != "done"]:
        yield f"Hollow, since seeds diverged or are absent: {named(partial)}."
    if absent := [point for point in ours if not point["n"]]:
        listed = [f"{named([point])} ({point['state']})" for point in absent]
        yield f"Without a value: {format.listing(listed)}."
    printed = [point for point in points if point["panel"] == "paper" and not point["baseline"]]
    if attrs["axis"] == "cost" and printed:
        yield "An increase printed as <1 % is drawn at 0.5 %."
        if lost := {point["row"] for point in printed if point["x"] is None}:
            yield f"The paper prints no increase for {format.listing(sorted(lost))}."
