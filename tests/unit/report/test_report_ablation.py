"""The figure of an ablation: which rows are its points, what is told beside them, and what can be seen of them."""

from __future__ import annotations

import csv
import io
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from ablation_cases import VALUES, Bench, accuracies, marks, panel, spread, synthetic, texts
from matplotlib.text import Annotation

from comt_cli.report.ablation import ablation_data, ablation_rows
from comt_cli.report.figures import draw_ablation
from comt_cli.report.table import build_table


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def whole(bench: Bench) -> Bench:
    for row in VALUES:
        bench.ended(row)
    return bench


def test_an_added_row_is_a_point_if_it_differs_by_the_option_alone(bench: Bench) -> None:
    bench.also = {
        "64": {"name": "comt", "hidden": 64},
        "queries": {"name": "comt", "hidden": 4, "sites": ["q_proj"]},
        "other": {"name": "transponder"},
    }
    assert ablation_rows(bench.loaded(), "hidden-size") == ["baseline", "16", "2", "8", "64"]
    assert ablation_rows(bench.loaded(), "modules")[-1] == "other"


def test_numbers_stand_in_order_on_a_binary_axis(whole: Bench) -> None:
    data = whole.data()
    assert (data.axis, data.rows("ours")) == ("number", ["2", "8", "16"])
    axes = panel(draw_ablation(data), "tiny")
    assert axes.get_xscale() == "log"
    assert axes.xaxis.get_transform().base == 2
    assert marks(axes) == [(2, 99), (8, 97), (16, 96)]


def test_the_baseline_is_a_line_with_its_value_over_the_panel(whole: Bench) -> None:
    axes = panel(draw_ablation(whole.data()), "tiny")
    (line,) = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert set(line.get_ydata()) == {102.0}
    assert axes.get_title(loc="right").endswith("102.00")


def test_what_has_no_value_is_told(bench: Bench) -> None:
    bench.ended("baseline")
    bench.ended("2", (1, 2))
    bench.ended("16", state="diverged", perplexity=None, diverged_at=9)
    data = bench.data()
    assert "Hollow, since seeds diverged or are absent: 2." in data.notes
    assert "Without a value: 8 (missing) and 16 (diverged)." in data.notes
    assert texts(panel(draw_ablation(data), "tiny")) == ["missing", "diverged"]


def test_ours_above_1000_is_no_collapse(bench: Bench) -> None:
    """Six steps into a run every perplexity is: they must be seen all the same."""
    for row, value in VALUES.items():
        bench.ended(row, value=1200.0 + value)
    axes = panel(draw_ablation(bench.data()), "tiny")
    assert [x for x, _ in marks(axes)] == [2, 8, 16]
    assert axes.get_ylim()[1] > 1296


def test_a_column_that_the_paper_leaves_out_has_no_point(whole: Bench) -> None:
    assert [point.row for point in whole.data().of("paper", "c4/250m")] == ["8", "16"]


def test_numbers_of_the_paper_are_not_drawn_beside_runs_that_they_do_not_stand_for(whole: Bench) -> None:
    table = replace(build_table(whole.loaded(), whole.specs(), whole.runs), paper=None)
    data = ablation_data(whole.loaded(), table, "hidden-size")
    assert data is not None
    assert {point.panel for point in data.points} == {"ours"}
    assert [each.get_title(loc="left") for each in draw_ablation(data).axes] == ["tiny"]


def test_nothing_is_drawn_before_one_of_its_rows_has_ended(bench: Bench) -> None:
    bench.ended("baseline")
    assert ablation_data(bench.loaded(), build_table(bench.loaded(), bench.specs(), bench.runs), "modules") is None


def test_rows_are_categories_in_the_order_of_the_table(whole: Bench) -> None:
    data = whole.data("modules")
    assert (data.axis, data.rows("ours")) == ("category", ["16", "2", "8"])
    axes = panel(draw_ablation(data), "tiny")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "2", "8"]
    assert marks(axes) == [(0, 96), (1, 99), (2, 97)]


