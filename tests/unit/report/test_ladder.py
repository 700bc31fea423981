"""A ladder of sizes: lines of known slope are found, intervals cover, and what keeps a row from having one is said."""

from __future__ import annotations

import csv
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.recipe.problems import RecipeError
from comt_cli.report.exhibits.ladder import Trend, fitted, gain_of, trends
from comt_cli.report.write import Report, write_exhibits, write_report
from comt_cli.runs.directory import RunDirectory
from comt_cli.tasks.base import PERCENT, POINTS, Metric

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = pytest.mark.usefixtures("quick_figures")
FLOPS = {"small": 1e13, "middle": 1e14, "large": 1e15, "huge": 1e16}
SIZES = "".join(
    f"      {name}: {{settings: {{model: {{layers: {number}}}}}}}\n" for number, name in enumerate(FLOPS, 1)
)
SLOPES = {"post-ln": 0.0, "pre-ln+comt": 2.0, "pre-ln+own": -3.0}
PERPLEXITY = Metric("perplexity", "perplexity", "ppl", "lower", PERCENT)


def as_ladder(text: str, columns: str = SIZES) -> str:
    """A recipe of the tests' as a ladder at scale smoke, which is its only scale."""
    text = re.sub(r"(baseline: .*\n)", r"\1ladder: true\n", text, count=1)
    text = re.sub(r"(?<=    columns:\n)      .*\n", columns, text, count=1)
    return text[: text.index("  paper:\n    description")]


@pytest.fixture
def ladder(bench: Bench) -> Bench:
    """Four sizes and three seeds; row for row a gain of 10 in the middle with a known slope and little noise."""
    bench = replace(bench, text=as_ladder(bench.text))
    noise = random.Random(1)
    for spec in bench.specs():
        bench.result = {**bench.result, "flops": FLOPS[spec.column]}
        gain = 0.0
        if spec.row != "pre-ln":
            gain = 10 + SLOPES[spec.row] * (math.log10(FLOPS[spec.column]) - 14.5) + noise.gauss(0, 0.05)
        bench.finish(spec, 100 * math.exp(spec.seed / 100 - gain / 100))
    return bench


def trends_of(bench: Bench, **selection: object) -> dict[str, Trend]:
    return {trend["row"]: trend for trend in trends(bench.table(**selection).cells)}


def test_lines_of_a_known_slope_are_found(ladder: Bench) -> None:
    found = trends_of(ladder)
    assert list(found) == list(SLOPES)
    for row, slope in SLOPES.items():
        line = found[row]["line"]
        assert line is not None
        assert line["slope"] == pytest.approx(slope, abs=0.1)
        assert line["low"] < slope < line["high"]
        assert line["intercept"] + 14.5 * line["slope"] == pytest.approx(10, abs=0.1)
        assert [rung["flops"] for rung in found[row]["rungs"]] == list(FLOPS.values())
        assert all(rung["low"] < rung["gain"] < rung["high"] and rung["pairs"] == 3 for rung in found[row]["rungs"])
    assert {row: trend["verdict"] for row, trend in found.items()} == {
        "post-ln": "not resolved",
        "pre-ln+comt": "gain grows",
        "pre-ln+own": "gain shrinks",
    }
    line = found["pre-ln+comt"]["line"]
    assert line is not None
    assert found["pre-ln+comt"]["adjusted"] == pytest.approx(2 * line["p_value"])  # of three slopes the second smallest


def test_intervals_cover_the_slope_as_often_as_they_say() -> None:
    """Also where every size has an error of its own, which all its seeds share: 1,000 ladders of four sizes."""
    noise = random.Random(7)
    covered = 0
    for _ in range(1000):
        shared = [2 * math.log10(flops) + noise.gauss(0, 1) for flops in FLOPS.values()]
        gains = [each + sum(noise.gauss(0, 0.3) for _ in range(5)) / 5 for each in shared]
        line = fitted(list(FLOPS.values()), gains)
        covered += line["low"] <= 2 <= line["high"]
    assert 925 <= covered <= 973  # 950, and 3.5 standard deviations of 6.9 to each side


@given(st.floats(-90, 500))
def test_a_gain_is_above_zero_where_the_row_is_better(difference: float) -> None:
    assert gain_of(difference, PERPLEXITY) == pytest.approx(-100 * math.log(1 + difference / 100))
    accuracy = Metric("accuracy", "accuracy", "acc", "higher", POINTS)
    assert gain_of(difference, accuracy) == difference


def test_a_row_has_no_line_where_a_seed_diverged_or_a_size_is_missing(ladder: Bench) -> None:
    specs = {(spec.row, spec.column, spec.seed): spec for spec in ladder.specs()}
    ladder.diverged("post-ln", 2)  # at the first size
    for seed in (1, 2, 3):
        RunDirectory.of(ladder.runs, specs["pre-ln+own", "huge", seed]).result_file.unlink()
    found = trends_of(ladder)
    assert found["post-ln"]["verdict"] == "no line: a run diverged at small"
    assert found["pre-ln+own"]["verdict"] == "no line yet: no difference at huge"
    assert found["pre-ln+own"]["line"] is None
    assert len(found["pre-ln+own"]["rungs"]) == 3
    assert found["pre-ln+comt"]["verdict"] == "gain grows"
    line = found["pre-ln+comt"]["line"]
    assert line is not None
    assert found["pre-ln+comt"]["adjusted"] == pytest.approx(line["p_value"])


def write(bench: Bench) -> tuple[Report, list[Path]]:
    report = write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)
    assert report.csv is not None
    return report, write_exhibits("table", report.runs, report.csv)


def test_the_files_and_the_page_have_it(ladder: Bench) -> None:
    report, drawn = write(ladder)
    assert report.csv is not None
    assert [path.name for path in drawn] == [f"table9-ladder.{kind}" for kind in ("png", "pdf", "txt", "tex", "csv")]
    page = report.csv.with_suffix(".md").read_text(encoding="utf-8")
    assert "## Gain against compute\n" in page
    lines = list(csv.DictReader(drawn[-1].read_text(encoding="utf-8").splitlines()))
    assert [(line["row"], line["column"]) for line in lines[:5]] == [*(("post-ln", name) for name in FLOPS),
                                                                    ("pre-ln+comt", "small")]  # fmt: skip
    assert float(lines[4]["slope"]) == pytest.approx(2, abs=0.1)
    assert "pre-ln+own: gain shrinks, -2.9" in drawn[2].read_text(encoding="utf-8")
    assert write(ladder)[1] == []  # nothing is new


@pytest.mark.parametrize(
    ("old", "new"),
    [(SIZES, "".join(SIZES.splitlines(keepends=True)[:2])), ("layers: 1}}", "layers: 1}}, metric: bits_per_byte")],
    ids=["two sizes", "two metrics"],
)
def test_what_is_no_ladder_is_refused(bench: Bench, old: str, new: str) -> None:
    with pytest.raises(RecipeError, match=r"ladder: needs (3 columns|one metric)"):
        replace(bench, text=as_ladder(bench.text).replace(old, new)).loaded()
