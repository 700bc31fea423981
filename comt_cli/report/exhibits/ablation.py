"""An ablation: the metric against the ablated quantity, ours on the left and the paper's on the right."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.schema import AblationName
from comt_cli.report import format
from comt_cli.report.caption import notes
from comt_cli.report.cells import cells_frame
from comt_cli.report.exhibits import Exhibit
from comt_cli.report.frame import Record, TableInfo, frame_of
from comt_cli.report.words import other_settings, paper_name
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
"""The name of an option on the axis; one that is not here has its own."""
COST = "cost"  # the ablation whose quantity is not an option but the price: parameters beyond the plain model
_OUTLIER = 1.6
"""So many times the median of a panel's rows, or a value of as many times less where higher is better, is far off."""
_NEAR_FLOOR = 2  # an accuracy of at most so many times that of guessing is no learning to speak of
Bar = tuple[float, float]
_COLOURS = {"ours": "#0072B2", "paper": "#D55E00"}
_FIELDS = ("panel", "column", "row", "baseline", "x", "value", "stderr", "n", "state", "collapsed", "printed_increase",
           "difference", "interval_low", "interval_high", "position")  # fmt: skip


class Ablation(Exhibit):
    """One question that some rows of a table answer."""

    digits: ClassVar[int] = 8

    def __init__(self, name: AblationName) -> None:
        self.name: AblationName = name

    @classmethod
    def all_of(cls, info: TableInfo) -> list[Exhibit]:
        return [cls(name) for name in info.recipe.ablations]

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One line a point, in the columns of the recipe's own metric; of each column the baseline's first. `panel` is
        `ours` or `paper`; `x` the option's value, or for the cost the extra parameters in per cent, None of a category;
        `position` that value, or the share of the branch that a `beta_bias` amounts to; `value` the mean over n seeds,
        or the printed one. Empty while none of its rows but the baseline has ended."""
        import pandas as pd

        info: TableInfo = runs.attrs["table"]
        key, option, is_cost = info.recipe.metric, info.recipe.ablations[self.name].option or "", self.name == COST
        every = cells_frame(runs)
        rows = [row for row in ablation_rows(info.loaded, self.name) if row in {*every["row"]}]
        numbers = {} if is_cost else _numbers(info, option, [row for row in rows if row != info.baseline])
        rows.sort(key=lambda row: (row != info.baseline, numbers.get(row, 0.0)))
        cells = every[(every["metric"] == key) & every["row"].isin(rows)]
        by_row = cells.sort_values("row", key=lambda names: names.map(rows.index), kind="stable")
        points = [_ours(cell) for _, own in by_row.groupby("column", sort=False) for cell in own.to_dict("records")]
        if info.paper is not None:  # no number of the paper's beside runs of another text, size or length
            points += _papers(info, rows)
        if not any(p["panel"] == "ours" and not p["baseline"] and (p["n"] or "diverged" in p["state"]) for p in points):
            return pd.DataFrame()
        for point in points:
            point["x"] = x = point["x"] if is_cost else numbers.get(point["row"])
            is_share = not is_cost and option == "beta_bias"
            point["position"] = x if x is None or not is_share else 1 / (1 + math.exp(-max(min(x, 700.0), -700.0)))
        frame = frame_of([{field: point.get(field) for field in _FIELDS} for point in points])
        metric, specs = info.task.metrics[key], every.attrs["specs"]
        quantity = _OPTIONS.get(option, option.replace("_", " "))
        frame.attrs = {
            **{each: every.attrs[each] for each in ("table", "trained", "seeds")},
            "title": _QUESTIONS[self.name],
            "axis": "cost" if is_cost else "number" if numbers else "category",
            "quantity": "parameters beyond the plain model, %" if is_cost else quantity,
            "metric": metric,
            "floors": {column: info.task.chance(specs[column].settings) for column in {*cells["column"]}
                       if key == info.task.metric},
            "notes": [*other_settings([run.spec for cell in cells["_cell"] for run in cell.every], info.baseline)],
        }  # fmt: skip
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        attrs, ours = frame.attrs, frame[frame["panel"] == "ours"].to_dict("records")
        several = len({point["column"] for point in ours}) > 1

        def named(chosen: Iterable[Record]) -> str:
            return format.listing([f"{p['row']} at {in_words(p['column'])}" if several else p["row"] for p in chosen])

        low = [p for p in ours if p["value"] is not None and (floor := attrs["floors"].get(p["column"])) is not None
               and p["value"] <= _NEAR_FLOOR * floor]  # fmt: skip
        return notes(
            "ablation",
            baseline=attrs["table"].baseline,
            has_bars=any(point["interval_low"] is not None for point in ours),
            has_thin_bars=any(bar(p, None, relative=False) and p["interval_low"] is None for p in ours),
            seeds=attrs["seeds"],
            low=named(low),
            times=_NEAR_FLOOR,
            partial=named(point for point in ours if point["n"] and point["state"] != "done"),
            absent=[f"{named([point])} ({point['state']})" for point in ours if not point["n"]],
            has_costs=attrs["axis"] == "cost" and "paper" in {*frame["panel"]},
            more=attrs["notes"],
        )

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Ours on the left and the paper's on the right, one panel a column, each with its own axis of values. A value
        beyond the scale is a triangle with its number, and a run without a value a word."""
        from matplotlib.lines import Line2D

        from comt_cli.report.figures.style import PAGE_WIDTH, letters_on, page_figure, row_looks, style

        attrs, sides = frame.attrs, [*frame.groupby("panel", sort=False)]
        info, metric = attrs["table"], attrs["metric"]
        columns = frame.groupby("panel")["column"].nunique().max()
        widest = frame.groupby("panel")["row"].nunique().max()
        width = min(PAGE_WIDTH, max(3.6, len(sides) * max(2.6, 0.7 + 0.42 * widest)))
        looks = row_looks(frame["row"]) if attrs["axis"] == "cost" else {}
        with style():
            figure = page_figure(1.3 + 1.5 * columns, width)
            parts = figure.subfigures(1, len(sides), squeeze=False)[0]
            for part, (panel, here) in zip(parts, sides, strict=True):
                rows = [row for row in dict.fromkeys(here["row"]) if row != info.baseline]
                curves = [own for _, own in here.groupby("column", sort=False)]
                panels = part.subplots(len(curves), 1, squeeze=False, sharex=True)[:, 0]
                for axes, own in zip(panels, curves, strict=True):
                    _draw_panel(axes, own, rows, looks, _COLOURS[str(panel)])
                _x_axis(panels[-1], here, rows, attrs["axis"])
                printed = f"printed in {paper_name(info.paper or '')}"
                part.suptitle(f"trained here, scale {info.scale}" if panel == "ours" else printed, fontsize=8)
                part.supxlabel(textwrap.fill(attrs["quantity"], letters_on(width / len(sides), 8)), fontsize=8)
                part.supylabel(f"{metric.label} ({metric.better} is better)", fontsize=7)
            figure.suptitle(textwrap.fill(attrs["title"], letters_on(width, 9)), fontsize=9)
            if looks:
                marks = [Line2D([], [], linestyle="none", **look) for look in looks.values()]
                figure.legend(handles=marks, loc="outside right upper")
        return figure


