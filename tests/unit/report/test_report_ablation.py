"""The figure of an ablation: which rows are its points, what is told beside them, and what can be seen of them."""

from __future__ import annotations

import csv
import io
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from comt_cli.methods import methods
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.recipe.plan import RunSpec, plan
from comt_cli.recipe.run_directory import RunDirectory
from comt_cli.recipe.schema import AblationName
from comt_cli.report.ablation import AblationData, Point, ablation_data, ablation_rows
from comt_cli.report.ablation_words import QUESTIONS, SHARES, axis_words, row_words
from comt_cli.report.figures import draw_ablation
from comt_cli.report.figures.style import PAGE_WIDTH
from comt_cli.report.table import build_table

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
  baseline: {method: pre-ln, paper: {c4/60m: 33.28, c4/130m: 26.07, c4/250m: 1409.79}}
  "16": {method: {name: comt, hidden: 16}, paper: {c4/60m: 32.56, c4/130m: 23.82, c4/250m: 21}}
  "2": {method: {name: comt, hidden: 2}, paper: {c4/60m: 32.69, c4/130m: 23.83, c4/250m: null}}
  "8": {method: {name: comt, hidden: 8}, paper: {c4/60m: 32.21, c4/130m: 1088, c4/250m: 22}}
columns:
  c4/60m: {}
  c4/130m: {}
  c4/250m: {}
ablations:
  hidden-size: {rows: ["2", "8"], option: hidden}
  modules: {}
  cost: {}
scales:
  smoke: {description: Tiny, columns: {tiny: {compare_to: c4/60m}}}
"""
INCREASES = {"2": "<1%", "8": "1.5%", "16": "3%"}
VALUES = {"baseline": 100.0, "16": 94.0, "2": 97.0, "8": 95.0}


class Bench:
    """The recipe with some rows added, and runs that ended as a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        text = RECIPE
        for row, increase in INCREASES.items():
            text = text.replace(f"hidden: {row}}}, ", f"hidden: {row}}}, paper_increase: {{c4/60m: {increase}}}, ")
        self.recipe = folder / "table9.yaml"
        self.recipe.write_text(text, encoding="utf-8")
        self.also: dict[str, object] = {}

    def loaded(self) -> LoadedRecipe:
        return load_recipe(self.recipe, methods(), also=self.also)

    def specs(self, seeds: list[int] | None = None) -> list[RunSpec]:
        return plan(self.loaded(), "smoke", lambda data: ("feedfeedfeedfeed", "c0ffee"), seeds=seeds)

    def ended(self, row: str, seeds: tuple[int, ...] = (1, 2, 3), *, value: float | None = None, **result) -> None:
        for spec in self.specs():
            if spec.row == row and spec.seed in seeds:
                directory = RunDirectory.of(self.runs, spec)
                directory.create(spec)
                perplexity = (VALUES[row] if value is None else value) + spec.seed
                content = {"state": "done", "perplexity": perplexity, "extra_parameters_percent": len(row), **result}
                directory.result_file.write_text(json.dumps(content), encoding="utf-8")

    def data(self, name: str = "hidden-size", seeds: list[int] | None = None) -> AblationData:
        found = ablation_data(self.loaded(), build_table(self.loaded(), self.specs(seeds), self.runs), name)
        assert found is not None
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def whole(bench: Bench) -> Bench:
    for row in VALUES:
        bench.ended(row)
    return bench


def synthetic(axis: str, columns: int, rows: int) -> AblationData:
    """As many columns on both sides, rows with long names, values of every kind."""
    points = []
    for side in ("ours", "paper"):
        for column in range(columns):
            for row in range(rows + 1):
                is_absent = side == "ours" and row == 2
                point = Point(
                    panel=side,
                    column=f"openwebtext/{column}50m",
                    row=f"without-learnable-{row}",
                    baseline=row == 0,
                    x=None if axis == "category" else 2.0**row - 1 if axis == "cost" else 2.0**row,
                    value=None if is_absent else 20.0 + row + 1300 * (row == 3),
                    stderr=0.5 if side == "ours" and not is_absent else None,
                    n=0 if is_absent else 3,
                    state="diverged" if is_absent else "done",
                    collapsed=side == "paper" and row == 3,
                    printed_increase=None,
                )
                points.append(point)
    title = "A title that is longer than any page of a figure is wide, " * 3
    notes = ("A note that says what is absent, and why the others are as they are, at length.",) * 3
    quantity = "a quantity, %"
    trained = "LLaMA tiny (4 layers, 128 wide) on python-docs, 480 steps of 4 x 128 tokens; seeds 1-3; scale smoke"
    return AblationData(
        title, "cost", "smoke", "perplexity", "lower", "plain", axis, quantity, tuple(points), notes, trained
    )


