"""Statistics against values worked out by hand or printed in tables, verdicts, and how numbers look."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.stats import nct, t, ttest_1samp

from comt_cli.report import format
from comt_cli.report.statistics import (
    Paired,
    Summary,
    Verdict,
    corrected,
    detectable,
    detectable_effect,
    difference,
    holm,
    judge,
    p_value,
    paired_difference,
    stands,
    summarise,
)
from comt_cli.runs.plan import parse_seeds
from comt_cli.tasks import tasks
from comt_cli.tasks.base import PERCENT, POINTS, DifferenceUnit

POSITIVE = st.floats(1e-300, 1e300)


def compared(pairs: list[tuple[float, float]], unit: DifferenceUnit) -> Paired:
    """The difference over pairs of ours and the baseline's."""
    ours, baseline = ({seed: pair[side] for seed, pair in enumerate(pairs)} for side in (0, 1))
    found = paired_difference(ours, baseline, unit)
    assert found is not None
    return found


VALUES = st.lists(st.tuples(st.floats(1, 99), st.floats(1, 99)), min_size=2, max_size=9)


@given(VALUES, st.sampled_from([POINTS, PERCENT]))
def test_interval_and_p_value_are_those_of_the_paired_t_test(
    pairs: list[tuple[float, float]], unit: DifferenceUnit
) -> None:
    """The p-value, which is computed from the interval, is that of the differences themselves."""
    apart = [math.log(ours / base) if unit.is_relative else ours - base for ours, base in pairs]
    assume(max(apart) - min(apart) > 1e-3)
    found, expected = compared(pairs, unit), ttest_1samp(apart, 0.0)
    ends = expected.confidence_interval(0.95)
    low, high = (100 * math.expm1(end) for end in ends) if unit.is_relative else ends
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, rel=1e-9, abs=1e-9))
    assert p_value(found, unit) == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-9)
    if abs(expected.pvalue - 0.05) > 1e-9:
        assert (expected.pvalue < 0.05) == found.excludes()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 50])
def test_a_detectable_difference_is_resolved_in_four_of_five_experiments(n: int) -> None:
    effect, quantile = detectable_effect(n), t.ppf(0.975, n - 1)
    assert 1 - nct.cdf(quantile, n - 1, effect * math.sqrt(n)) == pytest.approx(0.8, abs=1e-6)
    if n > 2:  # for one degree of freedom scipy cannot tell this tail from zero
        assert nct.cdf(-quantile, n - 1, effect * math.sqrt(n)) < 1e-5


@pytest.mark.parametrize(
    "paired", [Paired(3.0, None, None, 1), compared([(1e-300, 1.0), (1e300, 1.0)], PERCENT), Paired(-100, -100, 5, 2)]
)
def test_nothing_is_made_of_what_has_no_interval_or_one_that_was_cut(paired: Paired) -> None:
    assert (p_value(paired, PERCENT), detectable(paired, PERCENT)) == (None, None)


P_VALUES = st.dictionaries(st.integers(0, 20), st.floats(0, 1), max_size=8)


@given(P_VALUES, st.randoms())
def test_holm_is_monotone_free_of_order_and_between_no_correction_and_bonferronis(
    p_values: dict[int, float], random: Random
) -> None:
    adjusted = holm(p_values)
    assert adjusted.keys() == p_values.keys()
    bonferroni = {key: min(1.0, len(p_values) * p) for key, p in p_values.items()}
    for key, p in p_values.items():
        assert p <= adjusted[key] <= bonferroni[key]
        assert all(adjusted[key] <= adjusted[other] for other, larger in p_values.items() if p <= larger)
    if p_values:
        least = min(p_values, key=p_values.__getitem__)
        assert adjusted[least] == bonferroni[least]
    assert holm({key: p_values[key] for key in random.sample(list(p_values), len(p_values))}) == adjusted


# Two of three runs collapsed: means of percentages would have an interval that ends at -190 %.
@example([(98.4, 105.1), (376.2, 112.0), (377.0, 126.9)])
@example([(1.0, 1e5), (1e5, 1.0)])
@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=6))
def test_a_ratio_is_never_less_than_nothing(pairs: list[tuple[float, float]]) -> None:
    ours, baseline = ({seed: pair[side] for seed, pair in enumerate(pairs)} for side in (0, 1))
    paired = paired_difference(ours, baseline, PERCENT)
    assert paired is not None
    assert -100 <= paired.mean < math.inf
    if len(pairs) > 1:
        assert paired.low is not None
        assert paired.high is not None
        assert -100 <= paired.low <= paired.mean <= paired.high < math.inf
    turned = paired_difference(baseline, ours, PERCENT)
    assert turned is not None
    assert turned.excludes() == paired.excludes(), "it does not matter which of the two is called the baseline"


def test_means_and_pairs_by_hand() -> None:
    # deviations -2, 0, 2: s^2 = 8 / 2 = 4, s / sqrt(3)
    summary = summarise([10.0, 12.0, 14.0])
    assert summary == Summary(12.0, pytest.approx(2 / math.sqrt(3)), 3, 12.0)
    assert (summarise([5.0]), summarise([])) == (Summary(5.0, None, 1, 5.0), None)
    assert paired_difference({1: 90.0, 2: 1.0}, {1: 100.0, 3: 5.0}, PERCENT) == Paired(
        pytest.approx(-10), None, None, 1
    )
    assert paired_difference({1: 1.0}, {2: 1.0}, PERCENT) is None
    # 0.25, 0.75, 0.50: mean 0.5, s = 0.25, standard error 0.25 / sqrt(3), t(0.975, 2) = 4.30265
    paired = compared([(10.25, 10.0), (20.75, 20.0), (0.5, 0.0)], POINTS)
    assert (paired.mean, paired.n) == (pytest.approx(0.5), 3)
    assert paired.low == pytest.approx(0.5 - 4.30265 * 0.25 / math.sqrt(3), abs=1e-4)
    assert difference(91.37, 91.12, POINTS) == pytest.approx(0.25)
    assert (difference(1.0, 2.0, PERCENT), difference(None, 2.0, PERCENT), difference(3.0, None, POINTS)) == (
        -50, None, None
    )  # fmt: skip


