"""A ladder of sizes: every row's gain over the baseline against compute, a line through it, and its trend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from comt_cli.recipe.schema import LADDER_SIZES
from comt_cli.report import format
from comt_cli.report.caption import prose
from comt_cli.report.cells import cells_frame
from comt_cli.report.exhibits import Exhibit
from comt_cli.report.frame import Record, TableInfo, frame_of
from comt_cli.report.statistics import ALPHA, STANDS, Paired, holm, stands
from comt_cli.sums import added
from comt_cli.tasks.base import Metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

HEADING = "Gain against compute"
NOT_RESOLVED = "not resolved"
_FAR = 2  # powers of ten beyond the largest size from which on nothing is said of a line
_ASIDE = 0.012  # distance between the rows of a size, as a share of the axis, so that no bar hides another
_OF_LINE = {"intercept": "intercept", "slope": "slope", "slope_low": "low", "slope_high": "high", "p_value": "p_value"}
"""The numbers of a line by column."""
Line = dict[str, float]
"""gain = `intercept` + `slope` x log10(FLOPs): the slope is the gain for ten times the compute, `low` and `high` bound
its 95 % interval, and `p_value` is that of no slope; both of Student's t with two degrees of freedom fewer than sizes.
"""
Trend = Record
"""A row of a ladder: `row`; `rungs`, one for each size; `line`, None if there is none, with the reason in `verdict`;
`adjusted`, the p-value of the slope after Holm's correction over the rows.

A rung has `column`, `flops` (of the baseline's training there), `gain` (the mean over `pairs` of equal seeds,
`gain_of`), and `low` and `high`, its 95 % interval, None for one seed or if an end is beyond the range of numbers.
"""


class Ladder(Exhibit):
    """The gains of every row over the baseline against training FLOPs, with the lines through them."""

    name = "ladder"

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One line for each row and size, with the row's line beside it; a row without any size has one line."""
        import pandas as pd

        info: TableInfo = runs.attrs["table"]
        if not info.recipe.ladder:
            return pd.DataFrame()
        cells = cells_frame(runs)
        found = trends(cells)
        if not any(trend["rungs"] for trend in found):
            return pd.DataFrame()
        lines = []
        for trend in found:
            line = {key: (trend["line"] or {}).get(of) for key, of in _OF_LINE.items()}
            end = {**line, "p_value_holm": trend["adjusted"], "verdict": trend["verdict"]}
            for rung in trend["rungs"] or [dict.fromkeys(("column", "flops", "gain", "low", "high", "pairs"))]:
                lines.append({"row": trend["row"], **rung, **end})
        frame = frame_of(lines)
        numbers = [key for key in frame if key not in ("row", "column", "pairs", "verdict")]
        frame = frame.astype(dict.fromkeys(numbers, float)).astype({"pairs": "Int64"})
        frame.attrs = {
            "title": f"{info.recipe.title}: {HEADING.lower()}",
            "trained": cells.attrs["trained"],
            "reading": (
                rule(cells, found),
                "Bars are the 95 % intervals of each size; a dashed line has a slope that is not resolved",
                *sentences(found),
            ),
            "baseline": info.baseline,
            "unit": _unit(cells),
        }
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        return list(frame.attrs["reading"])

    def draw(self, frame: pd.DataFrame) -> Figure:
        """One panel; the rows of a size are at one place, that of the baseline's compute."""
        import numpy as np

        from comt_cli.report.figures.style import MARKERS, OKABE_ITO, end_labels, page_figure, style

        baseline, rows = frame.attrs["baseline"], frame["row"].nunique()
        height = max(3.2, 1.0 + 0.144 * rows)
        places = frame.dropna(subset=["gain"]).groupby("column", sort=False)["flops"].first()
        low, high = np.log10(places.min()), np.log10(places.max())
        aside = _ASIDE * max(high - low, 0.5)
        ends = np.array([low - 3 * aside, high + 3 * aside])
        with style():
            figure = page_figure(height)
            axes, labels = figure.subplots(), dict[str, tuple[float, str]]()
            axes.axhline(0, color="black", linewidth=0.8)
            for number, (row, own) in enumerate(frame.groupby("row", sort=False)):
                here, colour = own[own["gain"].notna()], OKABE_ITO[number % len(OKABE_ITO)]
                x = 10 ** (np.log10(here["flops"]) + aside * (number - (rows - 1) / 2))
                bars = [(here["gain"] - here["low"]).fillna(0), (here["high"] - here["gain"]).fillna(0)]
                axes.errorbar(x, here["gain"], bars, fmt=MARKERS[number % len(MARKERS)], color=colour, markersize=4)
                end = here["gain"].iloc[-1] if len(here) else np.inf
                if np.isfinite((line := own.iloc[0])["slope"]):
                    dashes = "--" if line["verdict"] == NOT_RESOLVED else "-"
                    heights = line["intercept"] + line["slope"] * ends
                    axes.plot(10**ends, heights, color=colour, linestyle=dashes)
                    end = heights[1]
                labels[str(row)] = (float(end), colour)
            axes.set_xscale("log")
            axes.set_xlim(right=10 ** (ends[1] + aside))
            axes.set_xlabel(f"training FLOPs of {baseline}")
            axes.set_ylabel(f"gain over {baseline}, {frame.attrs['unit']}\n(above 0 is better)")
            for column, flops in places.items():
                axes.annotate(str(column).rpartition("/")[2], (flops, 1.0), xycoords=axes.get_xaxis_transform(),
                              ha="center", va="bottom", fontsize=7, color="#404040")  # fmt: skip
            end_labels(axes, labels, 0.144 / height)
        return figure


