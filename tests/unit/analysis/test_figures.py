"""Figures: what they show is what the CSV beside them says, everything fits, and nothing else is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from same_bits import Reason, assert_same_bits

from comt_cli.errors import StorageError
from comt_cli.report import figures
from comt_cli.report.caption import Caption
from comt_cli.report.figure_captions import caption
from comt_cli.report.figures.broken import robust_ends
from comt_cli.report.figures.lines import drawn_tokens
from comt_cli.report.figures.style import layer_ticks, series_colours, style
from comt_cli.report.figures.tokens import MAX_LINES, token_labels

SITES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# A dollar sign (a formula to matplotlib), signs that the font lacks, spaces, a line break, a very long word.
PIECES = ["▁Once", "▁a", "▁king", "dom", "$", "日本", "▁", "\\n", "<0x0A>", "▁incomprehensibilities", "_x", "</s>"]


def grid(layers: int, tokens: int, **columns) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    pieces = [PIECES[i % len(PIECES)] for i in range(tokens)]
    frame = pd.MultiIndex.from_product([range(1, layers + 1), range(tokens)], names=["layer", "position"]).to_frame(
        False
    )
    frame["token"] = [pieces[i] for i in frame["position"]]
    for name, (low, high) in columns.items():
        frame[name] = rng.uniform(low, high, len(frame))
    return frame


def lines(layers=6, tokens=12, sites=SITES) -> pd.DataFrame:
    return pd.concat([grid(layers, tokens, value=(0.2, 1.4)).assign(site=site) for site in sites], ignore_index=True)


def stream(layers=6, tokens=12) -> pd.DataFrame:
    return grid(layers, tokens, cosine=(-0.1, 1), angle=(0, 0.6), norm_ratio=(0.2, 150))


def surfaces(layers=6, tokens=12) -> pd.DataFrame:
    parts = [grid(layers, tokens, value=(0.5, 1.5)).assign(channel=channel) for channel in range(0, 40, 4)]
    return pd.concat(parts, ignore_index=True)


def summary(layers=6, kinds=("scalar", "channel")) -> pd.DataFrame:
    measures = {"mean": (0.9, 1.1), "std": (0, 0.2), "saturation": (0, 0.1)}
    parts = [
        grid(layers, 1, **measures).assign(site=site, kind=kind)[["site", "kind", "layer", *measures]]
        for kind in kinds
        for site in SITES
    ]
    return pd.concat(parts, ignore_index=True)


STACKS = {"encoder": ["attention", "mlp"], "decoder": ["attention", "cross", "mlp"]}


def junctions(layers=6, shares=("alpha", "beta", "(1-alpha)(1-beta)")) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        (stack, layer, part, share, rng.uniform(0, 1), rng.uniform(0.05, 0.3), 20 + len(parts))
        for stack, parts in STACKS.items()
        for layer in range(1, layers + 1)
        for part in parts
        for share in shares
    ]
    frame = pd.DataFrame(rows, columns=["stack", "layer", "part", "share", "mean", "std", "tokens"])
    return frame.assign(low=frame["mean"] - frame["std"], high=frame["mean"] + frame["std"])


def of_decoder(layers=6, tokens=12) -> pd.DataFrame:
    parts = {"attention": ["q_proj", "k_proj", "v_proj", "o_proj"], "cross": ["q_proj", "o_proj"], "mlp": ["up_proj"]}
    frames = [lines(layers, tokens, sites).assign(stack="decoder", part=part) for part, sites in parts.items()]
    return pd.concat(frames, ignore_index=True).assign(text="target")


CAPTION = Caption("What is shown?", "pre-ln: 480 steps", ("Lines are 95 % of it",), ("Mean 0.80.",))
DRAWINGS = {
    "lines": lambda layers, tokens: figures.draw_gate_lines(lines(layers, tokens)),
    "own-axes": lambda layers, tokens: figures.draw_gate_lines(lines(layers, tokens), shared=False),
    "ten-sites": lambda layers, tokens: figures.draw_gate_lines(lines(layers, tokens, [*SITES, "sdpa", "x", "y"])),
    "one-site": lambda layers, tokens: figures.draw_gate_lines(lines(layers, tokens, ["v_proj"])),
    "decoder": lambda layers, tokens: figures.draw_gate_lines(of_decoder(layers, tokens)),
    "junctions": lambda layers, tokens: figures.draw_junction_shares(junctions(layers)),
    "one-share": lambda layers, tokens: figures.draw_junction_shares(junctions(layers, ["g"])),
    "stream": lambda layers, tokens: figures.draw_residual_stream(stream(layers, tokens)),
    "surfaces": lambda layers, tokens: figures.draw_gate_surfaces(surfaces(layers, tokens), "down_proj"),
    "summary": lambda layers, tokens: figures.draw_gate_summary(summary(layers)),
}


OF_STACKS = ("decoder", "junctions", "one-share")
SIGNED = "a method: LLaMA tiny on python-docs, 480 steps of 4 x 128 tokens; seed 1; " * 3


@pytest.mark.parametrize(
    ("name", "layers", "tokens"),
    [
        *((name, 1, 2) for name in ("lines", "one-site", "stream", "surfaces", "summary", *OF_STACKS)),
        *(
            (name, 30, 60)
            for name in ("own-axes", "ten-sites", "one-site", "stream", "surfaces", "summary", *OF_STACKS)
        ),
    ],
)
def test_everything_written_lies_inside_and_panels_do_not_overlap(name, layers, tokens) -> None:
    figure, _ = DRAWINGS[name](layers, tokens)
    with style():
        figures.sign(figure, SIGNED)
        canvas = FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        renderer = canvas.get_renderer()
        width, height = canvas.get_width_height()
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        # Ticks outside an axis' limits exist, and are not drawn.
        ticks = {
            id(label)
            for axes in figure.axes
            for axis in axes._axis_map.values()
            for tick in axis.get_major_ticks() + axis.get_minor_ticks()
            for label in (tick.label1, tick.label2)
        }
        assert len(texts) > 3
        for text in texts:
            if id(text) not in ticks:
                box = text.get_window_extent(renderer)
                inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
                assert inside, (text.get_text(), box)
        boxes = [axes.get_tightbbox(renderer) for axes in figure.axes if not hasattr(axes, "get_zlim")]
        said = next(text for text in figure.texts if text.get_text().startswith("a method")).get_window_extent(renderer)
        others = [text.get_window_extent(renderer) for text in figure.texts if text.get_text() == "layer"]
    for number, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[:number])
        assert not any(one.overlaps(text) for text in (said, *others))
    assert not any(said.overlaps(text) for text in others)


@pytest.mark.parametrize("log", [False, True])
def test_a_few_far_values_do_not_rule_a_scale_and_even_ones_all_stay(log) -> None:
    even = np.linspace(1, 2, 30)
    ends = robust_ends(even, log=log)
    assert (ends.low, ends.high) == (1, 2)
    ends = robust_ends([*even, 40, 41, 45], log=log)
    assert (ends.low, ends.high) == (1, 2)
    assert [ends.is_off(value) for value in (1.0, 2.0, 40.0)] == [False, False, True]
    ends = robust_ends([0.01, *even, 4000], log=log)
    assert (ends.low, ends.high) == ((1, 2) if log else (0.01, 2))
    both = robust_ends([*even, *(even + 40)], log=log)
    assert (both.low, both.high) == (1, 42), "half of the values are no outliers"
    assert robust_ends([3.0, 3.0, 3.0 + 1e-9], log=log).high == 3.0 + 1e-9
    assert robust_ends([], log=log).low == 0


def test_a_first_layer_far_from_the_others_stands_on_a_broken_axis_with_its_values() -> None:
    frame = stream(8, 5)
    frame["cosine"] = np.where(frame["layer"] == 1, 0.1 + frame["position"] / 100, 0.9 + frame["position"] / 100)
    frame["norm_ratio"] = np.where(frame["layer"] == 1, 30.0 + frame["position"], 1.1 - frame["position"] / 100)
    figure, _ = figures.draw_residual_stream(frame)
    cosine, ratio = figure.axes[0], figure.axes[1]
    assert cosine.get_ylim()[0] > 0.8
    assert ratio.get_ylim()[1] < 1.3
    for axes, text in ((cosine, "0.1 to 0.14"), (ratio, "30 to 34")):
        (beyond,) = axes.child_axes
        assert [each.get_text() for each in beyond.texts] == [text]
    assert {each.get_text() for each in ratio.texts} == {"unchanged"}


def off_scale_frames(off: dict[int, float]) -> dict[str, tuple[Figure, pd.DataFrame]]:
    """A stream and gates of 4 layers; three tokens have the values `off` in these layers, and the rest is near 1."""
    few, steady = grid(4, 9)["position"] < 3, grid(4, 9, value=(0.9, 1.0))
    frame = steady.assign(value=np.where(few, steady["layer"].map(off).fillna(steady["value"]), steady["value"]))
    gates = pd.concat([frame.assign(site="v_proj"), steady.assign(site="o_proj")], ignore_index=True)
    residual = stream(4, 9).assign(cosine=frame["value"], norm_ratio=steady["value"])
    return {"gate-values": figures.draw_gate_lines(gates), "residual-stream": figures.draw_residual_stream(residual)}


@pytest.mark.parametrize("off", [{1: 5.0, 2: 3.0}, {1: -5.0, 2: -3.0}, {3: 5.0, 4: 6.0}, {1: 5.0, 2: -3.0, 3: 6.0}])
def test_numbers_off_the_scale_stand_beside_every_mark_and_on_none(off: dict[int, float]) -> None:
    for figure, _ in off_scale_frames(off).values():
        with style():
            canvas = FigureCanvasAgg(figure)
            figure.draw_without_rendering()
            strips = [strip for axes in figure.axes for strip in axes.child_axes]
            told = [text for strip in strips for text in strip.texts]
            lines = [line for strip in strips for line in strip.get_lines() if line.get_marker() in ("^", "v")]
            boxes = [each.get_window_extent(canvas.get_renderer()) for each in (*told, *lines)]
        assert sorted(float(text.get_text()) for text in told) == sorted(off.values())
        assert len(lines) == len(off)
        assert not any(one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])


def test_many_layers_off_the_scale_share_a_line_and_a_text() -> None:
    frame = grid(12, 9, value=(0.9, 1.0)).assign(site="v_proj")
    frame["value"] = np.where((frame["layer"] > 8) & (frame["position"] > 2), frame["layer"] * 1.0, frame["value"])
    figure, _ = figures.draw_gate_lines(frame)
    (strip,) = figure.axes[0].child_axes
    assert [text.get_text() for text in strip.texts] == ["9 to 12"]
    marks = [line for line in strip.get_lines() if line.get_marker() == "^"]
    assert [(float(mark.get_xdata()[0]), float(mark.get_ydata()[0])) for mark in marks] == [
        (layer, 0) for layer in (9, 10, 11, 12)
    ]
    assert strip.texts[0].xy[1] == 1
    plain, _ = figures.draw_gate_lines(grid(12, 9, value=(0.9, 1.0)).assign(site="v_proj"))
    assert figure.get_figheight() > plain.get_figheight(), "the strip takes no room from the panels"


def test_a_caption_tells_of_what_was_drawn_alone() -> None:
    for off, is_broken in (({1: 5.0, 2: 3.0}, True), ({}, False)):
        for draw, (_, drawn) in off_scale_frames(off).items():
            said = caption(draw, "A title", "a network", drawn).text()
            assert ("broken axis" in said) == is_broken
            assert "paper" not in said, "it is of no network that the paper shows"
    frame = lines(4, 3)
    for shared, words in ((True, "one scale of colours"), (False, "a scale of colours of its own")):
        said = caption("gate-values", "A title", "", figures.draw_gate_lines(frame, shared=shared)[1]).text()
        assert words in said
        assert "unless" not in said
    alone = figures.draw_gate_lines(lines(4, 3, ["v_proj"]))[1]
    assert "panel" not in caption("gate-values", "A title", "", alone).text()
    (*_, residual) = off_scale_frames({})["residual-stream"]
    assert "CoMT's paper says" in caption("residual-stream", "A title", "", residual, "pre-ln", ["pre-ln"]).text()


def test_files_are_written_together_and_again_the_same(tmp_path: Path) -> None:
    contents = []
    for folder in (tmp_path / "a" / "x", tmp_path / "c" / "x"):
        figure, drawn = DRAWINGS["stream"](3, 4)
        paths = figures.write_figure(figure, drawn, folder, "figure", CAPTION)
        assert [path.name for path in paths] == [f"figure.{kind}" for kind in ("png", "pdf", "txt", "tex", "csv")]
        assert len(list(folder.iterdir())) == 5
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]
    assert contents[0][0].startswith(b"\x89PNG")
    assert contents[0][1].startswith(b"%PDF")
    assert b"CreationDate" not in contents[0][1]
    back = pd.read_csv(tmp_path / "c" / "x" / "figure.csv", keep_default_na=False)
    pd.testing.assert_frame_equal(back, drawn, rtol=1e-5, check_dtype=False)


def test_a_folder_that_cannot_be_made_is_an_error_for_people(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make"):
        figures.write_figure(*DRAWINGS["summary"](2, 2), tmp_path / "file" / "x", "figure", CAPTION)


@pytest.mark.usefixtures("quick_figures")
def test_a_caption_is_text_and_latex(tmp_path: Path) -> None:
    figures.write_figure(*DRAWINGS["summary"](2, 2), tmp_path / "smoke", "figure_1", CAPTION)
    text = (tmp_path / "smoke" / "figure_1.txt").read_text()
    assert text == "What is shown? pre-ln: 480 steps. Lines are 95 % of it. Mean 0.80.\n"
    latex = (tmp_path / "smoke" / "figure_1.tex").read_text()
    assert r"\caption{\textbf{What is shown?} pre-ln: 480 steps. Lines are 95 \% of it. Mean 0.80.}" in latex
    assert r"{figure_1.pdf}" in latex
    assert r"\label{fig:smoke-figure-1}" in latex


def test_the_name_of_a_file_is_what_latex_reads() -> None:
    assert r"]{figure_1 $&.pdf}" in CAPTION.latex("figure_1 $&", "x")
    (line,) = [line for line in CAPTION.latex("50%#~a", "x").splitlines() if "includegraphics" in line]
    assert line.endswith(r"{50\csname @percentchar\endcsname \string#\string~a.pdf}")


def test_the_lines_are_the_csv() -> None:
    frame = stream(5, MAX_LINES + 3)
    figure, drawn = figures.draw_residual_stream(frame)
    pd.testing.assert_frame_equal(drawn, drawn_tokens(frame))
    assert drawn["position"].nunique() == MAX_LINES
    for axes, column in zip(figure.axes, ("cosine", "norm_ratio"), strict=False):
        *curves, median = [line for line in axes.get_lines() if len(line.get_xdata()) == 5]
        assert len(curves) == MAX_LINES
        for position, curve in enumerate(curves):
            here = drawn[drawn["position"] == position]
            assert curve.get_xdata().tolist() == here["layer"].tolist()
            assert curve.get_ydata().tolist() == here[column].tolist()
        assert median.get_ydata().tolist() == drawn.groupby("layer")[column].median().tolist()
    below = next(axes for axes in figure.axes if axes.images)
    shown = drawn.pivot(index="position", columns="layer", values="cosine").to_numpy()
    assert_same_bits(below.images[0].get_array(), shown, Reason.MOVED)
    assert below.get_ylabel() == f"token (the first {MAX_LINES} tokens of {MAX_LINES + 3})"


def test_panels_are_the_sites_in_their_order() -> None:
    frame = lines(4, 3)
    figure, _ = figures.draw_gate_lines(frame)
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == SITES
    down = figure.axes[6].get_lines()[1].get_ydata().tolist()
    here = frame[(frame["site"] == "down_proj") & (frame["position"] == 1)]
    assert down == here["value"].tolist()
    maps = [axes.images[0] for axes in figure.axes if axes.images]
    assert len(maps) == 7
    assert len({image.get_clim() for image in maps}) == 1
    assert len({axes.get_ylim() for axes in figure.axes[:7]}) == 1
    apart = frame.assign(value=frame["value"] * (1 + frame["site"].map(SITES.index)))
    own, _ = figures.draw_gate_lines(apart, shared=False)
    assert len({axes.images[0].get_clim() for axes in own.axes if axes.images}) == len(SITES)
    assert len({axes.get_ylim() for axes in own.axes[:7]}) == 7


def test_a_summary_shows_its_cells_and_leaves_missing_ones_empty() -> None:
    frame = summary(4, kinds=("scalar",))
    frame.loc[frame["layer"] == 2, "saturation"] = np.nan
    figure, _ = figures.draw_gate_summary(frame)
    maps = {axes.get_title(): axes.images[0].get_array() for axes in figure.axes if axes.get_title()}
    assert list(maps) == ["scalar: mean", "scalar: standard deviation", "scalar: saturated share"]
    mean = frame.pivot(index="site", columns="layer", values="mean").loc[SITES].to_numpy()
    assert_same_bits(maps["scalar: mean"].filled(), mean, Reason.MOVED)
    (panel,) = [axes for axes in figure.axes if axes.get_title() == "scalar: mean"]
    assert panel.texts[0].get_text() == f"{mean[0, 0]:.2f}"
    none, _ = figures.draw_gate_summary(frame.assign(saturation=0.0))
    assert not [axes for axes in none.axes if "saturated" in axes.get_title()], "a map of one colour says nothing"
    assert maps["scalar: saturated share"].mask.any(axis=0).tolist() == [False, True, False, False]


def test_token_names_can_be_read_and_drawn() -> None:
    assert token_labels(PIECES) == [
        "1 Once",
        "2 a",
        "3 king",
        "4 -dom",
        r"5 \$",
        r"6 \u65e5\u672c",
        "7 ␣",
        r"8 \n",
        r"9 \n",
        "10 incomprehensi…",
        "11 _x",
        "12 </s>",
    ]
    assert token_labels(["▁", "K", "ing", "▁at", ".", "x"]) == ["1 ␣", "2 K", "3 -ing", "4 at", "5 .", "6 x"]
    assert token_labels(["O", "n", "<0x20>", "<0xE2>"]) == ["1 O", "2 n", "3 ␣", "4 <0xE2>"]


def test_colours_and_ticks() -> None:
    for count in (1, 7, 8, 24):
        assert len({str(colour) for colour in series_colours(count)}) == count
    assert layer_ticks(1) == [1]
    assert layer_ticks(6) == [1, 2, 3, 4, 5, 6]
    assert layer_ticks(12) == [2, 4, 6, 8, 10, 12]
    assert layer_ticks(30) == [1, 5, 10, 15, 20, 25, 30]
    assert len(layer_ticks(1000)) <= 7


def test_the_users_settings_stay_and_do_not_matter() -> None:
    mpl.rcParams["font.size"] = 31
    try:
        figure, _ = DRAWINGS["stream"](3, 3)
        assert mpl.rcParams["font.size"] == 31
        assert figure.axes[0].xaxis.label.get_fontsize() == 8
    finally:
        mpl.rcParams["font.size"] = mpl.rcParamsDefault["font.size"]


def test_drawing_needs_neither_torch_nor_pyplot() -> None:
    code = (
        "import sys, comt_cli.report.figures; "
        "sys.exit(', '.join({'torch', 'matplotlib.pyplot'} & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_junctions_stand_in_order_of_depth_with_their_own_numbers() -> None:
    frame = junctions(2)
    figure, drawn = figures.draw_junction_shares(frame)
    pd.testing.assert_frame_equal(drawn, frame)
    order = [(stack, layer, part) for stack, parts in STACKS.items() for layer in (1, 2) for part in parts]
    for axes, (share, own) in zip(figure.axes, frame.groupby("share", sort=False), strict=True):
        expected = {
            float(order.index((row.stack, row.layer, row.part)) + 1): (row.mean, row.std)
            for row in own.itertuples(index=False)
        }
        found = {}
        for container in axes.containers:
            points, _, (bars,) = container
            for x, y, bar in zip(*points.get_data(), bars.get_segments(), strict=True):
                found[float(x)] = (y, pytest.approx((bar[1, 1] - bar[0, 1]) / 2))
        assert expected == found, share
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "1", "2"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["attention", "cross", "mlp"]
    said = caption("junction-shares", "A title", "a network", drawn).text()
    encoder, alpha = frame[frame["stack"] == "encoder"], frame["share"] == "alpha"
    ends = encoder.loc[alpha, "mean"]
    assert f"Encoder, 22 tokens, means at its 4 junctions: alpha {ends.min():.3g} to {ends.max():.3g}" in said


def test_sites_of_one_name_are_told_apart() -> None:
    frame = of_decoder()
    figure, drawn = figures.draw_gate_lines(frame)
    pd.testing.assert_frame_equal(drawn, frame, check_like=True)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles[3:6] == ["attention\no_proj", "cross\nq_proj", "cross\no_proj"]
    across = frame.groupby(["part", "site", "layer"])["value"].std(ddof=0).mean()
    assert f"averaged over sites and layers: {across:.2g}" in caption("gate-values", "A title", "", drawn).text()
    by_stack = [summary(3).assign(stack=stack, part="attention") for stack in STACKS]
    figure, _ = figures.draw_gate_summary(pd.concat(by_stack, ignore_index=True))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][6:8] == [
        "encoder attention down_proj",
        "decoder attention q_proj",
    ]
    assert len(figure.axes[0].texts) == 2 * 7 * 3


@pytest.mark.parametrize("kind", ["head", "evaluator"])
def test_every_kind_of_value_has_its_map(kind) -> None:
    figure, _ = figures.draw_gate_summary(summary(3, kinds=[kind]))
    assert figure.axes[0].get_title() == f"{kind}: mean"
