"""Mean, standard error, and the paired difference to a baseline: its interval, its p-value, the effect that n seeds can
detect; and its verdict: better or worse than the baseline, in agreement with the paper or not."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from comt_cli.tasks.base import DifferenceUnit, Metric

ALPHA = 0.05  # level of the two-sided test equivalent to the 95 % interval, and of Holm's correction
POWER = 0.8  # probability with which a detectable difference is resolved


@dataclass(frozen=True)
class Summary:
    """Mean and median over n seeds; standard error s / sqrt(n) with the sample deviation s, None for one seed."""

    mean: float
    stderr: float | None
    n: int
    median: float | None = None


@dataclass(frozen=True)
class Paired:
    """Difference to the baseline over the n common seeds, in the metric's unit of differences (`paired_difference`);
    `low` and `high` bound the 95 % interval of Student's t with n - 1 degrees of freedom, None for one seed."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def excludes(self, apart: float | None = 0.0) -> bool:
        """Whether the interval excludes a difference in the same unit; False for one seed."""
        if self.low is None or self.high is None or apart is None:
            return False
        return not self.low <= apart <= self.high


def summarise(values: Sequence[float]) -> Summary | None:
    """Mean, standard error, n and median; None without values."""
    if not (n := len(values)):
        return None
    mean = math.fsum(values) / n
    error = None if n == 1 else math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return Summary(mean, error, n, statistics.median(values))


def paired_difference(ours: Mapping[int, float], baseline: Mapping[int, float], unit: DifferenceUnit) -> Paired | None:
    """Mean over common seeds s of d_s, and mean +- t(0.975, n - 1) times its standard error.

    Points are d_s = ours - baseline. A relative difference is d_s = log(ours / baseline); its mean and ends are
    returned as 100 (exp(.) - 1): the geometric mean of the ratios, and an interval that cannot go below -100 %.

    None if there is no common seed, a number is not finite, or a ratio has a number that is not positive.
    """
    pairs = [(ours[seed], baseline[seed]) for seed in sorted(ours.keys() & baseline.keys())]
    if not pairs or not all(_can_be_compared(number, unit) for pair in pairs for number in pair):
        return None
    summary = summarise([math.log(one) - math.log(other) if unit.is_relative else one - other for one, other in pairs])
    assert summary is not None
    mean = summary.mean
    if summary.stderr is None:
        return Paired(told(mean, unit), None, None, 1)
    margin = _t_quantile(summary.n) * summary.stderr
    return Paired(told(mean, unit), told(mean - margin, unit), told(mean + margin, unit), summary.n)


def difference(value: float | None, baseline: float | None, unit: DifferenceUnit) -> float | None:
    """100 (value / baseline - 1), or value - baseline if the unit is points.

    None if one of them is missing, or not positive in a ratio.
    """
    if value is None or baseline is None or not (_can_be_compared(value, unit) and _can_be_compared(baseline, unit)):
        return None
    return 100 * (value - baseline) / baseline if unit.is_relative else value - baseline


def p_value(paired: Paired, unit: DifferenceUnit) -> float | None:
    """P(|T| >= |mean| / standard error) of the two-sided paired t-test (Student 1908, Biometrika 6), T with n - 1
    degrees of freedom: below `ALPHA` if the 95 % interval excludes zero.

    If the differences do not vary it is 0, or 1 if they are zero. None if there is no interval, or one that cannot be
    inverted (`_read_back`).
    """
    if (found := _read_back(paired, unit)) is None:
        return None
    mean, stderr = found
    if not stderr:
        return 0.0 if mean else 1.0
    from scipy.special import stdtr

    return 2 * float(stdtr(paired.n - 1, -abs(mean / stderr)))


def detectable(paired: Paired, unit: DifferenceUnit) -> tuple[float, float] | None:
    """The smallest true differences below and above zero that n seeds resolve with probability `POWER`, if differences
    vary as these do: `detectable_effect` standard deviations, in logarithms for relative ones.

    None if there is no interval, or one that cannot be inverted, or if the differences do not vary.
    """
    if (found := _read_back(paired, unit)) is None or not found[1]:
        return None
    apart = detectable_effect(paired.n) * found[1] * math.sqrt(paired.n)
    return told(-apart, unit), told(apart, unit)


