"""Ablations: which rows are their points, and what can be seen of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.files import read_csv
from comt_cli.methods import catalogue
from comt_cli.recipe.load import load_recipe
from comt_cli.report.exhibits.ablation import Ablation, ablation_rows, bar, scale_of
from comt_cli.report.frame import runs_frame
from comt_cli.report.write import write_exhibits, write_report

if TYPE_CHECKING:
    from conftest import Bench


VALUES = {"baseline": 100.0, "16": 94.0, "2": 97.0, "8": 95.0}


@pytest.fixture
def widths(bench: Bench) -> Bench:
    return replace(bench, text=(Path(__file__).parent / "recipes" / "widths.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def whole(widths: Bench) -> Bench:
    for row, value in VALUES.items():
        widths.done(row, {seed: value + seed for seed in (1, 2, 3)}, extra_parameters_percent=float(len(row)))
    return widths


def frame_of(bench: Bench, name: str = "hidden-size", *overrides: str, **selection: object) -> pd.DataFrame:
    loaded = bench.loaded(*overrides)
    return Ablation(name).frame(runs_frame(loaded, bench.specs("smoke", overrides, **selection), bench.runs))


def test_an_added_row_is_a_point_if_it_differs_by_the_option_alone(widths: Bench) -> None:
    also = {
        "64": {"name": "comt", "hidden": 64},
        "queries": {"name": "comt", "hidden": 4, "sites": ["q_proj"]},
        "other": {"name": "transponder"},
    }
    loaded = load_recipe(widths.recipe, catalogue(), also=also)
    assert ablation_rows(loaded, "hidden-size") == ["baseline", "16", "2", "8", "64"]
    assert ablation_rows(loaded, "modules")[-1] == "other"


@pytest.mark.usefixtures("quick_figures")
def test_every_ablation_of_a_table_is_drawn_once(whole: Bench) -> None:
    report = write_report(whole.loaded(), whole.specs(), whole.runs, whole.results)
    assert report.csv is not None
    written = write_exhibits("table", report.runs, report.csv)
    assert {path.stem for path in written} == {f"table9-{name}" for name in ("hidden-size", "modules", "cost")}
    assert write_exhibits("table", report.runs, report.csv) == []
    lines = read_csv(report.csv.with_name("table9-hidden-size.csv"))
    assert len(lines) == 12
    assert (lines[1]["panel"], lines[1]["row"], lines[1]["value"], lines[1]["n"]) == ("ours", "2", "99", "3")
    assert float(lines[1]["difference"]) == pytest.approx(100 * (99 / 102 - 1), abs=0.01)


def point(value: float, **other: object) -> dict[str, object]:
    return {"value": value, "baseline": False, **dict.fromkeys(("stderr", "interval_low", "interval_high")), **other}


@given(st.floats(1, 1e3), st.floats(-50, 50), st.floats(0.1, 40), st.booleans())
def test_a_bar_reaches_the_baselines_line_just_where_the_difference_is_not_resolved(
    baseline: float, mean: float, half: float, relative: bool
) -> None:
    ends = bar(point(1.0, interval_low=mean - half, interval_high=mean + half), baseline, relative=relative)
    assert ends is not None
    assert (ends[0] <= baseline <= ends[1]) == (mean - half <= 0 <= mean + half)
    assert bar(point(5.0, stderr=0.5), None, relative=relative) == (4.5, 5.5)
    exact = bar(point(1.0, interval_low=-10.0, interval_high=5.0), 200.0, relative=relative)
    assert exact == pytest.approx((180, 210) if relative else (190, 205))


@pytest.mark.parametrize(
    ("values", "better", "beyond"),
    [
        ([33.0, 20.0, 21.0, 22.0], "lower", []),
        ([20.0, 21.0, 22.0, 60.0], "lower", [60.0]),
        ([20.0, 21.0, 22.0, 5.0], "lower", []),
        ([20.0, 21.0, 22.0, 2.0], "higher", [2.0]),
    ],
)
def test_only_what_is_far_worse_than_the_others_is_beyond_the_scale(values, better, beyond) -> None:
    far = (min(values) - 1e6, 0.0) if better == "lower" else (20.0, 1e6)
    low, high = scale_of(values, [far] * len(values), better)
    assert [value for value in values if not low <= value <= high] == beyond
    assert high - low < 120, "a bar that reaches far does not set the scale"
    near = scale_of(values, [None if value in beyond else (value - 9, value + 9) for value in values], better)
    assert all(near[0] < value - 9 < value + 9 < near[1] for value in values if value not in beyond)