def panel(figure: Figure, title: str) -> Axes:
    """The panel of a column; of ours it is called tiny."""
    (found,) = [axes for axes in figure.axes if axes.get_title(loc="left").split("\n")[0] == title]
    return found


def marks(axes: Axes) -> list[tuple[float, float]]:
    """Where points are drawn, on the panel's scales."""
    lines = [line for line in axes.get_lines() if line.get_marker() == "o"]
    return sorted((float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines)


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_text()]


def beyond(axes: Axes) -> Axes:
    """The strip of what is off a panel's scale."""
    (found,) = axes.child_axes
    return found


def bars(axes: Axes) -> list[tuple[float, float, float]]:
    """The bars of a panel: x and both ends."""
    lines = [line for line in axes.get_lines() if line.get_label() == "bar"]
    return sorted((float(line.get_xdata()[0]), *map(float, line.get_ydata())) for line in lines)


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


def test_bars_are_the_paired_interval_from_the_baselines_line(bench: Bench) -> None:
    """A bar reaches the line just where the verdict is that nothing is resolved."""
    for row in VALUES:
        bench.ended(row)
    bench.ended("2", (1,), value=101.0)  # it scatters about the baseline
    bench.ended("2", (2,), value=97.0)
    data = bench.data()
    axes = panel(draw_ablation(data), "tiny")
    drawn = {x: (low, high) for x, low, high in bars(axes)}
    points = {point.position: point for point in data.of("ours", "tiny")}
    assert set(drawn) == {2, 8, 16}
    for x, point in points.items():
        assert point.interval_low is not None
        assert point.interval_high is not None
        ends = [102 * (1 + share / 100) for share in (point.interval_low, point.interval_high)]
        assert drawn[x] == pytest.approx((max(ends[0], drawn[x][0]), min(ends[1], drawn[x][1])))
    table = build_table(bench.loaded(), bench.specs(), bench.runs)
    for row in ("2", "8", "16"):
        difference = table.entries[row, "tiny"].difference
        assert difference is not None
        low, high = drawn[float(row)]
        assert (low < 102 < high) == (not difference.excludes_zero)
    assert any("paired by seed (1-3)" in note for note in data.notes)


def test_one_bar_that_is_far_longer_than_the_others_leaves_the_frame() -> None:
    data = accuracies(91.4, 91.2, 91.3)
    wide = [replace(p, difference=0.1, interval_low=-60.0 if p.row == "4" else -0.3, interval_high=60.0 if p.row == "4"
                    else 0.4) for p in data.points]  # fmt: skip
    figure = draw_ablation(replace(data, points=tuple(wide)))
    axes = panel(figure, "cifar10")
    low, high = axes.get_ylim()
    assert high - low < 3
    assert [
        bar[0] for bar in bars(axes) if bar[1] < low + 0.05 * (high - low) and bar[2] > high - 0.05 * (high - low)
    ] == [4]
    assert "Arrows: the bar goes on." in said_below(figure)


def test_one_seed_has_no_bars(whole: Bench) -> None:
    several, one = whole.data(), whole.data(seeds=[1])
    assert [len(bars(panel(draw_ablation(data), "tiny"))) for data in (several, one)] == [3, 0]
    assert "Ours: one seed, so no error bars." in one.notes


def test_without_a_baseline_to_pair_with_bars_are_the_standard_error(bench: Bench) -> None:
    for row in ("2", "8"):
        bench.ended(row)
    axes = panel(draw_ablation(data := bench.data()), "tiny")
    assert bars(axes) == [(2, pytest.approx(99 - 3**-0.5), pytest.approx(99 + 3**-0.5)),
                          (8, pytest.approx(97 - 3**-0.5), pytest.approx(97 + 3**-0.5))]  # fmt: skip
    assert any(note.startswith("Thin bars: mean ± standard error") for note in data.notes)
    assert axes.get_title(loc="right").endswith("missing")