_KeyT = TypeVar("_KeyT", bound=Hashable)


def holm(p_values: Mapping[_KeyT, float]) -> dict[_KeyT, float]:
    """Holm's adjusted p-values: where those below alpha are rejected, the probability of any wrong rejection among all
    is at most alpha, however they depend on each other (Holm 1979, Scandinavian Journal of Statistics 6, 65-70).

    Of m p-values in ascending order, the i-th becomes the largest of min(1, (m - j + 1) p_j) over j <= i.
    """
    adjusted: dict[_KeyT, float] = {}
    largest = 0.0
    for rank, key in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[key]))
        adjusted[key] = largest
    return adjusted


def _can_be_compared(number: float, unit: DifferenceUnit) -> bool:
    return math.isfinite(number) and (number > 0 or not unit.is_relative)


_MOST = 700.0
"""The interval of two very different seeds may end where no float can hold the exponential: it is cut here."""


def told(apart: float, unit: DifferenceUnit) -> float:
    """A mean difference, or an end of its interval, as it is shown: a log ratio r as 100 (exp(r) - 1)."""
    return 100 * math.expm1(min(apart, _MOST)) if unit.is_relative else apart


def _read_back(paired: Paired, unit: DifferenceUnit) -> tuple[float, float] | None:
    """Mean and standard error of the differences behind an interval, in logarithms for relative ones; so p-values can
    be computed from a written table.

    None without an interval, or if its end is cut (`_MOST`) or its mean is rounded to -100 %.
    """
    if paired.high is None:
        return None
    if not unit.is_relative:
        mean, high = paired.mean, paired.high
    elif paired.mean > -100 and paired.high < told(_MOST, unit):
        mean, high = math.log1p(paired.mean / 100), math.log1p(paired.high / 100)
    else:
        return None
    return mean, (high - mean) / _t_quantile(paired.n)


@functools.cache
def _t_quantile(n: int) -> float:
    """Half the width of the interval over n > 1 seeds, in standard errors: t(0.975, n - 1)."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 1 - ALPHA / 2))


@functools.cache
def detectable_effect(n: int) -> float:
    """The smallest true mean difference, in standard deviations of the n > 1 paired differences, that the two-sided
    t-test resolves at level `ALPHA` with probability `POWER` (Cohen 1988, Statistical Power Analysis, chapter 2).

    It is nc / sqrt(n) with P(T > t(0.975, n - 1)) = 0.8 for the noncentral t of n - 1 degrees of freedom and
    noncentrality nc; resolution with the wrong sign, a probability below 1e-5, does not count.
    """
    from scipy.special import nctdtrinc

    return float(nctdtrinc(n - 1, 1 - POWER, _t_quantile(n))) / math.sqrt(n)


class Verdict(StrEnum):
    """Verdict of a cell on the published direction, or, without one, on its row relative to the baseline; the value is
    printed in tables."""

    baseline = "-"
    better = "better"
    worse = "worse"
    one_seed = "one seed"
    diverged = "diverged"
    baseline_diverged = "baseline diverged"
    agrees = "agrees"
    disagrees = "disagrees"
    not_resolved = "not resolved"
    one_seed_same = "one seed (same direction)"
    one_seed_opposite = "one seed (opposite direction)"
    one_seed_equal = "one seed (no difference)"
    diverged_here = "diverged here"
    diverged_in_both = "diverged in both"
    baseline_diverged_here = "baseline diverged here"
    baseline_diverged_in_both = "baseline diverged in both"
    no_baseline_in_paper = "no baseline in the paper"
    equal_in_paper = "equal in the paper"
    both_collapsed_in_paper = "both collapsed in the paper"
    no_result = "no result"
    no_baseline = "no baseline"
    no_common_seed = "no common seed"

    @property
    def is_resolved(self) -> bool:
        """Whether it gives the side of zero of an interval."""
        return self in (Verdict.agrees, Verdict.disagrees, Verdict.better, Verdict.worse)

    @property
    def is_of_one_seed(self) -> bool:
        """Whether there is a difference without an interval."""
        return self.startswith("one seed")


STANDS = "*"  # after a verdict that is also resolved after Holm's correction over the table


def corrected(cells: Mapping[_KeyT, tuple[Verdict, Paired | None, DifferenceUnit]]) -> dict[_KeyT, float]:
    """Holm's adjusted p-values of the cells of one table. The family of hypotheses: every difference whose interval
    decides a verdict, resolved or not, for all metrics and columns."""
    found = {
        key: p_value(difference, unit)
        for key, (verdict, difference, unit) in cells.items()
        if difference is not None and (verdict.is_resolved or verdict is Verdict.not_resolved)
    }
    return holm({key: p for key, p in found.items() if p is not None})


def excludes_published(verdict: Verdict, ours: Paired | None, published: float | None) -> bool:
    """Whether the interval of an unresolved difference, which includes zero, excludes the paper's difference: these
    runs would have shown it. A single interval, as for all verdicts; the paper's own error is not known."""
    return verdict is Verdict.not_resolved and ours is not None and ours.excludes(published)


