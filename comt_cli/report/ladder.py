"""A ladder of sizes: every row's gain over the baseline against compute, a line through it, and which way it goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from comt_cli.recipe.names import LADDER_SIZES
from comt_cli.report import format
from comt_cli.report.entry import Entry
from comt_cli.report.statistics import ALPHA, Paired, holm
from comt_cli.runs.directory import RunState
from comt_cli.sums import added
from comt_cli.tasks.base import Metric

NOT_RESOLVED = "not resolved"


@dataclass(frozen=True)
class Rung:
    """A row at one size. `flops` are those of the baseline's training there, so all rows of a size stand at one place.

    `gain` is the mean over `pairs` of equal seeds (`gain_of`), `low` and `high` its 95 % interval, None of one seed and
    where an end of it is beyond what numbers hold.
    """

    column: str
    flops: float
    gain: float
    low: float | None
    high: float | None
    pairs: int


@dataclass(frozen=True)
class Line:
    """gain = intercept + slope x log10(FLOPs): the slope is the gain for ten times the compute.

    `low` and `high` bound its 95 % interval, `p_value` is that of no slope; both of Student's t with two degrees of
    freedom fewer than there are sizes.
    """

    intercept: float
    slope: float
    low: float
    high: float
    p_value: float

    def at(self, flops: float) -> float:
        """The gain that the line has there."""
        return self.intercept + self.slope * math.log10(flops)


@dataclass(frozen=True)
class Trend:
    """A row of a ladder. `line` is None where there is none, and `verdict` then says why; `adjusted` is the p-value of
    its slope after Holm's correction over the rows."""

    row: str
    rungs: tuple[Rung, ...]
    line: Line | None
    verdict: str
    adjusted: float | None = None


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
        return Line(gains[0], 0.0, 0.0, 0.0, 1.0)
    found = linregress([math.log10(each) for each in flops], gains)
    slope, margin = float(found.slope), float(stdtrit(len(gains) - 2, 1 - ALPHA / 2) * found.stderr)
    return Line(float(found.intercept), slope, slope - margin, slope + margin, float(found.pvalue))


def trends(
    entries: Mapping[tuple[str, str], Entry], rows: Sequence[str], columns: Sequence[str], baseline: str, metric: Metric
) -> tuple[Trend, ...]:
    """The trend of every row but the baseline; none where that was not selected."""
    if baseline not in rows:
        return ()
    found = [_trend([entries[row, column] for column in columns], [entries[baseline, column] for column in columns],
                    metric) for row in rows if row != baseline]  # fmt: skip
    adjusted = holm({each.row: each.line.p_value for each in found if each.line is not None})
    return tuple(replace(each, adjusted=adjusted.get(each.row)) for each in found)


def _trend(entries: Sequence[Entry], baselines: Sequence[Entry], metric: Metric) -> Trend:
    """A size at which a seed diverged has no gain, as in tables: the seeds that did not are the lucky ones."""
    rungs, diverged, missing = [], [], []
    for entry, base in zip(entries, baselines, strict=True):
        column, difference = entry.cell.column, entry.difference
        flops = base.cell.average("flops")
        if any(each.cell.having(RunState.diverged) and not each.cell.is_open for each in (entry, base)):
            diverged.append(column)
        elif difference is None or flops is None or (metric.difference.is_relative and difference.mean <= -100):
            missing.append(column)
        else:
            rungs.append(_rung(column, flops, difference, metric))
    row = entries[0].cell.row
    if diverged:
        return Trend(row, tuple(rungs), None, f"no line: a run diverged at {format.listing(diverged)}")
    if missing:
        return Trend(row, tuple(rungs), None, f"no line yet: no difference at {format.listing(missing)}")
    if len({rung.flops for rung in rungs}) < LADDER_SIZES:
        return Trend(row, tuple(rungs), None, f"no line: that takes {LADDER_SIZES} sizes")
    line = fitted([rung.flops for rung in rungs], [rung.gain for rung in rungs])
    return Trend(row, tuple(rungs), line, _verdict(line, added(rung.gain for rung in rungs)))


def _rung(column: str, flops: float, difference: Paired, metric: Metric) -> Rung:
    gain = gain_of(difference.mean, metric)
    # An end that is -100 % to the last digit has no logarithm: of two seeds that lie far apart.
    endless = metric.difference.is_relative and difference.low is not None and difference.low <= -100
    if difference.low is None or difference.high is None or endless:
        return Rung(column, flops, gain, None, None, difference.n)
    low, high = sorted(gain_of(each, metric) for each in (difference.low, difference.high))
    return Rung(column, flops, gain, low, high, difference.n)


def _verdict(line: Line, whole: float) -> str:
    """Which way the line goes, if its slope is resolved; `whole` says on which side of zero the row lies on average."""
    if line.low <= 0 <= line.high:
        return NOT_RESOLVED
    if whole > 0:
        return "gain grows" if line.slope > 0 else "gain shrinks"
    return "deficit shrinks" if line.slope > 0 else "deficit grows"
