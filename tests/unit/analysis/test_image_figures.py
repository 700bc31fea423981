"""Figures of image classifiers: what they show is what the CSV beside them says, and everything fits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.text import Text
from same_bits import Reason, assert_same_bits

from comt_cli.report import figures
from comt_cli.report.caption import Caption
from comt_cli.report.figures.block_gradients import findings
from comt_cli.report.figures.style import style

LONG = "a-long-row-glyphs100/preact-resnet110-seed{} (comt-sliding-window)"
RANDOM = np.random.default_rng(0)


def gradients(runs=2, depth=9, steps=(1, 10, 20), name="row {}") -> pd.DataFrame:
    places = [
        (name.format(run), f"conv{at}", at, step) for run in range(runs) for step in steps for at in range(1, depth)
    ]
    frame = pd.DataFrame(places, columns=["row", "convolution", "depth", "step"])
    return frame.assign(norm=10 ** RANDOM.uniform(-3, 2, len(frame)))


def blocks(layers, names, key) -> pd.DataFrame:
    block = np.arange(1, layers + 1)
    parts = [pd.DataFrame({key: name, "block": block, "stage": (block - 1) * 3 // layers + 1}) for name in names]
    frame = pd.concat(parts, ignore_index=True)
    mean, std = RANDOM.uniform(0.1, 0.9, len(frame)), RANDOM.uniform(0, 0.1, len(frame))
    return frame.assign(mean=mean, std=std, low=mean - std, high=mean + std, examples=10_000)


def maps(images=3, gates=((1, "conv1", 8), (2, "conv1", 4), (2, "conv2", 4))) -> pd.DataFrame:
    parts = []
    for image in range(images):
        for block, site, size in gates:
            y, x = np.indices((size, size)).reshape(2, -1)
            who = {"image": image, "label": "automobile", "prediction": "truck", "block": block, "site": site}
            parts.append(pd.DataFrame({**who, "y": y, "x": x, "value": RANDOM.uniform(0.4, 0.6, size**2)}))
    return pd.concat(parts, ignore_index=True)


def pixels(images: int) -> list[np.ndarray]:
    return list(RANDOM.integers(0, 255, (images, 8, 8, 3), dtype=np.uint8))


SAS = ["alpha", "beta", "(1-alpha)(1-beta)"]
DRAWINGS = {
    "convolutions": lambda: figures.draw_conv_gradients(gradients()),
    "one-run": lambda: figures.draw_conv_gradients(gradients(1, 3, (1,))),
    "seven-runs": lambda: figures.draw_conv_gradients(gradients(7, 40, range(1, 80), LONG)),
    "seven-lengths": lambda: figures.draw_conv_gradients(
        pd.concat([gradients(1, 9, range(1, 10 * n, n), f"{LONG} 0123456789ab{n}") for n in range(1, 8)])
    ),
    "shares": lambda: figures.draw_residual_shares(blocks(54, SAS, "share")),
    "one-share": lambda: figures.draw_residual_shares(blocks(3, ["gate"], "share").assign(low=0.5, high=0.5)),
    "blocks": lambda: figures.draw_block_gradients(blocks(54, ["x + F", "sas"], "row")),
    "few-blocks": lambda: figures.draw_block_gradients(blocks(3, ["x + F"], "row")),
    "maps": lambda: figures.draw_gate_maps(maps(), pixels(3)),
    "one-map": lambda: figures.draw_gate_maps(maps(1, [(1, "norm2", 2)]), pixels(1)),
}


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=list(DRAWINGS))
def test_everything_written_lies_inside_and_titles_apart(draw) -> None:
    figure, _ = draw()
    with style():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        width, height = canvas.get_width_height()
        labels = {id(text) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in axis.findobj(Text)}
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        for text in texts:
            if id(text) not in labels:
                box = text.get_window_extent(renderer)
                inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
                assert inside, (text.get_text(), box)
        titles = [axes.title.get_window_extent(renderer) for axes in figure.axes if axes.get_title()]
    assert len(texts) > 3
    assert not any(one.overlaps(other) for number, one in enumerate(titles) for other in titles[:number])


@pytest.mark.parametrize("name", ["convolutions", "shares", "blocks", "maps"])
def test_the_csv_is_what_was_drawn(name, tmp_path) -> None:
    figure, drawn = DRAWINGS[name]()
    *_, path = figures.write_figure(figure, drawn, tmp_path, "figure", Caption("A figure"))
    back = pd.read_csv(path)
    pd.testing.assert_frame_equal(back, drawn, rtol=1e-5, check_dtype=False, check_names=False)


def test_convolutions_show_the_median_and_the_greatest_and_every_step() -> None:
    frame = gradients()
    frame.loc[(frame["depth"] == 2) & (frame["step"] == 1), "norm"] = 0.0  # a branch that is switched off
    figure, drawn = figures.draw_conv_gradients(frame)
    one = frame[frame["row"] == "row 1"]
    table = one.pivot(index="depth", columns="step", values="norm")
    seen = table.where(table > 0)
    mine = drawn[drawn["row"] == "row 1"]
    np.testing.assert_allclose(mine["median"], seen.median(axis=1))
    np.testing.assert_allclose(mine["greatest"], seen.max(axis=1))
    curves = figure.axes[0].get_lines()[:4]
    assert_same_bits(curves[2].get_ydata(), mine["median"], Reason.MOVED)
    assert_same_bits(curves[3].get_ydata(), mine["greatest"], Reason.MOVED)
    panel = next(axes for axes in figure.axes if axes.get_title() == "(d) row 1")
    (mesh,) = [item for item in panel.collections if isinstance(item, QuadMesh)]
    shown = mesh.get_array()
    assert shown.mask.sum() == 1
    assert shown.mask[0, 1]
    np.testing.assert_allclose(shown.filled(0), table.to_numpy().T)


def test_runs_that_logged_other_steps_say_which() -> None:
    def said(*steps: tuple[int, ...]) -> tuple[str, list[str]]:
        parts = [gradients(1, 3, each, f"run {number}") for number, each in enumerate(steps)]
        figure, _ = figures.draw_conv_gradients(pd.concat(parts))
        (legend,) = [item for part in figure.subfigs for item in part.legends]
        return figure.axes[0].get_title(), [text.get_text() for text in legend.get_texts()[: len(steps)]]

    title, names = said((1, 10, 300), (1, 10, 20), (1,))
    assert "step" not in title
    assert names == ["run 0, 3 of steps 1 to 300", "run 1, 3 of steps 1 to 20", "run 2, step 1"]
    assert said((1, 10), (1, 5, 10))[1] == ["run 0, 2 of steps 1 to 10", "run 1, 3 of steps 1 to 10"]
    title, names = said((1, 10), (1, 10))
    assert title.endswith(", steps 1 to 10")
    assert names == ["run 0", "run 1"]


def test_long_trainings_are_thinned_in_the_maps_alone() -> None:
    frame = gradients(1, 3, range(1, 1001))
    frame.loc[(frame["step"] == 2) & (frame["depth"] == 1), "norm"] = 1e6
    _, drawn = figures.draw_conv_gradients(frame)
    steps = [column for column in drawn if column.startswith("step ")]
    assert len(steps) == 60
    assert (steps[0], steps[-1]) == ("step 1", "step 1000")
    assert "step 2" not in steps
    assert drawn["greatest"].max() == 1e6


def test_lines_over_blocks_are_the_frame_and_stages_are_marked() -> None:
    frame = blocks(54, ["plain", "sas"], "row")
    figure, drawn = figures.draw_block_gradients(frame)
    pd.testing.assert_frame_equal(drawn, frame)
    axes = figure.axes[0]
    for row, curve in zip(["plain", "sas"], axes.get_lines(), strict=False):
        assert_same_bits(curve.get_ydata(), frame.loc[frame["row"] == row, "mean"], Reason.MOVED)
    assert [line.get_xdata()[0] for line in axes.get_lines()[2:]] == [18.5, 36.5]
    assert [text.get_text() for text in axes.texts] == ["stage 1", "stage 2", "stage 3"]
    assert "10,000 training images" in axes.get_xlabel()
    frame = blocks(54, SAS, "share")
    figure, _ = figures.draw_residual_shares(frame)
    assert [axes.get_title() for axes in figure.axes] == ["α, of x", "β, of F(x)", "(1−α)(1−β), of N(x + F)"]
    for share, axes in zip(SAS, figure.axes, strict=True):
        assert_same_bits(axes.get_lines()[0].get_ydata(), frame.loc[frame["share"] == share, "mean"], Reason.MOVED)
    assert "10,000 validation images" in figure.get_supxlabel()


@pytest.mark.parametrize("images", [1, 3])
def test_maps_are_as_high_as_their_images(images) -> None:
    figure, _ = figures.draw_gate_maps(maps(images), pixels(images))
    with style():
        FigureCanvasAgg(figure).draw()
    panels = [axes.get_position() for axes in figure.axes if axes.images]
    for first in range(0, len(panels), 4):
        for panel in panels[first : first + 4]:
            assert (panel.y0, panel.y1) == pytest.approx((panels[first].y0, panels[first].y1), abs=1e-3)


def test_maps_stand_beside_their_images() -> None:
    frame, shown = maps(2), pixels(2)
    figure, _ = figures.draw_gate_maps(frame, shown)
    panels = [axes for axes in figure.axes if axes.images]
    assert_same_bits(panels[4].images[0].get_array(), shown[1], Reason.MOVED)
    own = frame[(frame["image"] == 1) & (frame["block"] == 2) & (frame["site"] == "conv1")]
    assert_same_bits(panels[6].images[0].get_array(), own["value"].to_numpy().reshape(4, 4), Reason.MOVED)
    whole = frame["value"].min(), frame["value"].max()
    assert {panel.images[0].get_clim() for panel in (*panels[1:4], *panels[5:])} == {whole}
    assert panels[2].get_title() == "block 2\nconv1"
    assert panels[4].get_ylabel() == "automobile,\ntaken for\ntruck"
    letters = frame.replace({"label": {"automobile": "8"}, "prediction": {"truck": "B"}})
    figure, _ = figures.draw_gate_maps(letters, shown,
                                       shared=False)  # fmt: skip
    panels = [axes for axes in figure.axes if axes.images]
    column = frame[(frame["block"] == 2) & (frame["site"] == "conv1")]["value"]
    assert panels[6].images[0].get_clim() == panels[2].images[0].get_clim() == (column.min(), column.max())
    assert panels[4].get_ylabel() == "8, taken\nfor B"


def test_gradients_over_steps_show_peaks_and_a_far_convolution_does_not_rule() -> None:
    frame = gradients(1, 9, (1, 10, 20)).assign(norm=1.0)
    frame.loc[frame["depth"] > 4, "norm"] = 1.2
    frame.loc[(frame["depth"] == 1) & (frame["step"] == 1), "norm"] = 90.0
    figure, _ = figures.draw_conv_gradients(frame)
    over_depth, over_steps = figure.axes[:2]
    for axes in (over_depth, over_steps):
        assert axes.get_ylim()[1] < 3
        (beyond,) = axes.child_axes
        assert [text.get_text() for text in beyond.texts] == ["90"]
    greatest = over_steps.get_lines()[1]
    assert list(greatest.get_ydata()) == [90.0, 1.2, 1.2]


def test_shares_that_hardly_differ_look_so_and_all_panels_span_as_much() -> None:
    frame = blocks(9, SAS, "share")
    frame["mean"] = frame["share"].map({"alpha": 0.95, "beta": 0.05, "(1-alpha)(1-beta)": 0.05})
    frame["low"] = frame["high"] = frame["mean"]
    figure, _ = figures.draw_residual_shares(frame)
    spans = [round(high - low, 6) for low, high in (axes.get_ylim() for axes in figure.axes)]
    assert len(set(spans)) == 1
    assert spans[0] > 0.1
    assert figure.axes[0].get_ylabel() == "factor"


def test_what_the_gradients_show_is_said_beside_the_paper() -> None:
    frame = blocks(9, ["plain", "sas"], "row").assign(mean=1.0)
    sas = frame["row"] == "sas"
    frame.loc[sas, "mean"] = 2.0
    frame.loc[sas & (frame["block"] <= 3), "mean"] = 4.0
    said = " ".join(findings(frame, "plain", ["sas"]))
    assert "The gradient of sas is 4 times that of plain in the lower third" in said
    assert "more gradient in the lower blocks with SAS: so it is here" in said
    assert "greater gradients overall with SAS: so it is here" in said
    said = " ".join(findings(frame.assign(mean=np.where(sas, frame["block"] / 20, 1.0)), "plain", ["sas"]))
    assert "more gradient in the lower blocks with SAS: here it is the other way round" in said
    assert "greater gradients overall with SAS: here it is the other way round" in said


def test_what_the_paper_shows_is_not_claimed_of_another_method() -> None:
    frame = blocks(9, ["plain", "sas", "rezero"], "row")
    said = findings(frame, "plain", ["sas"])
    assert sum("paper" in sentence for sentence in said) == 1
    others = " ".join(findings(frame, "plain", []))
    assert "paper" not in others
    assert "SAS" not in others
    assert "The gradient of rezero is" in others