def stands(adjusted: float | None) -> bool:
    """Whether a difference is also resolved after Holm's correction over its table."""
    return adjusted is not None and adjusted < ALPHA


def published_direction(paper: float | None, paper_baseline: float | None, metric: Metric) -> int:
    """The sign of the published difference to the baseline; 0 if a value is missing, both are equal, or both runs
    collapsed."""
    if paper is None or paper_baseline is None or (metric.collapsed(paper) and metric.collapsed(paper_baseline)):
        return 0
    return (paper > paper_baseline) - (paper < paper_baseline)


def judge(
    difference: Paired | None,
    metric: Metric,
    *,
    has_values: bool = True,
    has_baseline: bool = True,
    diverged: bool = False,
    baseline_diverged: bool = False,
    paper: float | None = None,
    paper_baseline: float | None = None,
) -> Verdict:
    """The verdict of a row relative to the baseline: on the published direction, or, if the paper has no value, on the
    row itself. `has_values`, `has_baseline`: whether a seed of the row, or of the baseline, ended with a value.

    A diverged seed has no value to pair, and the others are a biased selection. So one diverged seed suffices for
    `diverged`, and the interval of the others is not used.
    """
    has_paper, published = paper is not None, published_direction(paper, paper_baseline, metric)
    undirected = has_paper and not published
    cases = (
        (diverged and not has_paper, Verdict.diverged),
        (diverged and metric.collapsed(paper), Verdict.diverged_in_both),
        (diverged, Verdict.diverged_here),
        (not has_values, Verdict.no_result),
        (undirected and paper_baseline is None, Verdict.no_baseline_in_paper),
        (undirected and paper == paper_baseline, Verdict.equal_in_paper),
        (undirected, Verdict.both_collapsed_in_paper),
        (baseline_diverged and not has_paper, Verdict.baseline_diverged),
        (baseline_diverged and metric.collapsed(paper_baseline), Verdict.baseline_diverged_in_both),
        (baseline_diverged, Verdict.baseline_diverged_here),
        (difference is None, Verdict.no_common_seed if has_baseline else Verdict.no_baseline),
        (difference is not None and difference.n > 1 and not difference.excludes(), Verdict.not_resolved),
    )
    found = next((verdict for holds, verdict in cases if holds), None)
    if found is not None or difference is None:
        return found or Verdict.no_common_seed
    if not has_paper:  # only an interval that excludes zero decides
        is_better = (difference.mean < 0) == (metric.better == "lower")
        return Verdict.one_seed if difference.n == 1 else Verdict.better if is_better else Verdict.worse
    if difference.n == 1 and not difference.mean:
        return Verdict.one_seed_equal
    same = (difference.mean > 0) == (published > 0)
    if difference.n == 1:
        return Verdict.one_seed_same if same else Verdict.one_seed_opposite
    return Verdict.agrees if same else Verdict.disagrees