def gain_of(difference: float, metric: Metric) -> float:
    """A difference to the baseline as a gain, above zero where the row is better.

    Of relative differences 100 x log ratio, which adds up where per cent do not: of a perplexity 100 times the
    difference of the losses in nats. Others stay in points.
    """
    sign = -1 if metric.better == "lower" else 1
    return sign * (100 * math.log1p(difference / 100) if metric.difference.is_relative else difference)


def fitted(flops: Sequence[float], gains: Sequence[float]) -> Line:
    """The ordinary least squares line of gains against log10(FLOPs), of at least three sizes that differ in them.

    Sizes are what is repeated here, one gain each: seeds of one size share its learning rate, its shape and the noise
    of having chosen them, so counting each seed as a point would make the interval too narrow.
    """
    from scipy.special import stdtrit
    from scipy.stats import linregress

    if min(gains) == max(gains):  # of which linregress has no standard error and no p-value
        return {"intercept": gains[0], "slope": 0.0, "low": 0.0, "high": 0.0, "p_value": 1.0}
    found = linregress([math.log10(each) for each in flops], gains)
    slope, margin = float(found.slope), float(stdtrit(len(gains) - 2, 1 - ALPHA / 2) * found.stderr)
    ends = {"low": slope - margin, "high": slope + margin}
    return {"intercept": float(found.intercept), "slope": slope, **ends, "p_value": float(found.pvalue)}


def trends(cells: pd.DataFrame) -> list[Trend]:
    """The trend of every row of a ladder's table but the baseline; none of another table, or where the baseline was not
    selected."""
    columns = [{each["row"]: each for each in own.to_dict("records")} for _, own in cells.groupby("column", sort=False)]
    info: TableInfo = cells.attrs["table"]
    if not info.recipe.ladder or info.baseline not in columns[0]:
        return []
    rows = [row for row in columns[0] if row != info.baseline]
    found = [_trend(row, [(column[row], column[info.baseline]) for column in columns]) for row in rows]
    adjusted = holm({each["row"]: each["line"]["p_value"] for each in found if each["line"] is not None})
    return [{**each, "adjusted": adjusted.get(each["row"])} for each in found]


