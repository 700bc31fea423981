"""An ablation: the metric against the ablated quantity, ours on the left and the paper's on the right."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.schema import AblationName
from comt_cli.report import format
from comt_cli.report.caption import notes
from comt_cli.report.cells import cells_frame
from comt_cli.report.exhibits import Exhibit
from comt_cli.report.frame import Record, TableInfo, frame_of
from comt_cli.report.words import other_settings, paper_name, row_name
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
_COLOURS = {"ours": "#0072B2", "paper": "#D55E00", "baseline": "#606060"}
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
            more=attrs["notes"],
        )

    def draw(self, frame: pd.DataFrame) -> Figure:
        """A panel a column, ours before the paper's, with a line a row and an axis of values of its own; a broken line
        at the value of the baseline. A value beyond the scale is a triangle with its number, a run without one a word.
        Of the cost the increase is beside the panel."""
        from comt_cli.report.figures.style import PAGE_WIDTH, letters_on, page_figure, style

        attrs, rows = frame.attrs, list(dict.fromkeys(frame["row"]))
        info, metric = attrs["table"], attrs["metric"]
        columns = [own for _, own in frame.groupby(["panel", "column"], sort=False)]
        across = len(columns) if len(columns) <= 5 else 3 if len(columns) % 3 == 0 else 4
        down = math.ceil(len(columns) / across)
        width, height = min(PAGE_WIDTH, 1.6 + 1.9 * across), 0.7 + down * (0.6 + 0.19 * len(rows))
        numbers = dict(zip(frame["row"], frame["position"], strict=True)) if attrs["axis"] == "number" else {}
        names = [f"{numbers[row]:.3g}" if row in numbers and row != info.baseline else row_name(row) for row in rows]
        with style():
            figure = page_figure(height, width)
            panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
            for axes, own in zip(panels, columns, strict=False):
                _draw_panel(axes, own, rows)
            for axes in panels[len(columns) :]:
                axes.set_axis_off()
            panels[0].set_yticks(range(len(rows)), names)
            panels[0].set_ylim(len(rows) - 0.5, -0.5)
            figure.supxlabel(f"{metric.label} ({metric.better} is better)", fontsize=8)
            beside = f"at the right: {attrs['quantity']}" if attrs["axis"] == "cost" else attrs["quantity"]
            figure.supylabel(textwrap.fill(beside, letters_on(height - 0.8, 8)), fontsize=8)
            figure.suptitle(textwrap.fill(attrs["title"], letters_on(width, 9)), fontsize=9)
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


def scale_of(values: Sequence[float], bars: Sequence[Bar | None], better: str) -> Bar:
    """The ends of a panel's axis: all values but those so bad that the others could not be distinguished beside them,
    and the bars of the others, as far as they reach no farther beyond than these span or twice a value."""
    if not values:
        return 0.0, 1.0
    worst = statistics.median(values) * (_OUTLIER if better == "lower" else 1 / _OUTLIER)
    shown = {at: value for at, value in enumerate(values) if (value <= worst if better == "lower" else value >= worst)}
    low, high = min(shown.values()), max(shown.values())
    span = max(high - low, (0.05 if len(shown) == 1 else 0.004) * abs(high), 1e-6)
    reach = max(span, 2 * statistics.median(map(abs, shown.values())))
    ends = [low, high, *(min(max(end, low - reach), high + reach) for at in shown for end in bars[at] or ())]
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


def _draw_panel(axes: Axes, own: pd.DataFrame, rows: Sequence[str]) -> None:
    attrs, every, metric = own.attrs, own.to_dict("records"), own.attrs["metric"]
    info, panel = attrs["table"], every[0]["panel"]
    line: float | None = next((p["value"] for p in every if p["baseline"]), None)
    bars = {p["row"]: ends for p in every
            if p["value"] is not None and (ends := bar(p, line, relative=metric.difference.is_relative))}  # fmt: skip
    known = {p["row"]: p["value"] for p in every if p["value"] is not None and not p["collapsed"]}
    low, high = scale_of([*known.values()], [*map(bars.get, known)], metric.better)
    axes.set_xlim(low, high)
    where = f"trained here ({info.scale})" if panel == "ours" else f"printed in {paper_name(info.paper or '')}"
    axes.set_title(f"{where}\n{in_words(every[0]['column'])}", loc="left", fontsize=7)
    if line is not None:
        axes.axvline(line, color=_COLOURS["baseline"], linewidth=0.9, linestyle="--", zorder=1)
    if attrs["axis"] == "number":  # a point without a value, or beyond the scale, breaks the line
        joined = [(p["value"] if low <= (p["value"] or math.nan) <= high else math.nan, rows.index(p["row"]))
                  for p in every if not p["baseline"]]  # fmt: skip
        axes.plot(*zip(*joined, strict=True), color=_COLOURS[panel], zorder=2)
    for point in every:
        value, place, edge = point["value"], rows.index(point["row"]), axes.get_yaxis_transform()
        look: Any = {"color": _COLOURS["baseline" if point["baseline"] else panel], "zorder": 3}
        if attrs["axis"] == "cost" and point["x"] is not None:
            increase = point["printed_increase"] or f"{round(point['x'], 1) + 0.0:g} %"
            axes.annotate(increase, (1.01, place), xycoords=edge, va="center", fontsize=6.5, color="#606060")
        if value is None or not low <= value <= high:
            is_up, said = (value or low) > high, _text(point)
            text = said if value is None else f"{said} ▶" if is_up else f"◀ {said}"
            axes.annotate(text, (float(is_up), place), xycoords=edge, va="center", ha="right" if is_up else "left",
                          fontsize=7, color=look["color"],
                          bbox={"facecolor": "white", "linewidth": 0, "pad": 1})  # fmt: skip
            continue
        is_whole = point["state"] in ("done", "printed")
        axes.plot([value], [place], "o", markersize=3.6, markerfacecolor=None if is_whole else "white", **look)
        if point["row"] in bars:
            axes.plot(bars[point["row"]], [place, place], "|-", markersize=5,
                      linewidth=0.5 if point["interval_low"] is None else 0.9, **look)  # fmt: skip


def _text(point: Record) -> str:
    if point["value"] is None:
        return next((each for each in ("diverged", "running", "unfinished") if each in point["state"]), "missing")
    return f"{point['value']:.0f}" if point["collapsed"] else format.value(point["value"])
