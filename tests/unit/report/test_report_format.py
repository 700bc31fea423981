"""How numbers look."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.report import format
from comt_cli.report.statistics import Paired, Summary
from comt_cli.runs.plan import parse_seeds


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format.value(26.734), "26.73"),
        (format.value(1409.79), "1409.79"),
        (format.value(123456.7), "123457"),
        (format.value(9999.996), "10000"),
        (format.summary(Summary(26.734, 0.123, 3)), "26.73 ± 0.12 (3)"),
        (format.summary(Summary(26.734, None, 1)), "26.73 (1)"),
        (format.summary(Summary(26.734, 0.0001, 3)), "26.73 ± <0.01 (3)"),
        (format.summary(Summary(26.734, 0.0, 2)), "26.73 ± 0.00 (2)"),
        (format.signed(-0.001), "0.00"),
        (format.signed(-11.07), "-11.1"),
        (format.signed(9.999), "+10.0"),
        (format.signed(-99.96), "-100"),
        (format.signed(999_999.7), "+1.0e+06"),
        (format.signed(5174.2), "+5174"),
        (format.signed(2.34e7), "+2.3e+07"),
        (format.difference(Paired(-3.21, -4.93, -1.49, 3)), "-3.21 [-4.93, -1.49]"),
        (format.difference(Paired(-3.21, None, None, 1)), "-3.21"),
        (format.increase(0.9849), "+0.98 %"),
        (format.increase(-0.01), "-0.01 %"),
        (format.increase(-0.001), "+0.00 %"),
        (format.speed(12345.6), "12,346"),
        (format.short_count(812), "812"),
        (format.short_count(3.94e6), "3.9 M"),
        (format.short_count(131e6), "131 M"),
        (format.short_count(2.2e9), "2.2 B"),
        (format.short_count(999.6), "1.0 k"),
        (format.size(812), "812 B"),
        (format.size(99_960), "100 kB"),
        (format.size(999_999), "1.0 MB"),
        (format.size(2e15), "2000 TB"),
        (format.plural(1, "run"), "1 run"),
        (format.plural(1200, "run"), "1,200 runs"),
        (format.listing([]), ""),
        (format.listing(["a"]), "a"),
        (format.listing(["a", "b", "c"]), "a, b and c"),
        (format.machine(None), ""),
        (format.machine(1 / 3), "0.33333333"),
        (format.machine(1_234_567), "1234567"),
        (format.machine("a"), "a"),
    ],
)
def test_numbers(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize("numbers", [[1], [1, 2, 3], [1, 3, 4, 9]])
def test_seeds_read_back_as_the_option_takes_them(numbers: list[int]) -> None:
    assert parse_seeds(format.seeds(numbers)) == numbers


@pytest.mark.parametrize(
    ("shown", "units"),
    [(format.size, ["B", "kB", "MB", "GB", "TB"]), (format.short_count, ["", "k", "M", "B", "T"])],
)
@given(number=st.floats(0, 9e14))
def test_less_than_a_thousand_of_a_unit_are_shown(shown, units: list[str], number: float) -> None:
    digits, _, unit = shown(number).partition(" ")
    assert float(digits) < 1000
    assert float(digits) * 1000.0 ** units.index(unit) == pytest.approx(number, rel=0.05, abs=0.5)
