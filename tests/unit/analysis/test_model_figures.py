"""Figures of trained networks: everything fits on them, and their numbers and sentences are those of their frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from figure_checks import check_layout
from matplotlib.figure import Figure

from comt_cli.analysis.figures.block_gradients import BlockGradients
from comt_cli.analysis.figures.channel_gates import ChannelGates
from comt_cli.analysis.figures.conv_gradients import ConvGradients
from comt_cli.analysis.figures.gate_maps import GateMaps
from comt_cli.analysis.figures.gate_summary import GateSummary
from comt_cli.analysis.figures.gate_values import GateValues
from comt_cli.analysis.figures.mixing import Mixing
from comt_cli.analysis.figures.residual_shares import ResidualShares
from comt_cli.analysis.figures.residual_stream import ResidualStream
from comt_cli.analysis.mixing import DISPERSION, READ_OUT
from comt_cli.analysis.model_figure import ModelFigure, model_figures
from comt_cli.report.figures import sign

SITES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# A dollar sign (a formula to matplotlib), signs that the font lacks, spaces, a line break, a very long word.
PIECES = ["▁Once", "▁a", "▁king", "dom", "$", "日本", "▁", "\\n", "<0x0A>", "▁incomprehensibilities", "_x", "</s>"]
STACKS = {"encoder": ["attention", "mlp"], "decoder": ["attention", "cross", "mlp"]}
SAS = ["alpha", "beta", "(1-alpha)(1-beta)"]
LONG = "a-long-row-glyphs100/preact-resnet110-seed{} (comt-sliding-window)"
RANDOM = np.random.default_rng(0)


def grid(layers: int, tokens: int, **columns) -> pd.DataFrame:
    places = pd.MultiIndex.from_product([range(1, layers + 1), range(tokens)], names=["layer", "position"])
    frame = places.to_frame(False)
    frame["token"] = [PIECES[i % len(PIECES)] for i in frame["position"]]
    return frame.assign(**{name: RANDOM.uniform(*ends, len(frame)) for name, ends in columns.items()})


def values(layers, tokens, sites=SITES, **where) -> pd.DataFrame:
    return pd.concat([grid(layers, tokens, value=(0.2, 1.4)).assign(site=site, **where) for site in sites])


def of_decoder(layers, tokens) -> pd.DataFrame:
    parts = {"attention": SITES[:4], "cross": ["q_proj", "o_proj"], "mlp": ["up_proj"]}
    where = {"stack": "decoder", "text": "target"}
    return pd.concat([values(layers, tokens, sites, part=part, **where) for part, sites in parts.items()])


def stream(layers, tokens) -> pd.DataFrame:
    return grid(layers, tokens, cosine=(-0.1, 1), angle=(0, 0.6), norm_ratio=(0.2, 150))


def channels(layers, tokens) -> pd.DataFrame:
    parts = [grid(layers, tokens, value=(0.5, 1.5)).assign(channel=channel) for channel in range(0, 40, 4)]
    return pd.concat(parts, ignore_index=True).assign(site="down_proj")


def summary(layers, _=0, kinds=("scalar", "channel")) -> pd.DataFrame:
    measures = {"mean": (0.9, 1.1), "std": (0, 0.2), "saturation": (0, 0.1)}
    return pd.concat([grid(layers, 1, **measures).assign(site=site, kind=kind) for kind in kinds for site in SITES])


def spread(frame: pd.DataFrame) -> pd.DataFrame:
    mean, std = RANDOM.uniform(0.1, 0.9, len(frame)), RANDOM.uniform(0, 0.1, len(frame))
    return frame.assign(mean=mean, std=std, low=mean - std, high=mean + std)


def adds(layers, _=0, shares=SAS) -> pd.DataFrame:
    rows = [
        (stack, layer, part, share, 20 + len(parts))
        for stack, parts in STACKS.items()
        for layer in range(1, layers + 1)
        for part in parts
        for share in shares
    ]
    return spread(pd.DataFrame(rows, columns=["stack", "layer", "part", "share", "tokens"]))


def blocks(number, names=SAS, key="share") -> pd.DataFrame:
    block = np.arange(1, number + 1)
    parts = [pd.DataFrame({key: name, "block": block, "stage": (block - 1) * 3 // number + 1}) for name in names]
    return spread(pd.concat(parts, ignore_index=True)).assign(examples=10_000)


def gradients(number, _=0) -> pd.DataFrame:
    return blocks(number, ["x + F", "sas"], "row").assign(method=["addition"] * number + ["sas-resnet"] * number)


def logged(runs=2, depth=9, steps=(1, 10, 20), name="row {}") -> pd.DataFrame:
    rows = [
        (name.format(run), f"conv{at}", at, step) for run in range(runs) for step in steps for at in range(1, depth)
    ]
    frame = pd.DataFrame(rows, columns=["row", "convolution", "depth", "step"])
    return frame.assign(norm=10 ** RANDOM.uniform(-3, 2, len(frame)))


def maps(images=3, _=0) -> pd.DataFrame:
    parts, gates = [], [(1, "conv1", 8), (2, "conv1", 4), (2, "conv2", 4)]
    for image in range(images):
        for block, site, size in [*((0, colour, 8) for colour in ("red", "green", "blue")), *gates]:
            y, x = np.indices((size, size)).reshape(2, -1)
            who = {"image": image, "label": "automobile", "prediction": "truck", "block": block, "site": site}
            parts.append(pd.DataFrame({**who, "y": y, "x": x, "value": RANDOM.uniform(0.4, 0.6, size**2)}))
    return pd.concat(parts, ignore_index=True)


def mixed(layers, _=0) -> pd.DataFrame:
    rows = [
        (stack, layer, part, weight, 0, source, mean, 0.0)
        for stack in STACKS
        for layer in range(1, layers + 1)
        for part, weight, mean in (
            ("attention", "read", 1.0),
            ("mlp", "read", 9.0),
            ("mlp", DISPERSION, 0.1),
            (READ_OUT, "stream", 0.5),
        )
        for source in range(1 if weight == DISPERSION else 2)
        if part != READ_OUT or layer == layers
    ]
    return pd.DataFrame(rows, columns=["stack", "layer", "part", "weight", "target", "source", "mean", "std"])


FRAMES = {
    "values": (GateValues(), values),
    "own-axes": (GateValues(shared=False), values),
    "ten-sites": (GateValues(), lambda layers, tokens: values(layers, tokens, [*SITES, "sdpa", "x", "y"])),
    "decoder": (GateValues(), of_decoder),
    "stream": (ResidualStream(), stream),
    "channels": (ChannelGates(), channels),
    "summary": (GateSummary(), summary),
    "adds": (ResidualShares(), adds),
    "one-share": (ResidualShares(), lambda layers, _: adds(layers, shares=["g"])),
    "blocks": (ResidualShares(), lambda layers, _: blocks(layers)),
    "gradients": (BlockGradients(), gradients),
    "maps": (GateMaps(), lambda layers, _: maps(min(layers, 3))),
    "own-maps": (GateMaps(shared=False), lambda layers, _: maps(min(layers, 3))),
    "mixing": (Mixing(), lambda layers, _: mixed(min(layers, 3))),
    "logged": (ConvGradients(), lambda layers, _: logged(min(layers, 2))),
    "seven-runs": (ConvGradients(), lambda layers, _: logged(7, 1 + layers, range(1, 80), LONG)),
}


@pytest.mark.parametrize(
    ("name", "layers", "tokens"),
    [
        *((name, 1, 2) for name in FRAMES if name not in ("ten-sites", "decoder", "own-axes")),
        *((name, 9, 40) for name in ("decoder", "own-axes")),
        *((name, 30, 60) for name in ("ten-sites", "stream", "channels", "summary", "adds", "gradients", "own-maps")),
    ],
)
def test_everything_lies_inside_and_panels_do_not_overlap(name, layers, tokens) -> None:
    figure, make = FRAMES[name]
    frame = make(layers, tokens).reset_index(drop=True)
    drawn = figure.draw(frame)
    note = "a method: LLaMA tiny on python-docs, 480 steps of 4 x 128 tokens; seed 1; " * 3
    sign(drawn, note)
    check_layout(drawn, note[:8], 2 if "maps" in name else 1)
    assert all(sentence.endswith(".") for sentence in figure.sentences(frame))
    assert len(figure.table(frame))


def test_a_file_is_found_by_its_name() -> None:
    assert all(issubclass(kind, ModelFigure) and kind.name == name for name, kind in model_figures().items())
    assert {type(figure) for figure, _ in FRAMES.values()} == set(model_figures().values())


def off_scale(off: dict[int, float]) -> list[tuple[ModelFigure, pd.DataFrame]]:
    """Gates and a stream of 4 layers; three tokens have the values `off` in these layers, and the rest is near 1."""
    steady = grid(4, 9, value=(0.9, 1.0))
    far = np.where(steady["position"] < 3, steady["layer"].map(off).fillna(steady["value"]), steady["value"])
    frame = steady.assign(value=far)
    gates = pd.concat([frame.assign(site="v_proj"), steady.assign(site="o_proj")], ignore_index=True)
    residual = steady.assign(cosine=frame["value"], norm_ratio=steady["value"])
    return [(GateValues(), gates), (ResidualStream(), residual)]


@pytest.mark.parametrize("off", [{}, {1: 5.0, 2: 3.0}, {1: -5.0, 2: -3.0}, {1: 5.0, 2: -3.0, 3: 6.0}])
def test_outliers_are_marked_on_a_broken_axis_and_the_caption_states_it(off) -> None:
    for figure, frame in off_scale(off):
        strips = [strip for axes in figure.draw(frame).axes for strip in axes.child_axes]
        told = sorted(float(text.get_text()) for strip in strips for text in strip.texts)
        assert told == sorted(off.values())
        assert ("broken axis" in " ".join(figure.sentences(frame))) == bool(off)


def test_panels_share_their_scale_unless_each_has_its_own() -> None:
    frame = values(4, 3)
    frame["value"] *= 1 + frame["site"].map(SITES.index)
    for shared, scales in ((True, 1), (False, len(SITES))):
        drawn = GateValues(shared=shared).draw(frame)
        assert len({axes.images[0].get_clim() for axes in drawn.axes if axes.images}) == scales
        assert len({axes.get_ylim() for axes in drawn.axes[:7]}) == scales
    assert [axes.get_title() for axes in drawn.axes if axes.get_title()] == SITES


def test_sites_of_one_name_are_told_apart() -> None:
    figure, frame = GateValues(), of_decoder(3, 2)
    titles = [axes.get_title() for axes in figure.draw(frame).axes if axes.get_title()]
    assert titles[3:6] == ["attention\no_proj", "cross\nq_proj", "cross\no_proj"]
    across = frame.groupby(["part", "site", "layer"])["value"].std(ddof=0).mean()
    assert f"averaged over sites and layers: {across:.2g}" in " ".join(figure.sentences(frame))
    both = pd.concat([summary(3).assign(stack=stack, part="attention") for stack in STACKS], ignore_index=True)
    names = [label.get_text() for label in GateSummary().draw(both).axes[0].get_yticklabels()]
    assert names[6:8] == ["encoder attention down_proj", "decoder attention q_proj"]


def test_a_summary_leaves_missing_cells_empty_and_no_saturation_undrawn() -> None:
    frame = summary(4, kinds=("scalar",))
    frame.loc[frame["layer"] == 2, "saturation"] = np.nan
    drawn = {
        axes.get_title(): axes.images[0].get_array() for axes in GateSummary().draw(frame).axes if axes.get_title()
    }
    assert drawn["scalar: saturated share"].mask.any(axis=0).tolist() == [False, True, False, False]
    none = GateSummary().draw(frame.assign(saturation=0.0))
    assert not [axes for axes in none.axes if "saturated" in axes.get_title()]


def test_residual_adds_are_in_order_of_depth() -> None:
    frame = adds(2)
    order = [(stack, layer, part) for stack, parts in STACKS.items() for layer in (1, 2) for part in parts]
    drawn = ResidualShares().draw(frame)
    for axes, (_, own) in zip(drawn.axes, frame.groupby("share", sort=False), strict=True):
        found = {x: y for line in axes.get_lines() if len(line.get_label()) for x, y in line.get_xydata()}
        expected = own.set_index(["stack", "layer", "part"])["mean"]
        assert [found[place] for place in range(1, len(order) + 1)] == [expected[at] for at in order]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "1", "2"]


def test_shares_that_hardly_differ_look_so_and_all_panels_span_as_much() -> None:
    frame = blocks(9)
    frame["mean"] = frame["low"] = frame["high"] = frame["share"].map(dict(zip(SAS, (0.95, 0.05, 0.05), strict=True)))
    spans = {round(high - low, 6) for low, high in (axes.get_ylim() for axes in ResidualShares().draw(frame).axes)}
    assert len(spans) == 1
    assert spans.pop() > 0.1


def test_convolutions_have_the_median_and_the_greatest_of_what_is_not_0() -> None:
    frame = logged()
    frame.loc[(frame["depth"] == 2) & (frame["step"] == 1), "norm"] = 0.0  # a branch that is switched off
    table = ConvGradients().table(frame)
    for row, own in frame.groupby("row"):
        seen = own.pivot(index="depth", columns="step", values="norm").replace(0, np.nan)
        mine = table[table["row"] == row]
        np.testing.assert_allclose(mine["median"], seen.median(axis=1))
        np.testing.assert_allclose(mine["greatest"], seen.max(axis=1))
        np.testing.assert_allclose(mine[["step 1", "step 10", "step 20"]], seen.fillna(0))
    frame = logged(1, 3, range(1, 1001))
    frame.loc[(frame["step"] == 2) & (frame["depth"] == 1), "norm"] = 1e6
    table = ConvGradients().table(frame)
    steps = [column for column in table if column.startswith("step ")]
    assert (len(steps), steps[0], steps[-1]) == (60, "step 1", "step 1000")
    assert table["greatest"].max() == 1e6, "thinned out in the maps alone"


def test_the_paper_is_repeated_beside_its_own_method_alone() -> None:
    frame = gradients(9).assign(mean=1.0)
    sas = frame["row"] == "sas"
    frame.loc[sas, "mean"] = np.where(frame.loc[sas, "block"] <= 3, 4.0, 2.0)
    said = " ".join(BlockGradients().sentences(frame))
    assert "The gradient of sas is 4 times that of x + F in the lower third" in said
    assert said.count("so it is here") == 2
    other = frame.assign(mean=np.where(sas, frame["block"] / 20, 1.0))
    assert " ".join(BlockGradients().sentences(other)).count("here it is the other way round") == 2
    assert "paper" not in " ".join(BlockGradients().sentences(frame.assign(method="rezero")))


def test_mixtures_are_drawn_line_by_line() -> None:
    """Two stacks keep their lines apart; the read-out is the last; dispersion has no colours."""
    figure = Mixing().draw(mixed(1))
    assert isinstance(figure, Figure)
    read, stream_, apart, _ = figure.axes
    named = [f"{stack} {line}" for stack in STACKS for line in ("1 attention", "1 mlp", "read-out")]
    assert [label.get_text() for label in read.get_yticklabels()] == named
    assert [bar.get_width() for bar in apart.patches if bar.get_width() > 0] == [0.1, 0.1]
    assert np.ma.getmaskarray(stream_.images[0].get_array())[:, 0].tolist() == [True, True, False] * 2
    assert "logarithmic above 1" in " ".join(Mixing().sentences(mixed(1)))  # since there is a 9
