"""Measurements of image classifiers against the same by hand on networks of two blocks."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from initialised import shaken
from tiny_runs import image_spec, pictures, train

from comt_cli.analysis.figures.gate_summary import GateSummary
from comt_cli.analysis.figures.gradients import BlockGradients, ConvGradients
from comt_cli.analysis.figures.residual_shares import ResidualShares, Sums
from comt_cli.analysis.model_figure import Subject
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedImageModel
from comt_cli.layers.initialise import initialise
from comt_cli.models.build import model_of
from comt_cli.runs.directory import RunDirectory

PICTURES = pictures()
NETS = [{"size": "resnet18"}, {"size": "preact-resnet110"}, {"size": "resnet50"}]
every_net = pytest.mark.parametrize("net", NETS, ids=str)


@pytest.fixture(autouse=True)
def prepared(monkeypatch):
    monkeypatch.setattr("comt_cli.analysis.images.prepare_images", lambda data: PICTURES)
    monkeypatch.setattr("comt_cli.analysis.images.pick_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr("comt_cli.analysis.images._PIXELS_AT_ONCE", 7 * 8 * 8)  # batches of seven, and a rest


def loaded(method, net=NETS[0], **changes) -> LoadedImageModel:
    """A model as if trained a little; its colours are not those of the images, as another machine's are."""
    spec = image_spec(method=method, model=net).model_copy(update=changes)
    model = model_of(spec).to_empty(device="cpu")
    initialise(model, 1)
    shaken(model)
    mean, std = (0.3, 0.2, 0.3), (0.2, 0.1, 0.15)
    return LoadedImageModel(model, "m", "a network", tuple("abcdefghij"), mean, std, 8, spec=spec)


def frame_of(figure, one: LoadedImageModel) -> pd.DataFrame:
    frame = figure().frame(Subject(loaded=one))
    assert figure().draw(frame).axes
    assert all(sentence.endswith(".") for sentence in figure().sentences(frame))
    return frame


@pytest.fixture
def first_16(monkeypatch):
    for module in ("residual_shares.EXAMPLES", "gate_summary.SUMMARY_IMAGES", "gradients.EXAMPLES"):
        monkeypatch.setattr(f"comt_cli.analysis.figures.{module}", 16)