def test_equal_differences_exclude_zero_without_an_error() -> None:
    paired = paired_difference({1: 90.0, 2: 90.0}, {1: 100.0, 2: 100.0}, PERCENT)
    assert paired is not None
    assert paired.low == paired.mean == paired.high == pytest.approx(-10)
    assert paired.excludes()
    assert (p_value(paired, PERCENT), detectable(paired, PERCENT)) == (0.0, None)
    same = compared([(90.0, 90.0), (80.0, 80.0)], PERCENT)
    assert (p_value(same, PERCENT), detectable(same, PERCENT), same.excludes()) == (1.0, None, False)


@pytest.mark.parametrize("number", [0.0, -1.0, math.inf, math.nan])
def test_there_is_no_ratio_of_what_is_not_positive(number: float) -> None:
    assert paired_difference({1: 1.0}, {1: number}, PERCENT) is None
    assert paired_difference({1: number, 2: 3.0}, {1: 1.0, 2: 2.0}, PERCENT) is None
    assert difference(1.0, number, PERCENT) is None
    assert difference(number, 1.0, PERCENT) is None
    assert (paired_difference({1: 1.0}, {1: number}, POINTS) is None) == (not math.isfinite(number))


LOWER, HIGHER, UNRESOLVED = Paired(-5.0, -8.0, -2.0, 3), Paired(5.0, 2.0, 8.0, 3), Paired(-1.0, -5.0, 3.0, 3)
ALL_LOST = {"diverged": True, "has_values": False, "difference": None}
BASELINE_LOST = {"baseline_diverged": True, "has_baseline": False, "difference": None}
METRICS = {name: metric for task in tasks().values() for name, metric in task.metrics.items()}


def judged(*, metric: str = "perplexity", **case: Any) -> Verdict:
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
    assert judged(difference=difference, paper=paper) == expected


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
        ({**ALL_LOST, "paper": 1400.0, "paper_baseline": 1300.0}, "diverged in both"),
        ({**ALL_LOST, **BASELINE_LOST}, "diverged here"),
        ({"has_values": False, "difference": None, "has_baseline": False}, "no result"),
        ({"paper_baseline": None}, "no baseline in the paper"),
        ({"paper": 1400.0, "paper_baseline": 1300.0}, "both collapsed in the paper"),
        ({"paper": 26.0}, "equal in the paper"),
        ({"baseline_diverged": True}, "baseline diverged here"),
        ({**BASELINE_LOST, "paper_baseline": 1400.0}, "baseline diverged in both"),
        ({"has_baseline": False, "difference": None}, "no baseline"),
        ({"difference": None}, "no common seed"),
        ({"paper": 1400.0, "paper_baseline": 1300.0, "metric": "accuracy"}, "disagrees"),  # which cannot collapse
    ],
)
def test_what_has_no_direction_says_why(case: dict[str, Any], expected: str) -> None:
    assert judged(**case) == expected


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
    found = judged(difference=Paired(mean, *interval, n), paper=None, paper_baseline=baseline, metric=metric)
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


NUMBERS = {26.734: "26.73", 1409.79: "1409.79", 123456.7: "123457", 9999.996: "10000"}
SUMMARIES = {(0.123, 3): "26.73 ± 0.12 (3)", (None, 1): "26.73 (1)", (0.0001, 3): "26.73 ± <0.01 (3)",
             (0.0, 2): "26.73 ± 0.00 (2)"}  # fmt: skip
SIGNED = {-0.001: "0.00", -11.07: "-11.1", 9.999: "+10.0", -99.96: "-100", 999_999.7: "+1.0e+06", 5174.2: "+5174"}
SIZES = {812: "812 B", 99_960: "100 kB", 999_999: "1.0 MB", 2e15: "2000 TB"}
FIELDS = {None: "", 1 / 3: "0.33333333", 1_234_567: "1234567", "a": "a"}


def test_numbers() -> None:
    assert [format.value(number) for number in NUMBERS] == [*NUMBERS.values()]
    assert [format.summary(Summary(26.734, *each)) for each in SUMMARIES] == [*SUMMARIES.values()]
    assert [format.signed(number) for number in SIGNED] == [*SIGNED.values()]
    assert [format.size(number) for number in SIZES] == [*SIZES.values()]
    assert [format.machine(field) for field in FIELDS] == [*FIELDS.values()]
    assert format.difference(Paired(-3.21, -4.93, -1.49, 3)) == "-3.21 [-4.93, -1.49]"
    assert format.difference(Paired(-3.21, None, None, 1)) == "-3.21"
    assert [format.increase(number) for number in (0.9849, -0.01, -0.001)] == ["+0.98 %", "-0.01 %", "+0.00 %"]


@pytest.mark.parametrize("numbers", [[1], [1, 2, 3], [1, 3, 4, 9]])
def test_seeds_read_back_as_the_option_takes_them(numbers: list[int]) -> None:
    assert parse_seeds(format.seeds(numbers)) == numbers
