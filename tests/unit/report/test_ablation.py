"""The figure of an ablation: which rows are its points, what is said beside them, and what can be seen of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes

from comt_cli.files import read_csv
from comt_cli.methods import catalogue
from comt_cli.recipe.load import load_recipe
from comt_cli.report.exhibits.ablation import Ablation, ablation_rows, bar, limits, outliers
from comt_cli.report.frame import rows_of, runs_frame
from comt_cli.report.write import write_exhibits, write_report

if TYPE_CHECKING:
    from conftest import Bench

RECIPE = """
title: Widths
paper: comt
table: table9
command: train-lm
baseline: baseline
seeds: [1, 2, 3]
settings:
  model: {size: tiny}
  data: {corpus: python-docs, vocabulary: 512, sequence_length: 64}
  train: {steps: 200, batch_size: 8}
rows:
  baseline: {method: pre-ln, paper: {c4/60m: 33.28, c4/130m: 26.07}}
  "16": {method: {name: comt, hidden: 16}, paper: {c4/60m: 32.56, c4/130m: 23.82}, paper_increase: {c4/60m: 3%}}
  "2": {method: {name: comt, hidden: 2}, paper: {c4/60m: 32.69, c4/130m: 23.83}, paper_increase: {c4/60m: <1%}}
  "8": {method: {name: comt, hidden: 8}, paper: {c4/60m: 32.21, c4/130m: 1088}, paper_increase: {c4/60m: 1.5%}}
columns:
  c4/60m: {}
  c4/130m: {}
ablations:
  hidden-size: {rows: ["2", "8"], option: hidden}
  modules: {}
  cost: {}
scales:
  smoke: {description: Tiny, columns: {tiny: {compare_to: c4/60m}}}
