"""How numbers look."""

from __future__ import annotations

import pytest

from comt_cli.report import format
from comt_cli.report.statistics import Paired, Summary
from comt_cli.runs.plan import parse_seeds

VALUES = {26.734: "26.73", 1409.79: "1409.79", 123456.7: "123457", 9999.996: "10000"}
SUMMARIES = {(0.123, 3): "26.73 ± 0.12 (3)", (None, 1): "26.73 (1)", (0.0001, 3): "26.73 ± <0.01 (3)",
             (0.0, 2): "26.73 ± 0.00 (2)"}  # fmt: skip
SIGNED = {-0.001: "0.00", -11.07: "-11.1", 9.999: "+10.0", -99.96: "-100", 999_999.7: "+1.0e+06", 5174.2: "+5174"}
SIZES = {812: "812 B", 99_960: "100 kB", 999_999: "1.0 MB", 2e15: "2000 TB"}
FIELDS = {None: "", 1 / 3: "0.33333333", 1_234_567: "1234567", "a": "a"}


def test_numbers() -> None:
    assert [format.value(number) for number in VALUES] == [*VALUES.values()]
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
