"""Statistics against values worked out by hand or printed in tables."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.stats import nct, t, ttest_1samp

from comt_cli.report.statistics import (
    Paired,
    Summary,
    detectable,
    detectable_effect,
    difference,
    holm,
    p_value,
    paired_difference,
    summarise,
)
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
        assert (expected.pvalue < 0.05) == found.excludes_zero


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


def test_holm_by_hand() -> None:
    assert holm(dict(enumerate([0.01, 0.04, 0.03, 0.005]))) == pytest.approx({0: 0.03, 1: 0.06, 2: 0.06, 3: 0.02})


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
    assert turned.excludes_zero == paired.excludes_zero, "it does not matter which of the two is called the baseline"


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
    assert paired.excludes_zero
    assert (p_value(paired, PERCENT), detectable(paired, PERCENT)) == (0.0, None)
    same = compared([(90.0, 90.0), (80.0, 80.0)], PERCENT)
    assert (p_value(same, PERCENT), detectable(same, PERCENT), same.excludes_zero) == (1.0, None, False)


@pytest.mark.parametrize("number", [0.0, -1.0, math.inf, math.nan])
def test_there_is_no_ratio_of_what_is_not_positive(number: float) -> None:
    assert paired_difference({1: 1.0}, {1: number}, PERCENT) is None
    assert paired_difference({1: number, 2: 3.0}, {1: 1.0, 2: 2.0}, PERCENT) is None
    assert difference(1.0, number, PERCENT) is None
    assert difference(number, 1.0, PERCENT) is None
    assert (paired_difference({1: 1.0}, {1: number}, POINTS) is None) == (not math.isfinite(number))