def test_the_cost_is_ours_and_the_printed_increase(whole: Bench) -> None:
    data = whole.data("cost")
    assert {point.row: point.x for point in data.of("ours", "tiny")} == {"16": 2, "2": 1, "8": 1}
    assert {point.row: point.x for point in data.of("paper", "c4/60m")} == {"16": 3, "2": 0.5, "8": 1.5}
    assert "An increase printed as <1 % is drawn at 0.5 %." in data.notes
    figure = draw_ablation(data)
    assert marks(panel(figure, "c4/60m")) == [(0.5, 32.69), (1.5, 32.21), (3, 32.56)]
    assert sorted(texts(panel(figure, "c4/60m"))) == ["16", "2", "8"]


@pytest.mark.parametrize(
    ("axis", "columns", "rows"),
    [
        *((axis, 1, 3) for axis in ("number", "category", "cost")),
        *(("number", 6, 8), ("category", 6, 8), ("cost", 2, 8)),  # names at 12 panels' points take seconds to place
    ],
)
def test_everything_lies_inside_the_figure_and_panels_do_not_overlap(axis: str, columns: int, rows: int) -> None:
    figure = draw_ablation(synthetic(axis, columns, rows))
    figure.draw_without_rendering()
    inside = figure.bbox.padded(1)
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert len(panels) == 2 * columns
    boxes = [axes.get_tightbbox(for_layout_only=True) for axes in panels]
    for number, box in enumerate(boxes):
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1
        assert inside.y0 <= box.y0 < box.y1 <= inside.y1
        assert not any(box.overlaps(other) for other in boxes[:number])
    for part in (figure, *figure.subfigs):
        for text in part.texts:
            box = text.get_window_extent()
            assert inside.x0 <= box.x0 < box.x1 <= inside.x1, text.get_text()
            assert inside.y0 <= box.y0 < box.y1 <= inside.y1, text.get_text()
            assert not any(box.overlaps(other) for other in boxes), text.get_text()
    for axes in panels:
        names = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        if axis != "category" and axes.xaxis.get_tick_params().get("labelbottom", True):
            shown = [box for box in names if axes.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1 + 1]
            assert not any(one.overlaps(other) for one, other in itertools.pairwise(shown))


def test_names_at_points_cover_neither_each_other_nor_points(bench: Bench) -> None:
    names = [f"a-method-of-some-length-{number}" for number in range(6)]
    bench.also = {name: {"name": "comt", "hidden": 20 + number} for number, name in enumerate(names)}
    bench.ended("baseline")
    for number, name in enumerate(names):
        bench.ended(name, value=95.0 + 0.01 * number, extra_parameters_percent=1.0 + 0.01 * number)
    figure = draw_ablation(bench.data("cost"))
    figure.draw_without_rendering()
    axes = panel(figure, "tiny")
    boxes = [text.get_window_extent() for text in axes.texts if isinstance(text, Annotation) and text.get_text()]
    assert len(boxes) == 7  # and the baseline's
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:number])
        assert not any(box.contains(*axes.transData.transform(point)) for point in marks(axes))


def test_the_csv_has_every_point(whole: Bench) -> None:
    lines = list(csv.DictReader(io.StringIO(whole.data().csv())))
    ours = [line for line in lines if line["panel"] == "ours"]
    assert [(line["row"], line["x"], line["value"], line["n"]) for line in ours] == [
        ("baseline", "", "102", "3"),
        ("2", "2", "99", "3"),
        ("8", "8", "97", "3"),
        ("16", "16", "96", "3"),
    ]
    assert {line["row"] for line in lines if line["collapsed"] == "True"} == {"8", "baseline"}
    assert len(lines) == 4 + 11
    assert list(lines[0])[:11] == [
        "panel", "column", "row", "baseline", "x", "value", "stderr", "n", "state", "collapsed", "printed_increase",
    ]  # fmt: skip
    differences = [(line["difference"], line["interval_low"] < line["interval_high"]) for line in ours[1:]]
    assert [round(float(each), 1) for each, _ in differences] == [-2.9, -4.9, -5.9]