def _trend(row: str, pairs: Sequence[tuple[Record, Record]]) -> Trend:
    """A size at which a seed diverged has no gain, as in tables: the seeds that did not are the lucky ones."""
    rungs, diverged, missing = [], [], []
    for own, base in pairs:
        metric, apart, flops = own["_metric"], own["_apart"], base["_cell"].average("flops")
        if own["_diverged"] or base["_diverged"]:
            diverged.append(own["column"])
        elif apart is None or flops is None or (metric.difference.is_relative and apart.mean <= -100):
            missing.append(own["column"])
        else:
            ends: list[float | None] = [None, None]
            # An end that is -100 % to the last digit has no logarithm: of two seeds that lie far apart.
            if apart.low is not None and (apart.low > -100 or not metric.difference.is_relative):
                ends = sorted(gain_of(each, metric) for each in (apart.low, apart.high))  # type: ignore[assignment]
            gain, (low, high) = gain_of(apart.mean, metric), ends
            rungs.append({"column": own["column"], "flops": flops, "gain": gain, "low": low, "high": high,
                          "pairs": apart.n})  # fmt: skip
    line = None
    if diverged:
        verdict = f"no line: a run diverged at {format.listing(diverged)}"
    elif missing:
        verdict = f"no line yet: no difference at {format.listing(missing)}"
    elif len({rung["flops"] for rung in rungs}) < LADDER_SIZES:
        verdict = f"no line: that takes {LADDER_SIZES} sizes"
    else:
        line = fitted([rung["flops"] for rung in rungs], [rung["gain"] for rung in rungs])
        is_gain = added(rung["gain"] for rung in rungs) > 0  # on average
        way = "grows" if (line["slope"] > 0) == is_gain else "shrinks"
        is_resolved = not line["low"] <= 0 <= line["high"]
        verdict = f"{'gain' if is_gain else 'deficit'} {way}" if is_resolved else NOT_RESOLVED
    return {"row": row, "rungs": rungs, "line": line, "verdict": verdict, "adjusted": None}


def texts(found: Sequence[Trend], columns: Sequence[str]) -> list[list[str]]:
    """The lines as a table of texts, the headings first: the gain at every size, the slope, the verdict."""
    made = [["method", *columns, "gain for 10 x compute [95 %]", "verdict"]]
    for trend in found:
        gains = {rung["column"]: format.signed(rung["gain"]) for rung in trend["rungs"]}
        slope = "-" if trend["line"] is None else _slope(trend["line"])
        mark = STANDS if _is_marked(trend) else ""
        made.append([trend["row"], *(gains.get(column, "-") for column in columns), slope, trend["verdict"] + mark])
    return made


def _is_marked(trend: Trend) -> bool:
    return trend["verdict"] != NOT_RESOLVED and stands(trend["adjusted"])


def rule(cells: pd.DataFrame, found: Sequence[Trend]) -> str:
    """The sentence on how the lines are computed."""
    sizes, baseline = cells["column"].nunique(), cells.attrs["table"].baseline
    mark = STANDS if any(map(_is_marked, found)) else ""
    return prose("ladder", baseline=baseline, unit=_unit(cells), sizes=sizes, least=LADDER_SIZES, mark=mark)


def _unit(cells: pd.DataFrame) -> str:
    own = cells["_metric"].iloc[0].difference
    return "100 x log ratio" if own.is_relative else str(own.spoken)


def sentences(found: Sequence[Trend]) -> Iterator[str]:
    """One sentence for each row: the trend of its gain, the slope, and for a shrinking gain the zero of its line,
    unless that is far from the trained sizes."""
    for trend in found:
        if (line := trend["line"]) is None:
            yield f"{trend['row']}: {trend['verdict']}"
            continue
        zero = ""
        if trend["verdict"].endswith("shrinks"):
            reached = -line["intercept"] / line["slope"]
            is_far = reached > math.log10(max(rung["flops"] for rung in trend["rungs"])) + _FAR
            before = f"not zero before {10**_FAR} times the largest compute"
            zero = f"; the line is {before if is_far else f'zero at {10**reached:.1e} FLOPs'}"
        yield f"{trend['row']}: {trend['verdict']}, {_slope(line)} for ten times the compute{zero}"


def _slope(line: Line) -> str:
    return format.difference(Paired(line["slope"], line["low"], line["high"], 0))
