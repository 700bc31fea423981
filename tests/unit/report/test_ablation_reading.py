"""How the figure of an ablation is read: paired intervals, broken axes, words on its axes, what was trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from ablation_cases import VALUES, Bench, accuracies, bars, beyond, marks, panel, said_below, synthetic, texts

from comt_cli.recipe.schema import AblationName
from comt_cli.report.ablation import ablation_data
from comt_cli.report.ablation_words import QUESTIONS, SHARES, axis_words, row_words
from comt_cli.report.figures import draw_ablation
from comt_cli.report.figures.style import PAGE_WIDTH
from comt_cli.report.table import build_table


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def whole(bench: Bench) -> Bench:
    for row in VALUES:
        bench.ended(row)
    return bench


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


def test_two_seeds_that_differ_much_leave_the_axis_to_the_values(bench: Bench) -> None:
    """The interval of their ratio reaches higher than any value by orders of magnitude."""
    bench.ended("baseline", (1, 2))
    for row in ("2", "8", "16"):
        bench.ended(row, (1,), value=100.0)
        bench.ended(row, (2,), value=150.0)
    axes = panel(draw_ablation(bench.data(seeds=[1, 2])), "tiny")
    low, high = axes.get_ylim()
    assert 0 < low < high < 200
    for _, lower, upper in bars(axes):
        assert low < lower < upper < high


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


def test_ours_far_from_the_others_does_not_flatten_them(bench: Bench) -> None:
    for row in VALUES:
        bench.ended(row, value=400.0 if row == "8" else None)
    figure = draw_ablation(data := bench.data())
    axes = panel(figure, "tiny")
    assert texts(beyond(axes)) == ["402.00"]
    assert axes.get_ylim()[1] < 110
    for told in (said_below(figure), data.caption().text()):
        assert "Triangles on a broken axis: values off the scale, with their numbers" in " ".join(told.split())


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


def test_axes_have_words_and_not_the_programs_keys(whole: Bench) -> None:
    keys = {"hidden", "sites", "ratio", "beta_bias", "placement-norm", "hidden-size", "granularity", "context", "norm"}
    assert set(QUESTIONS) == set(get_args(AblationName))
    assert not keys & set(QUESTIONS.values())
    figure = draw_ablation(data := whole.data())
    said = [part.get_supxlabel() for part in figure.subfigs]
    assert said == ["modulator width h (log scale)"] * 2
    titles = {axes.get_title(loc="left").split("\n")[0] for axes in figure.axes}
    assert titles - {""} == {"tiny", "C4, 60m", "C4, 130m", "C4, 250m"}
    assert [part.get_suptitle() for part in figure.subfigs] == [
        "(a) trained here, scale smoke",
        "(b) as printed in CoMT",
    ]
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


def test_rows_that_were_trained_otherwise_are_told_where_they_are_shown(bench: Bench) -> None:
    text = bench.recipe.read_text()
    for row in ("16", "8"):
        text = text.replace(f"hidden: {row}}}, ", f"hidden: {row}}}, settings: {{train: {{learning_rate: 5e-4}}}}, ")
    bench.recipe.write_text(text)
    for row in VALUES:
        bench.ended(row)
    told = "16 differs from the baseline in settings too: train.learning_rate."
    assert told in bench.data("modules").notes
    rows = build_table(bench.loaded(), bench.specs(), bench.runs).only(("baseline", "2", "8"), ("tiny",))
    without = ablation_data(bench.loaded(), rows, "modules")
    assert without is not None
    assert told not in without.notes
    assert told.replace("16", "8", 1) in without.notes


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