def test_a_low_accuracy_stays_on_the_scale_where_the_others_are_as_far_apart() -> None:
    values = (15.45, 64.5, 68.0, 37.4)
    axes = panel(draw_ablation(accuracies(*values)), "cifar10")
    assert [value for _, value in marks(axes)] == list(values)
    assert not [line for line in axes.get_lines() if line.get_marker() == "v"]
    axes = panel(draw_ablation(accuracies(*values[:3])), "cifar10")
    assert [value for _, value in marks(axes)] == [64.5, 68]


def test_numbers_that_are_not_all_positive_stand_on_a_linear_axis() -> None:
    data = accuracies(60.0, 61.0, 62.0)
    points = [replace(point, x=x) for point, x in zip(data.points, (None, -3.0, 0.0, 3.0), strict=True)]
    axes = panel(draw_ablation(replace(data, points=tuple(points))), "cifar10")
    assert axes.get_xscale() == "linear"
    assert marks(axes) == [(-3, 60), (0, 61), (3, 62)]
    assert panel(draw_ablation(data), "cifar10").get_xscale() == "log"


@pytest.mark.parametrize("most", [30.0, 31.0])
def test_numbers_around_0_that_are_spread_out_stand_on_an_axis_linear_around_0_alone(most: float) -> None:
    axes = panel(draw_ablation(spread(-3, -1, 0, most)), "cifar10")
    assert axes.get_xscale() == ("linear" if most == 30 else "symlog")
    assert [x for x, _ in marks(axes)] == [-3, -1, 0, most]
    low, high = axes.get_xlim()
    assert low < -3
    assert high > most


@pytest.mark.parametrize(
    ("numbers", "columns"),
    [
        ((4, 8, 16, 32, 64, 1_000_000), 3),
        ((-3, -1, 0, 3, 6.5, 1000), 1),
        ((-1000, -999, 0), 1),
        ((-99_000, -0.001, 0, 0.001, 0.002), 3),
        ((1000, 1001), 1),
        (tuple(range(1, 60)), 1),
        (tuple(range(1, 60)), 3),
    ],
)
def test_labels_of_numbers_do_not_touch_and_every_point_stays(numbers: tuple[float, ...], columns: int) -> None:
    data = spread(*numbers)
    points = [replace(point, column=f"c{column}") for column in range(columns) for point in data.points]
    figure = draw_ablation(replace(data, points=tuple(points)))
    figure.draw_without_rendering()
    axes = panel(figure, f"c{columns - 1}")
    assert [x for x, _ in marks(axes)] == list(numbers)
    labels = [label for label in axes.get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))
    said = [label.get_text() for label in labels]
    assert said[0] == f"{numbers[0]:g}"
    assert said[-1] == f"{numbers[-1]:g}" or numbers == (1000, 1001), "the ends stay, unless they touch"


def test_numbers_that_no_axis_can_hold_are_categories(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for row in ("baseline", "2", "8"):
        bench.ended(row)
    loaded = bench.loaded()
    table = build_table(loaded, bench.specs(), bench.runs)
    for hidden, axis in ((1e30, "number"), (1e300, "category"), (1e-300, "category"), (0.0, "number")):
        loaded.methods["8"]["hidden"] = hidden
        data = ablation_data(loaded, table, "hidden-size")
        assert data is not None
        assert data.axis == axis
        draw_ablation(data)


def test_a_far_better_accuracy_stays_on_the_scale() -> None:
    axes = panel(draw_ablation(accuracies(40.0, 41.0, 95.0)), "cifar10")
    assert marks(axes) == [(2, 40), (4, 41), (8, 95)]