def ablation_rows(loaded: LoadedRecipe, name: AblationName) -> list[str]:
    """The rows of an ablation in table order, with the baseline: those that the recipe names (or all), and every other
    row that differs from one of them in the varied option alone, a point that was added."""
    recipe, methods, option = loaded.recipe, loaded.methods, loaded.recipe.ablations[name].option

    def without(row: str) -> dict[str, Any]:
        return {key: value for key, value in methods[row].items() if key != option}

    named = list(recipe.ablations[name].rows or recipe.rows)
    apart = [without(row) for row in named if option in methods[row]]
    named += [row for row, method in methods.items() if option in method and without(row) in apart]
    return [row for row in recipe.rows if row in named or row == recipe.baseline]


def _numbers(info: TableInfo, option: str, rows: Iterable[str]) -> dict[str, float]:
    """The varied option of every row, where each has a number of its own; else nothing."""
    values = {row: info.loaded.methods[row].get(option) for row in rows} if option else {}
    numbers = {row: float(value) for row, value in values.items()
               if isinstance(value, int | float) and not isinstance(value, bool)}  # fmt: skip
    return numbers if len({*numbers.values()}) == len(values) else {}


def _ours(cell: Record) -> Record:
    apart = cell["_apart"]
    return {
        **{key: cell[key] for key in ("column", "row", "stderr", "n", "state")},
        "panel": "ours",
        "baseline": cell["row"] == cell["baseline"],
        "x": cell["extra_parameters_percent"],
        "value": cell["mean"],
        "collapsed": False,
        "difference": apart and apart.mean,
        "interval_low": apart and apart.low,
        "interval_high": apart and apart.high,
    }


def _papers(info: TableInfo, rows: Sequence[str]) -> Iterator[Record]:
    """Every column of the paper with the recipe's metric, at any scale; `<1%` as the middle of what it may be."""
    recipe, metric = info.recipe, info.task.metrics[info.recipe.metric]
    for column, told in recipe.columns.items():
        for row in rows if told.metric in (None, recipe.metric) else ():
            value, printed = recipe.rows[row].paper.get(column), recipe.rows[row].paper_increase.get(column)
            if value is not None:
                increase = None if printed is None else float(printed.strip("<% "))
                yield {
                    "panel": "paper",
                    "column": column,
                    "row": row,
                    "baseline": row == recipe.baseline,
                    "x": increase / 2 if increase is not None and str(printed).startswith("<") else increase,
                    "value": value,
                    "n": 1,
                    "state": "printed",
                    "collapsed": metric.collapsed(value),
                    "printed_increase": printed,
                }


