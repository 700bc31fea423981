"""Every combination of ours and the paper's has its verdict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.report.statistics import Paired, Verdict, corrected, judge, p_value, stands
from comt_cli.tasks import tasks
from comt_cli.tasks.base import PERCENT, POINTS

LOWER, HIGHER, UNRESOLVED = Paired(-5.0, -8.0, -2.0, 3), Paired(5.0, 2.0, 8.0, 3), Paired(-1.0, -5.0, 3.0, 3)
ALL_LOST = {"diverged": True, "has_values": False, "difference": None}
BASELINE_LOST = {"baseline_diverged": True, "has_baseline": False, "difference": None}
METRICS = {name: metric for task in tasks().values() for name, metric in task.metrics.items()}


def verdict(*, metric: str = "perplexity", **case: Any) -> Verdict:
    return judge(**{"difference": LOWER, "paper": 23.0, "paper_baseline": 26.0} | case, metric=METRICS[metric])


@pytest.mark.parametrize(
    ("difference", "paper", "expected"),
    [
        (LOWER, 23.0, "agrees"),
        (HIGHER, 23.0, "disagrees"),
        (LOWER, 27.0, "disagrees"),
        (HIGHER, 27.0, "agrees"),
        (UNRESOLVED, 23.0, "not resolved"),
        (Paired(0.0, 0.0, 0.0, 2), 23.0, "not resolved"),
        (Paired(-5.0, -8.0, 0.0, 3), 23.0, "not resolved"),
        (Paired(-5.0, None, None, 1), 23.0, "one seed (same direction)"),
        (Paired(5.0, None, None, 1), 23.0, "one seed (opposite direction)"),
        (Paired(0.0, None, None, 1), 23.0, "one seed (no difference)"),
        (HIGHER, 1400.0, "agrees"),  # a collapsed row is worse than its baseline
        (LOWER, 1400.0, "disagrees"),
    ],
)
def test_direction_against_the_papers(difference: Paired, paper: float, expected: str) -> None:
    assert verdict(difference=difference, paper=paper) == expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"paper": None, "diverged": True}, "diverged"),
        ({"paper": None, "has_values": False}, "no result"),
        ({"paper": None, "baseline_diverged": True}, "baseline diverged"),
        ({"paper": None, "has_baseline": False, "difference": None}, "no baseline"),
        ({"paper": None, "difference": None}, "no common seed"),
        ({"diverged": True}, "diverged here"),
        ({"diverged": True, "paper": 1400.0}, "diverged in both"),
        (
            {**ALL_LOST, "paper": 1400.0, "paper_baseline": 1300.0},
            "diverged in both",
        ),
        (
            {
                "diverged": True,
                "has_values": False,
                "difference": None,
                "baseline_diverged": True,
                "has_baseline": False,
            },
            "diverged here",
        ),
        ({"has_values": False, "difference": None, "has_baseline": False}, "no result"),
        ({"paper_baseline": None}, "no baseline in the paper"),
        ({"paper": 1400.0, "paper_baseline": 1300.0}, "both collapsed in the paper"),
        ({"paper": 26.0}, "equal in the paper"),
        ({"baseline_diverged": True}, "baseline diverged here"),
        (
            {**BASELINE_LOST, "difference": None, "paper_baseline": 1400.0},
            "baseline diverged in both",
        ),
        ({"has_baseline": False, "difference": None}, "no baseline"),
        ({"difference": None}, "no common seed"),
        ({"paper": 1400.0, "paper_baseline": 1300.0, "metric": "accuracy"}, "disagrees"),  # which cannot collapse
    ],
)
def test_what_has_no_direction_says_why(case: dict[str, Any], expected: str) -> None:
    assert verdict(**case) == expected


@given(
    mean=st.floats(-50, 50),
    half=st.floats(0, 50),
    n=st.integers(1, 9),
    metric=st.sampled_from(["perplexity", "accuracy"]),
    baseline=st.sampled_from([None, 23.0, 1400.0]),
)
def test_without_a_printed_value_the_interval_alone_decides(mean, half, n, metric, baseline) -> None:
    """Better or worse is said where the interval lies wholly on that side of zero, and only there."""
    interval = (None, None) if n == 1 else (mean - half, mean + half)
    found = verdict(difference=Paired(mean, *interval, n), paper=None, paper_baseline=baseline, metric=metric)
    sign = 0 if n == 1 or mean - half <= 0 <= mean + half else 1 if mean > 0 else -1
    sign *= -1 if metric == "perplexity" else 1
    assert found == ("one seed" if n == 1 else {1: "better", 0: "not resolved", -1: "worse"}[sign])


def test_the_family_of_holms_correction_is_every_difference_that_a_verdict_was_taken_from() -> None:
    """Resolved or not, in whatever unit; not one of a row with a seed that diverged, nor of one seed."""
    cells = {
        "agrees": (Verdict.agrees, LOWER, PERCENT),
        "worse": (Verdict.worse, HIGHER, POINTS),
        "open": (Verdict.not_resolved, UNRESOLVED, PERCENT),
        "diverged": (Verdict.diverged_here, LOWER, PERCENT),
        "one seed": (Verdict.one_seed_same, Paired(-5.0, None, None, 1), PERCENT),
        "baseline": (Verdict.baseline, None, PERCENT),
    }
    found = corrected(cells)
    alone = {key: p_value(cells[key][1], cells[key][2]) for key in ("agrees", "worse", "open")}
    assert found.keys() == alone.keys()
    least = min(alone, key=alone.__getitem__)
    assert found[least] == pytest.approx(3 * alone[least])
    assert {key: corrected({key: cells[key]})[key] for key in found} == alone
    assert [stands(p) for p in (None, 0.0499, 0.05, 1.0)] == [False, True, False, False]