"""
VALUES = {"baseline": 100.0, "16": 94.0, "2": 97.0, "8": 95.0}


@pytest.fixture
def widths(bench: Bench) -> Bench:
    return replace(bench, text=RECIPE)


@pytest.fixture
def whole(widths: Bench) -> Bench:
    for row, value in VALUES.items():
        widths.done(row, {seed: value + seed for seed in (1, 2, 3)}, extra_parameters_percent=float(len(row)))
    return widths


def frame_of(bench: Bench, name: str = "hidden-size", *overrides: str, **selection: object) -> pd.DataFrame:
    loaded = bench.loaded(*overrides)
    return Ablation(name).frame(runs_frame(loaded, bench.specs("smoke", overrides, **selection), bench.runs), loaded)


def marks(axes: Axes) -> list[tuple[float, float]]:
    lines = [line for line in axes.get_lines() if line.get_marker() in ("o", "s")]
    return sorted((float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines)


def test_an_added_row_is_a_point_if_it_differs_by_the_option_alone(widths: Bench) -> None:
    also = {
        "64": {"name": "comt", "hidden": 64},
        "queries": {"name": "comt", "hidden": 4, "sites": ["q_proj"]},
        "other": {"name": "transponder"},
    }
    loaded = load_recipe(widths.recipe, catalogue(), also=also)
    assert ablation_rows(loaded, "hidden-size") == ["baseline", "16", "2", "8", "64"]
    assert ablation_rows(loaded, "modules")[-1] == "other"


def test_numbers_are_in_order_on_a_binary_axis_with_the_baseline_as_a_line(whole: Bench) -> None:
    frame = frame_of(whole)
    assert frame["row"].tolist()[:4] == ["baseline", "2", "8", "16"]
    ours, first, second = Ablation("hidden-size").draw(frame).axes
    assert (ours.get_xscale(), ours.xaxis.get_transform().base) == ("log", 2)
    assert marks(ours) == [(2, 99), (8, 97), (16, 96)]
    assert 102.0 in {line.get_ydata()[0] for line in ours.get_lines() if line.get_linestyle() == "--"}
    assert marks(first) == [(2, 32.69), (8, 32.21), (16, 32.56)]
    assert marks(second) == [(2, 23.83), (16, 23.82)], "a collapsed value is a triangle with its number"
    assert "1088" in [text.get_text() for text in second.texts]


def test_rows_are_categories_in_the_order_of_the_table(whole: Bench) -> None:
    ours, *_ = Ablation("modules").draw(frame_of(whole, "modules")).axes
    assert [label.get_text() for label in ours.get_xticklabels()] == ["16", "2", "8"]
    assert marks(ours) == [(0, 96), (1, 99), (2, 97)]


def test_the_cost_is_ours_and_the_printed_increase(whole: Bench) -> None:
    frame = frame_of(whole, "cost")
    found = {(each["panel"], each["column"], each["row"]): each["x"] for each in rows_of(frame)}
    assert [found["ours", "tiny", row] for row in ("16", "2", "8")] == [2, 1, 1]
    assert [found["paper", "c4/60m", row] for row in ("16", "2", "8")] == [3, 0.5, 1.5]
    _, paper, _ = Ablation("cost").draw(frame).axes
    assert marks(paper) == [(0.5, 32.69), (1.5, 32.21), (3, 32.56)]
    assert {"16", "2", "8"} <= {text.get_text() for text in paper.texts}


def test_what_has_no_value_is_said(widths: Bench) -> None:
    widths.done("baseline", {1: 100.0, 2: 101.0})
    assert frame_of(widths).empty, "nothing is drawn before one of its rows has ended"
    widths.done("2", {1: 97.0, 2: 98.0})
    widths.diverged("16", 1, 2, 3)
    frame = frame_of(widths)
    said = " ".join(Ablation("hidden-size").sentences(frame))
    assert "Hollow, since seeds diverged or are absent: baseline and 2." in said
    assert "Without a value: 8 (missing) and 16 (diverged)." in said
    ours, *_ = Ablation("hidden-size").draw(frame).axes
    assert {"missing", "diverged"} <= {text.get_text() for text in ours.texts}


def test_numbers_of_the_paper_are_not_drawn_beside_runs_that_they_are_not_of(whole: Bench) -> None:
    overrides = ("train.steps=20",)
    for row, value in VALUES.items():
        directory = whole.directory(row, 1, overrides=overrides)
        directory.result_file.write_text(f'{{"state": "done", "perplexity": {value}}}', encoding="utf-8")
    assert set(frame_of(whole, "hidden-size", *overrides)["panel"]) == {"ours"}
    assert set(frame_of(whole)["panel"]) == {"ours", "paper"}


@pytest.mark.usefixtures("quick_figures")
def test_every_ablation_of_a_table_is_drawn_once(whole: Bench) -> None:
    report = write_report(whole.loaded(), whole.specs(), whole.runs, whole.results)
    assert report.files is not None
    written = write_exhibits("table", report.runs, report.loaded, report.files)
    assert {path.stem for path in written} == {f"table9-{name}" for name in ("hidden-size", "modules", "cost")}
    assert write_exhibits("table", report.runs, report.loaded, report.files) == []
    lines = read_csv(report.files.csv.with_name("table9-hidden-size.csv"))
    assert len(lines) == 12
    assert (lines[1]["panel"], lines[1]["row"], lines[1]["value"], lines[1]["n"]) == ("ours", "2", "99", "3")
    assert float(lines[1]["difference"]) == pytest.approx(100 * (99 / 102 - 1), abs=0.01)


def test_what_guessing_gets_is_on_the_panel_where_a_point_is_near_it(images: Bench) -> None:
    images = replace(images, text=images.text.replace("scales:", "ablations: {cost: {}}\nscales:"))
    for row in ("baseline", "sliding-window", "pixel", "pixel-4", "own"):
        images.done(row, {1: 18.0, 2: 19.0, 3: 18.5})
    loaded = images.loaded()
    frame = Ablation("cost").frame(runs_frame(loaded, images.specs(), images.runs), loaded)
    ours, *_ = Ablation("cost").draw(frame).axes
    (floor,) = [line.get_ydata()[0] for line in ours.get_lines() if line.get_linestyle() == ":"]
    assert floor == 10
    assert ours.get_ylim()[0] < floor < ours.get_ylim()[1]


def test_bars_and_the_broken_line_are_said_where_they_are_drawn(widths: Bench) -> None:
    text = widths.text.replace("paper: {c4/60m: 33.28, c4/130m: 26.07}", "in_paper: false")
    widths = replace(widths, text=text)
    widths.done("2", {1: 97.0, 2: 98.0})
    widths.diverged("baseline", 1, 2, 3)
    said = " ".join(Ablation("hidden-size").sentences(frame_of(widths)))
    assert "standard error" in said
    assert "paired by seed" not in said
    assert "roken line" not in said
    widths.done("baseline", {1: 100.0, 2: 101.0})
    said = " ".join(Ablation("hidden-size").sentences(frame_of(widths)))
    assert "standard error" not in said
    assert "paired by seed" in said
    assert "Broken line (- -): baseline." in said


def point(value: float | None, **other: object) -> dict[str, object]:
    empty = dict.fromkeys(("stderr", "interval_low", "interval_high"))
    return {"value": value, "collapsed": False, "baseline": False, **empty, **other}


def test_a_value_far_from_all_others_is_an_outlier_and_a_far_better_one_is_none() -> None:
    near = [point(value) for value in (20.0, 21.0, 22.0)]
    assert outliers([*near, far := point(60.0)], "lower") == [far]
    assert outliers([*near, point(5.0)], "lower") == []
    assert outliers([*near, low := point(2.0)], "higher") == [low]
    assert outliers([point(91.0), point(30.0), point(10.0)], "higher") == [], "as far apart as each other"
    assert outliers([point(1200.0), point(1290.0)], "lower") == [], "of ours none is a collapse"


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


def test_one_bar_that_is_far_longer_than_the_others_does_not_set_the_scale() -> None:
    low, high = limits([20.0, 21.0, 22.0], [(19.5, 20.5), (20.5, 21.5), (5.0, 39.0)])
    assert 17 < low < 19.5
    assert 22 < high < 25
    assert limits([20.0, 21.0], [])[0] < 20