def seen(one: LoadedImageModel, side: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first images of a side as the model sees them, [B, 3, S, S], and their labels."""
    images = getattr(PICTURES, side)
    colours = torch.tensor(images.pixels[:count]).double() / 255
    x = (colours - torch.tensor(one.mean)) / torch.tensor(one.std)
    return x.float().permute(0, 3, 1, 2), torch.from_numpy(images.labels[:count])


def rest(model, y, first: int) -> torch.Tensor:
    """The logits from the output of block `first` - 1."""
    for block in model.blocks[first:]:
        y = block(y)
    return model.classifier(model.final(y).mean(dim=(2, 3)))


@every_net
def test_gradients_at_blocks_are_those_of_single_images(net, first_16) -> None:
    models = {"plain": loaded("addition", net), "sas": loaded("sas-resnet", net)}
    of = Subject()
    of.models = models
    frame = BlockGradients().frame(of)
    assert BlockGradients().draw(frame).axes
    assert frame["row"].tolist() == ["plain", "plain", "sas", "sas"]
    assert frame["block"].tolist() == frame["stage"].tolist() == [1, 2, 1, 2]
    for row, one in models.items():
        model = one.model.eval()
        norms = np.zeros((2, 16))
        for number, (x, label) in enumerate(zip(*seen(one, "train", 16), strict=True)):
            y = model.pool(model.stem(x[None]))
            for block in range(2):
                y = model.blocks[block](y)
                leaf = y.detach().requires_grad_()
                F.cross_entropy(rest(model, leaf, block + 1), label[None]).backward()
                norms[block, number] = leaf.grad.norm()
        mine = frame[frame["row"] == row]
        np.testing.assert_allclose(mine["mean"], norms.mean(axis=1), rtol=1e-4)
        np.testing.assert_allclose(mine["std"], norms.std(axis=1), rtol=1e-3)
    assert frame["examples"].tolist() == [16] * 4


def test_percentiles_are_of_all_channels_and_parts_within_bounds() -> None:
    """1024 channels, half of them 0 and half 1, in parts of many numbers and of few: no channel is passed over."""
    sums = Sums()
    for images in (100, 1):
        sums.add(torch.cat([torch.zeros(512), torch.ones(512)])[:, None].expand(images, 1024, 16))
    assert sums.moments() == pytest.approx({"mean": 0.5, "std": 0.5, "low": 0.0, "high": 1.0})
    for _ in range(30):
        sums.add(torch.full((10_000,), 9.0))
    assert len(sums.drawn) == 1 << 16
    assert sums.drawn.untyped_storage().nbytes() == 8 << 16
    assert float((sums.drawn == 9).double().mean()) == pytest.approx(300_000 / (300_000 + 101 * 1024 * 16), abs=0.01)


@torch.no_grad()
def test_shares_are_what_the_gates_of_a_connection_say(first_16) -> None:
    """Of SAS, which averages over the pixels, and of a number: alpha, beta and gamma have gates of their own."""
    one, given = loaded({"name": "sas-resnet", "gamma": "free"}), {}
    gates = {
        (number, share): getattr(block.connection, f"{share}_gate")
        for number, block in enumerate(one.model.blocks, start=1)
        for share in ("alpha", "beta", "gamma")
    }
    for at, gate in gates.items():
        gate.register_forward_hook(lambda _, __, value, at=at: given.setdefault(at, []).append(value.double().numpy()))
    frame = ResidualShares().frame(Subject(loaded=one))
    assert [*frame[["block", "share"]].itertuples(index=False, name=None)] == list(gates)
    assert frame["stage"].tolist() == frame["block"].tolist()
    for line in frame.itertuples():
        values = np.concatenate([part.ravel() for part in given[line.block, line.share]])
        assert line.examples == 16
        expected = [values.mean(), values.std(), *np.percentile(values, [10, 90])]
        np.testing.assert_allclose([line.mean, line.std, line.low, line.high], expected, rtol=1e-5, atol=1e-8)
    one = loaded("rezero")
    numbers = [float(next(block.connection.parameters())) for block in one.model.blocks]
    np.testing.assert_allclose(frame_of(ResidualShares, one)["mean"], numbers, rtol=1e-6)
    with pytest.raises(UserError, match="has no learned shares: it holds a network"):
        frame_of(ResidualShares, loaded("addition"))


@torch.no_grad()
def test_the_summary_of_maps_is_over_all_pixels_of_all_images(first_16) -> None:
    one = loaded({"name": "comt-pixel", "hidden": 3})
    for block in one.model.blocks:
        block.norms["norm1"].gate.b.fill_(3.0)  # some near 1
    frame, model, given = frame_of(GateSummary, one), one.model.eval(), {}

    def keep(at, gate, scaled, z_BCHW, u_BhHW):
        given[at] = gate.values(u_BhHW)["scalar"][:, 0]
        return scaled(z_BCHW, u_BhHW)

    for number, block in enumerate(model.blocks, start=1):
        for name, norm in block.norms.items():
            norm.gate.scaled = partial(keep, (number, name), norm.gate, norm.gate.scaled)
    model(seen(one, "validation", 16)[0])
    for (block, name), value in given.items():
        expected = value.double().numpy()
        line = frame[(frame["layer"] == block) & (frame["site"] == name)].iloc[0]
        assert [line["mean"], line["std"]] == pytest.approx([expected.mean(), expected.std()], rel=1e-3)
        assert line["p5"] == pytest.approx(np.percentile(expected, 5), rel=1e-3)
        assert line["saturation"] == pytest.approx(((expected < 0.05) | (expected > 0.95)).mean(), abs=0.01)
    assert frame["saturation"].max() > 0.1
    assert set(frame["examples"]) == {16}
    with pytest.raises(UserError, match="trained on other images of glyphs10"):
        frame_of(GateSummary, loaded("comt-pixel", data_content="another"))
    one.model.classifier.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="are not finite numbers"):
        frame_of(GateSummary, one)


def logged(epochs: float = 5, **runs: RunDirectory) -> pd.DataFrame:
    return ConvGradients().frame(Subject(runs, epochs=epochs))


def test_logged_norms_are_listed_from_the_input_on(tmp_path) -> None:
    spec = image_spec(method="comt-sliding-window", steps=12, gradient_norms_every=4)
    run = train(spec, tmp_path)
    frame = logged(window=run, again=run)
    one = frame[frame["row"] == "window"]
    names = ["stem", *(f"blocks.{block}.conv{number}" for block in (0, 1) for number in (1, 2)), "blocks.1.shortcut"]
    assert one["step"].unique().tolist() == [1, 4, 8, 12]
    assert one["convolution"].tolist() == names * 4
    assert one["depth"].tolist() == [1, 2, 3, 4, 5, 6] * 4
    np.testing.assert_allclose(one["epoch"], one["step"] * 8 / 50_000)
    lines = {line["step"]: line["norms"] for line in run.gradients()}
    for line in one.itertuples():
        assert line.norm == lines[line.step][f"{line.convolution}.convolution.weight"]
    assert logged(window=run, epochs=5 * 8 / 50_000)["step"].unique().tolist() == [1, 4]
    frame.loc[(frame["depth"] == 2) & (frame["step"] == 1), "norm"] = 0.0  # a branch that is switched off
    table = ConvGradients().table(frame)
    seen = frame[frame["row"] == "window"].pivot(index="depth", columns="step", values="norm").replace(0, np.nan)
    mine = table[table["row"] == "window"]
    np.testing.assert_allclose(mine["median"], seen.median(axis=1))
    np.testing.assert_allclose(mine["greatest"], seen.max(axis=1))
    np.testing.assert_allclose(mine[["step 1", "step 4", "step 8", "step 12"]], seen.fillna(0))
    with pytest.raises(UserError, match="has logged no gradient norms"):
        logged(row=train(image_spec(steps=1), tmp_path))