def test_a_collapsed_value_stands_on_a_broken_axis_with_its_number(whole: Bench) -> None:
    figure = draw_ablation(whole.data())
    axes = panel(figure, "c4/130m")
    assert axes.get_ylim()[1] < 30
    assert texts(axes) == []
    assert texts(beyond(axes)) == ["1088"]
    figure.draw_without_rendering()
    frame, strip = axes.get_window_extent(), beyond(axes).get_window_extent()
    assert strip.y0 > frame.y1, "beyond the frame, not on its scale"
    assert (strip.x0, strip.x1) == pytest.approx((frame.x0, frame.x1))
    assert marks(axes) == [(2, 23.83), (16, 23.82)]
    (curve,) = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
    assert str(curve.get_ydata()[1]) == "nan", "the curve must not pass over it"
    collapsed = panel(figure, "c4/250m")
    assert "1410 (collapsed)" in collapsed.get_title(loc="right") + collapsed.get_title(loc="left")
    assert [line for line in beyond(collapsed).get_lines() if line.get_linestyle() == "--"]


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


def test_ours_far_from_the_others_does_not_flatten_them(bench: Bench) -> None:
    for row in VALUES:
        bench.ended(row, value=400.0 if row == "8" else None)
    axes = panel(draw_ablation(bench.data()), "tiny")
    assert texts(beyond(axes)) == ["402.00"]
    assert axes.get_ylim()[1] < 110


def test_a_column_that_the_paper_leaves_out_has_no_point(whole: Bench) -> None:
    assert [point.row for point in whole.data().of("paper", "c4/250m")] == ["8", "16"]


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


@pytest.mark.parametrize(("columns", "rows"), [(1, 3), (2, 7), (6, 8)])
@pytest.mark.parametrize("axis", ["number", "category", "cost"])
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


def said_below(figure: Figure) -> str:
    """What stands under the panels, in a line."""
    return figure.get_supxlabel().replace("\n", " ")


def test_axes_have_words_and_not_the_programs_keys(whole: Bench) -> None:
    keys = {"hidden", "sites", "ratio", "beta_bias", "placement-norm", "hidden-size", "granularity", "context", "norm"}
    assert set(QUESTIONS) == set(get_args(AblationName))
    assert not keys & set(QUESTIONS.values())
    figure = draw_ablation(data := whole.data())
    said = [part.get_supxlabel() for part in figure.subfigs]
    assert said == ["modulator width h (log scale)"] * 2
    assert "table9" not in figure.get_suptitle()
    assert data.title == figure.get_suptitle() == QUESTIONS["hidden-size"]
    assert draw_ablation(whole.data("modules")).subfigs[0].get_supxlabel() == ""
    assert axis_words("a_bias_of_mine") == "a bias of mine"
    assert row_words("only_qk") == "only qk"


def test_what_was_trained_stands_in_the_picture_and_in_the_caption(whole: Bench) -> None:
    data = whole.data()
    assert "LLaMA tiny" in data.trained
    assert "200 steps of 8 x 64 tokens" in data.trained
    assert "seeds 1-3; scale smoke" in data.trained
    assert data.trained in said_below(draw_ablation(data)).replace("- ", "-")
    assert data.trained in data.caption().text()


def test_a_start_stands_at_the_share_that_it_is() -> None:
    data = accuracies(55.0, 60.0, 68.0)
    shares = [replace(p, x=x, position=None if x is None else SHARES["beta_bias"](x))
              for p, x in zip(data.points, (None, -3.0, 0.0, 3.0), strict=True)]  # fmt: skip
    axes = panel(draw_ablation(replace(data, points=tuple(shares), shares=True)), "cifar10")
    assert axes.get_xscale() == "linear"
    assert [round(x, 2) for x, _ in marks(axes)] == [0.05, 0.5, 0.95]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.05", "0.5", "0.95"]


def test_networks_that_learned_nothing_are_marked_as_such() -> None:
    data = replace(accuracies(15.0, 16.0, 60.0), floors={"cifar10": 10.0})
    assert [point.row for point in data.points if data.at_floor(point)] == ["2", "4"]
    axes = panel(draw_ablation(data), "cifar10")
    assert texts(axes) == ["guessing"]
    assert axes.get_ylim()[0] < 10
    learned = replace(accuracies(55.0, 60.0), floors={"cifar10": 10.0})
    assert texts(panel(draw_ablation(learned), "cifar10")) == []


def test_rows_that_are_one_network_share_a_name_and_a_place(bench: Bench) -> None:
    bench.ended("baseline", extra_parameters_percent=0.0)
    for row in ("2", "8", "16"):
        bench.ended(row, value=95.0 if row != "16" else 90.0, extra_parameters_percent=1.0 if row != "16" else 0.2)
    axes = panel(draw_ablation(bench.data("cost")), "tiny")
    names = [text for text in texts(axes) if text]
    assert sorted(names) == ["16", "2\n= 8", "baseline"] or sorted(names) == ["16", "8\n= 2", "baseline"]