def scale_of(values: Sequence[float], bars: Iterable[Bar], better: str) -> Bar:
    """The ends of a panel's axis: all values but those so bad that the others could not be distinguished beside them;
    bars reach beyond as far as these span, at most."""
    if not values:
        return 0.0, 1.0
    worst = statistics.median(values) * (_OUTLIER if better == "lower" else 1 / _OUTLIER)
    shown = [value for value in values if (value <= worst if better == "lower" else value >= worst)]
    low, high = min(shown), max(shown)
    span = max(high - low, (0.05 if len(shown) == 1 else 0.004) * abs(high), 1e-6)
    ends = [low, high, *(min(max(end, low - span), high + span) for each in bars for end in each)]
    air = 0.1 * max(max(ends) - min(ends), span)
    return min(ends) - air, max(ends) + air


def bar(point: Record, baseline: float | None, *, relative: bool) -> Bar | None:
    """The ends of a point's bar on the axis of values: the paired interval of the difference, or of the ratio, from the
    baseline, whose line it reaches just where it contains 0. Without a pair, mean ± standard error."""
    low, high, value, stderr = (point[key] for key in ("interval_low", "interval_high", "value", "stderr"))
    if low is not None and high is not None and baseline is not None:
        low, high = (baseline * each / 100 if relative else each for each in (low, high))
        return baseline + low, baseline + high
    return None if stderr is None or point["baseline"] else (value - stderr, value + stderr)


def _draw_panel(axes: Axes, own: pd.DataFrame, rows: Sequence[str], looks: Mapping[str, Any], colour: str) -> None:
    """A point a row, by number or name; of the cost (`looks`) at its increase, the baseline too."""
    attrs, every, metric = own.attrs, own.to_dict("records"), own.attrs["metric"]
    base = next((p for p in every if p["baseline"]), None)
    line: float | None = None if base is None else base["value"]
    points = [p for p in every if p["x"] is not None] if looks else [p for p in every if not p["baseline"]]
    bars = {p["row"]: ends for p in every
            if p["value"] is not None and (ends := bar(p, line, relative=metric.difference.is_relative))}  # fmt: skip
    known = [p["value"] for p in every if p["value"] is not None and not p["collapsed"]]
    low, high = scale_of(known, bars.values(), metric.better)
    axes.set_ylim(low, high)
    axes.set_title(
        f"{in_words(every[0]['column'])}   - - {attrs['table'].baseline} {_text(base)}", loc="left", fontsize=7
    )
    if line is not None:
        axes.axhline(line, color="#606060", linewidth=0.9, linestyle="--", zorder=1)
    places = [p["x"] if looks else rows.index(p["row"]) for p in points]
    heights = [p["value"] if p["value"] is not None and low <= p["value"] <= high else math.nan for p in points]
    if attrs["axis"] == "number":  # a point without a value, or beyond the scale, breaks the line
        axes.plot(places, heights, color=colour, zorder=2)
    beyond: dict[tuple[float, bool], list[str]] = {}
    for point, x, height in zip(points, places, heights, strict=True):
        look = looks.get(point["row"], {"color": colour, "marker": "o"})
        if math.isnan(height):
            is_up = (point["value"] or low) > high
            said = f"{point['row']} {_text(point)}" if looks else _text(point)
            turned = said if point["value"] is None else f"{said} ▶" if is_up else f"◀ {said}"
            beyond.setdefault((x, is_up), []).append(turned)
            continue
        is_whole = point["state"] in ("done", "printed")
        axes.plot([x], [height], markersize=3.6, zorder=4, markerfacecolor=None if is_whole else "white", **look)
        if point["row"] in bars:
            axes.plot([x, x], bars[point["row"]], "_-", color=look["color"], markersize=5, zorder=3,
                      linewidth=0.5 if point["interval_low"] is None else 0.9)  # fmt: skip
    for (x, is_up), names in beyond.items():
        axes.annotate("\n".join(names), (x, high if is_up else low), (0, -4 if is_up else 4), rotation=90, color=colour,
                      va="top" if is_up else "bottom", ha="right" if looks else "center", fontsize=6,
                      textcoords="offset points")  # fmt: skip


def _x_axis(axes: Axes, here: pd.DataFrame, rows: Sequence[str], axis: str) -> None:
    """The axis of a side: rows by their number or name, side by side; the cost is a number, linear up to 1 %."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    if axis == "cost":
        if here["x"].dropna().abs().max() > 3:
            axes.set_xscale("symlog", linthresh=1)
        axes.margins(x=0.3)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:.3g}"))
        return
    numbers = dict(zip(here["row"], here["position"], strict=True))
    names = [row.replace("_", " ") if axis == "category" else f"{numbers[row]:.3g}" for row in rows]
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), names, **(turned if max(map(len, names)) > 8 else {}))


def _text(point: Record | None) -> str:
    if point is None:
        return "not printed"
    if point["value"] is None:
        return next((each for each in ("diverged", "running", "unfinished") if each in point["state"]), "missing")
    return f"{point['value']:.0f}" if point["collapsed"] else format.value(point["value"])
