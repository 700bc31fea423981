"""Statistics against values worked out by hand or printed in tables."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from comt_cli.report.statistics import Paired, difference, paired_difference, student_t, summarise
from comt_cli.tasks.base import PERCENT, POINTS

POSITIVE = st.floats(1e-300, 1e300)


# Two-sided 95 % points and others, as every printed table of Student's t has them.
@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 3, 3.18245),
        (0.975, 4, 2.77645),
        (0.975, 5, 2.57058),
        (0.975, 9, 2.26216),
        (0.975, 10, 2.22814),
        (0.975, 30, 2.04227),
        (0.975, 120, 1.97993),
        (0.95, 2, 2.91999),
        (0.995, 3, 5.84091),
        (0.75, 1, 1.0),
        (0.75, 2, math.sqrt(2 / 3)),
    ],
)
def test_t_quantile_equals_the_printed_tables(probability: float, degrees: int, expected: float) -> None:
    assert student_t(probability, degrees) == pytest.approx(expected, abs=6e-5)


def test_t_quantile_tends_to_the_normal_one() -> None:
    assert student_t(0.975, 999) == pytest.approx(1.959964, abs=3e-3)
    assert student_t(0.975, 999) > 1.959964


@pytest.mark.parametrize(("probability", "degrees"), [(0.5, 3), (1.0, 3), (0.975, 0)])
def test_t_quantile_refuses_what_has_none(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_t(probability, degrees)


def test_mean_and_standard_error_by_hand() -> None:
    # deviations -2, 0, 2: s^2 = 8 / 2 = 4, s / sqrt(3)
    summary = summarise([10.0, 12.0, 14.0])
    assert summary is not None
    assert (summary.mean, summary.n) == (12.0, 3)
    assert summary.stderr == pytest.approx(2 / math.sqrt(3))


def test_one_value_has_no_error_and_none_no_mean() -> None:
    summary = summarise([5.0])
    assert summary is not None
    assert (summary.mean, summary.stderr, summary.n) == (5.0, None, 1)
    assert summarise([]) is None


def test_paired_ratios_by_hand() -> None:
    # ratios e^-0.1, e^-0.2, e^-0.3: mean logarithm -0.2, s = 0.1, standard error 0.1 / sqrt(3), t(0.975, 2) = 4.30265
    baseline = {1: 100.0, 2: 200.0, 3: 50.0}
    ours = {seed: value * math.exp(-0.1 * seed) for seed, value in baseline.items()}
    paired = paired_difference(ours, baseline, PERCENT)
    assert paired is not None
    margin = 4.30265 * 0.1 / math.sqrt(3)
    assert (paired.mean, paired.n) == (pytest.approx(100 * (math.exp(-0.2) - 1)), 3)
    assert paired.low == pytest.approx(100 * (math.exp(-0.2 - margin) - 1), abs=1e-3)
    assert paired.high == pytest.approx(100 * (math.exp(-0.2 + margin) - 1), abs=1e-3)
    assert not paired.excludes_zero


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


def test_only_common_seeds_are_paired() -> None:
    paired = paired_difference({1: 90.0, 2: 1.0}, {1: 100.0, 3: 5.0}, PERCENT)
    assert paired == Paired(pytest.approx(-10.0), None, None, 1)
    assert paired_difference({1: 1.0}, {2: 1.0}, PERCENT) is None
    assert paired_difference({}, {1: 1.0}, POINTS) is None


def test_equal_differences_exclude_zero_without_an_error() -> None:
    paired = paired_difference({1: 90.0, 2: 90.0}, {1: 100.0, 2: 100.0}, PERCENT)
    assert paired is not None
    assert paired.low == paired.mean == paired.high == pytest.approx(-10)
    assert paired.excludes_zero


@pytest.mark.parametrize("number", [0.0, -1.0, math.inf, math.nan])
def test_there_is_no_ratio_of_what_is_not_positive(number: float) -> None:
    assert paired_difference({1: 1.0}, {1: number}, PERCENT) is None
    assert paired_difference({1: number, 2: 3.0}, {1: 1.0, 2: 2.0}, PERCENT) is None
    assert difference(1.0, number, PERCENT) is None
    assert difference(number, 1.0, PERCENT) is None
    assert (paired_difference({1: 1.0}, {1: number}, POINTS) is None) == (not math.isfinite(number))


def test_a_share_of_what_is_printed() -> None:
    assert difference(None, 2.0, PERCENT) is None
    assert difference(1.0, 2.0, PERCENT) == -50


def test_points_are_of_the_samples_and_not_of_the_baseline() -> None:
    # 0.25, 0.75, 0.50: mean 0.5, s = 0.25, standard error 0.25 / sqrt(3), t(0.975, 2) = 4.30265
    paired = paired_difference({1: 10.25, 2: 20.75, 3: 0.5}, {1: 10.0, 2: 20.0, 3: 0.0}, POINTS)
    assert paired is not None
    assert (paired.mean, paired.n) == (pytest.approx(0.5), 3)
    assert paired.low == pytest.approx(0.5 - 4.30265 * 0.25 / math.sqrt(3), abs=1e-4)
    assert difference(91.37, 91.12, POINTS) == pytest.approx(0.25)
    assert difference(3.0, 0.0, POINTS) == 3
    assert difference(3.0, None, POINTS) is None