def test_a_row_that_the_paper_does_not_print_leaves_no_gap_on_its_side(whole: Bench) -> None:
    data = whole.data("modules")
    kept = tuple(point for point in data.points if point.panel == "ours" or point.row != "2")
    figure = draw_ablation(replace(data, points=kept))
    assert [label.get_text() for label in panel(figure, "c4/250m").get_xticklabels()] == ["16", "8"]
    assert len(panel(figure, "tiny").get_xticklabels()) == 3


def test_panels_share_an_axis_where_that_is_asked_for(whole: Bench) -> None:
    apart, shared = (draw_ablation(whole.data(), shared=each) for each in (False, True))
    assert panel(apart, "c4/60m").get_ylim() != panel(apart, "c4/130m").get_ylim()
    assert panel(shared, "c4/60m").get_ylim() == panel(shared, "c4/130m").get_ylim()


def test_two_points_make_a_small_figure(whole: Bench) -> None:
    data = whole.data("modules")
    ours = replace(data, points=tuple(p for p in data.points if p.panel == "ours" and p.row in ("baseline", "2", "8")))
    assert draw_ablation(ours).get_figwidth() < 4
    assert draw_ablation(synthetic("category", 6, 8)).get_figwidth() == PAGE_WIDTH
    assert [part.get_suptitle()[:3] for part in draw_ablation(ours).subfigs] == ["tra"], "one side has no letter"
    assert [part.get_suptitle()[:3] for part in draw_ablation(data).subfigs] == ["(a)", "(b)"]


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


def accuracies(*values: float | None) -> AblationData:
    """A baseline of 91.1 and a point for each value, ours alone, of which the higher ones are the better."""
    rows = [("baseline", None, 91.1), *((str(2**n), 2.0**n, value) for n, value in enumerate(values, start=1))]
    points = tuple(
        Point("ours", "cifar10", row, row == "baseline", x, value, 0.1 if value else None, 3 if value else 0,
              "done" if value else "missing", collapsed=False, printed_increase=None)
        for row, x, value in rows
    )  # fmt: skip
    return AblationData("A", "ratio", "smoke", "accuracy", "higher", "baseline", "number", "ratio", points, ())


def test_a_low_accuracy_is_off_the_scale_at_the_lower_edge_and_a_high_one_is_not() -> None:
    figure = draw_ablation(accuracies(91.4, 12.0, 91.3, None))
    axes = panel(figure, "cifar10")
    low, high = axes.get_ylim()
    assert 85 < low < 91.1
    assert 91.4 < high < 93
    assert [line for line in beyond(axes).get_lines() if line.get_marker() == "v"]
    figure.draw_without_rendering()
    assert beyond(axes).get_window_extent().y1 < axes.get_window_extent().y0
    assert texts(beyond(axes)) == ["12.00"]
    (missing,) = [text for text in axes.texts if text.get_text() == "missing"]
    assert missing.get_position()[1] > 0.9
    assert marks(axes) == [(2, 91.4), (8, 91.3)]
    told = said_below(figure)
    assert "values off the scale, with their numbers." in told
    assert "collapsed" not in told


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


def spread(*numbers: float) -> AblationData:
    """A point at each of the numbers."""
    data = accuracies(*(60.0 + place for place in range(len(numbers))))
    points = [replace(point, x=x) for point, x in zip(data.points, (None, *numbers), strict=True)]
    return replace(data, points=tuple(points))


@pytest.mark.parametrize("most", [30.0, 31.0])
def test_numbers_around_0_that_are_spread_out_stand_on_an_axis_linear_around_0_alone(most: float) -> None:
    axes = panel(draw_ablation(spread(-3, -1, 0, most)), "cifar10")
    assert axes.get_xscale() == ("linear" if most == 30 else "symlog")
    assert [x for x, _ in marks(axes)] == [-3, -1, 0, most]
    low, high = axes.get_xlim()
    assert low < -3
    assert high > most


@pytest.mark.parametrize(
    "numbers",
    [
        (4, 8, 16, 32, 64, 1_000_000),
        (-3, -1, 0, 3, 6.5, 1000),
        (-1000, -999, 0),
        (-99_000, -0.001, 0, 0.001, 0.002),
        (1000, 1001),
        tuple(range(1, 60)),
    ],
)
@pytest.mark.parametrize("columns", [1, 6])
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
