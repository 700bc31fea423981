"""Is a row better than its baseline, and does that agree with the paper? Every combination has one name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from comt_cli.report.statistics import ALPHA, Paired, holm, p_value
from comt_cli.tasks.base import DifferenceUnit, Metric


class Verdict(StrEnum):
    """What a cell says about the published direction, or, where there is none, of its row against the baseline.

    The value is what tables print.
    """

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
        """Whether it says on which side of zero an interval lies."""
        return self in (Verdict.agrees, Verdict.disagrees, Verdict.better, Verdict.worse)

    @property
    def is_of_one_seed(self) -> bool:
        """Whether there is a difference without an interval."""
        return self.startswith("one seed")


STANDS = "*"
"""Behind a verdict that holds after Holm's correction over the table, too."""
_KeyT = TypeVar("_KeyT", bound=Hashable)


def corrected(cells: Mapping[_KeyT, tuple[Verdict, Paired | None, DifferenceUnit]]) -> dict[_KeyT, float]:
    """Holm's adjusted p-values of the cells of one table.

    The family of hypotheses is every difference of the table whose interval its verdict was taken from, resolved or
    not, under whatever metric and in whatever column: what a reader looks through for something resolved.
    """
    found = {
        key: p_value(difference, unit)
        for key, (verdict, difference, unit) in cells.items()
        if difference is not None and (verdict.is_resolved or verdict is Verdict.not_resolved)
    }
    return holm({key: p for key, p in found.items() if p is not None})


def excludes_published(verdict: Verdict, ours: Paired | None, published: float | None) -> bool:
    """Whether the interval of an unresolved difference, which holds zero, does not hold the paper's: that these runs
    would have shown, had it been there. A single interval, as all verdicts are; the paper's own error is not known."""
    return verdict is Verdict.not_resolved and ours is not None and ours.excludes(published)


def stands(adjusted: float | None) -> bool:
    """Whether a difference is resolved after Holm's correction over its table, too."""
    return adjusted is not None and adjusted < ALPHA


@dataclass(frozen=True)
class Outcome:
    """How many of a cell's seeds ended with a value, and how many diverged."""

    values: int
    diverged: int


def published_direction(paper: float | None, paper_baseline: float | None, metric: Metric) -> int:
    """The sign of the published difference to the baseline; 0 where the paper shows none.

    There is none where a value is missing, both are equal, or both runs collapsed.
    """
    if paper is None or paper_baseline is None:
        return 0
    if metric.collapsed(paper) and metric.collapsed(paper_baseline):
        return 0
    return _sign(paper - paper_baseline)


def judge(
    *,
    is_baseline: bool,
    ours: Outcome,
    baseline: Outcome,
    difference: Paired | None,
    paper: float | None,
    paper_baseline: float | None,
    metric: Metric,
) -> Verdict:
    """The verdict of one cell: on the published direction, or, where the paper has no value, on the row itself.

    A seed that diverged has no value to pair, and the seeds that survived it are the lucky ones: so one diverged seed
    is enough to say `diverged`, and no interval over the others is consulted.
    """
    if is_baseline or paper is None:
        return Verdict.baseline if is_baseline else _unpublished(ours, baseline, difference, metric)
    if ours.diverged:
        return Verdict.diverged_in_both if metric.collapsed(paper) else Verdict.diverged_here
    if not ours.values:
        return Verdict.no_result
    published = published_direction(paper, paper_baseline, metric)
    if not published:
        return _undirected(paper, paper_baseline)
    if difference is None or baseline.diverged:
        return _unpaired(baseline, metric.collapsed(paper_baseline))
    return _compare(difference, published)


def _unpublished(ours: Outcome, baseline: Outcome, difference: Paired | None, metric: Metric) -> Verdict:
    """Better or worse than the baseline, of which no paper says anything: only an interval without zero decides."""
    if ours.diverged or not ours.values:
        return Verdict.diverged if ours.diverged else Verdict.no_result
    if baseline.diverged:
        return Verdict.baseline_diverged
    if difference is None:
        return Verdict.no_common_seed if baseline.values else Verdict.no_baseline
    if not difference.excludes_zero:
        return Verdict.one_seed if difference.n == 1 else Verdict.not_resolved
    return Verdict.better if (difference.mean < 0) == (metric.better == "lower") else Verdict.worse


def _undirected(paper: float, paper_baseline: float | None) -> Verdict:
    if paper_baseline is None:
        return Verdict.no_baseline_in_paper
    return Verdict.equal_in_paper if paper == paper_baseline else Verdict.both_collapsed_in_paper


def _unpaired(baseline: Outcome, collapsed_in_paper: bool) -> Verdict:
    if baseline.diverged:
        return Verdict.baseline_diverged_in_both if collapsed_in_paper else Verdict.baseline_diverged_here
    return Verdict.no_common_seed if baseline.values else Verdict.no_baseline


def _compare(difference: Paired, published: int) -> Verdict:
    same = _sign(difference.mean) == published
    if difference.n == 1:
        if difference.mean == 0:
            return Verdict.one_seed_equal
        return Verdict.one_seed_same if same else Verdict.one_seed_opposite
    if not difference.excludes_zero:
        return Verdict.not_resolved
    return Verdict.agrees if same else Verdict.disagrees


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
