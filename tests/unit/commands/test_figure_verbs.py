"""`comt analyze-gates`, `plot-gradients` and `plot-images`, from checkpoints and runs to files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_runs import caption_spec, dataset_of, image_spec, pictures, train, write_language_model
from toy_translation import toy_model, toy_spec, write_run
from typer.testing import CliRunner, Result

from comt_cli.analysis.observed import observed_gates, observed_image
from comt_cli.app import app
from comt_cli.data.images.sets import glyphs
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import write_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedCaptioner
from comt_cli.layers.initialise import initialise
from comt_cli.models.build import model_of
from comt_cli.runs.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("quick_figures")

KINDS = ("png", "pdf", "txt", "tex", "csv")
TEXT, CAPTION = "Two trains.", "a red 7"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("comt_cli.analysis.images.prepare_images", lambda data: pictures())


def translator(name: str, **method) -> str:
    spec = toy_spec(name, {"name": name, **method}, encoder_layers=1, decoder_layers=2)
    write_run(Path(name), spec, toy_model(spec))
    return name


def captioner(name: str, **method) -> str:
    """A run directory with a checkpoint, as if trained a little, so that it says various words."""
    spec = caption_spec(row=name, method={"name": name, **method})
    model, generator = model_of(spec).to_empty(device="cpu"), torch.Generator().manual_seed(0)
    initialise(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.1 * torch.randn(parameter.shape, generator=generator))
    tokenizer = dataset_of(spec).tokenizer
    Path(name).mkdir()
    belongs = {"vocabulary": tokenizer.vocabulary_size, "tokenizer": tokenizer.to_json()}
    about = {"spec": spec.model_dump(mode="json"), "id": spec.id}
    write_state(Path(name) / "checkpoint.pt", {**about, **belongs, "model": model.state_dict()})
    return name


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if not isinstance(result.exception, UserError | SystemExit | None):
        raise result.exception
    return result


def drawn(*arguments: object) -> list[str]:
    """The stems of the figures that a call writes to x."""
    result = call(*arguments, "--out", "x")
    assert result.exit_code == 0, result.exception or result.output
    files = sorted(path.name for path in Path("x").iterdir())
    found = list(dict.fromkeys(name.rpartition(".")[0] for name in files))
    assert files == sorted(f"{stem}.{kind}" for stem in found for kind in KINDS)
    return found


def refused(*arguments: object) -> str:
    error = call(*arguments, "--out", "y").exception
    assert isinstance(error, UserError)
    assert error.exit_status == 2
    assert not Path("y").exists()
    return str(error)


def read(stem: str) -> pd.DataFrame:
    return pd.read_csv(f"x/{stem}.csv")


def language_model(folder: str, /, **method) -> str:
    return str(write_language_model(Path(folder), method))


STEMS = [
    ({"name": "transponder"}, ["gate-summary", "gate-values-by-channel-down_proj", "gate-values-by-token"]),
    ({"name": "sas"}, ["residual-shares"]),
    ({"name": "comt", "residual": "mudd"}, ["gate-summary", "gate-values-by-token", "mixing"]),
]


@pytest.mark.parametrize(("method", "stems"), STEMS, ids=[str(k) for k, _ in enumerate(STEMS)])
def test_what_a_network_has_is_drawn(method, stems) -> None:
    assert drawn("analyze-gates", language_model("run", **method)) == stems


def test_a_site_can_be_chosen_and_an_impossible_one_writes_nothing() -> None:
    folder = language_model("run", name="transponder", sites=["q_proj", "k_proj"])
    assert "gate-values-by-channel-k_proj" in drawn("analyze-gates", folder)
    assert "gate-values-by-channel-q_proj" in drawn("analyze-gates", folder, "--site", "q_proj")
    refused("analyze-gates", folder, "--site", "down_proj")
    refused("analyze-gates", language_model("scalar", name="comt", sites=["v_proj"]), "--site", "v_proj")
    found = refused("analyze-gates", language_model("plain", name="pre-ln"))
    assert "has no gates to analyse: it holds method pre-ln" in found


@pytest.mark.parametrize(("field", "name"), [("column", "x/../../../../out"), ("paper", "../.."), ("scale", "/tmp/x")])
def test_a_strangers_checkpoint_does_not_choose_where_figures_go(tmp_path, field, name) -> None:
    path = Path(language_model("run", name="pre-ln")) / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    torch.save({**state, "spec": {**state["spec"], field: name}}, path)
    results = tmp_path / "a" / "b" / "results"
    result = call("plot-cosine", path, "--results", results)
    if field == "column":
        assert result.exit_code == 0
        assert all(found.is_relative_to(results / "smoke") for found in tmp_path.rglob("*.png"))
    else:
        assert f"does not fit this version of comt: {field}" in result.exception.message


BY_CHANNEL = [f"gate-values-by-channel-{stack}-mlp-down_proj" for stack in ("decoder", "encoder")]


def test_each_stack_and_text_of_a_translator_has_its_figure() -> None:
    folder = translator("transponder", residual="post-norm")
    by_token = [f"gate-values-by-token-{name}" for name in ("decoder-source", "decoder-target", "encoder-source")]
    assert drawn("analyze-gates", folder, "--text", TEXT) == ["gate-summary", *BY_CHANNEL, *by_token]
    for name, parts in (("encoder-source", ["attention", "mlp"]), ("decoder-source", ["cross"])):
        frame = read(f"gate-values-by-token-{name}")
        assert frame["part"].unique().tolist() == parts
        tokens = frame.drop_duplicates("position")["token"].replace("<0x20>", "_").tolist()
        assert tokens == [*TEXT.replace(" ", "_"), "</s>"]
    assert "no channel-wise gates at gate_proj" in refused("analyze-gates", folder, "--site", "gate_proj")
    assert "transponder is a translator, not a language model" in refused("plot-cosine", folder)


def test_residual_connections_have_their_shares_drawn() -> None:
    for name, shares, has_summary in (
        ("sas", ["alpha", "beta", "(1-alpha)(1-beta)"], False),
        ("eau+grc", ["g"], True),
    ):
        found = drawn("analyze-gates", translator(name), "--text", TEXT)
        assert ("gate-summary" in found, "residual-shares" in found) == (has_summary, True)
        frame = read("residual-shares")
        decoder = [["decoder", layer, part] for layer in (1, 2) for part in ("attention", "cross", "mlp")]
        junctions = frame[["stack", "layer", "part"]].drop_duplicates().to_numpy().tolist()
        assert junctions == [["encoder", 1, "attention"], ["encoder", 1, "mlp"], *decoder]
        assert frame["share"].unique().tolist() == shares
        assert np.isfinite(frame[["mean", "std"]]).all(axis=None)


@torch.no_grad()
def test_what_is_run_is_the_image_of_that_number_and_the_words_behind_the_begin_word() -> None:
    loaded = load(captioner("comt"), LoadedCaptioner)
    dataset = dataset_of(loaded.run)
    on = observed_image(loaded, 3, CAPTION)
    batch = dataset.test.batch(np.array([3]))
    begin = dataset.tokenizer.special.need("begin")
    caption = torch.tensor([[begin, *dataset.tokenizer.encode(CAPTION)]])
    expected = loaded.model(torch.from_numpy(batch.regions), torch.from_numpy(batch.region_mask), caption)
    torch.testing.assert_close(loaded.model(*on.inputs), expected)
    # Keys of cross-attention read the encoded image, whose gate is as CoMT's equation has it.
    encoded_RD = loaded.model.encoded(*on.inputs[:2])[0][0]
    gate = loaded.model.decoder[1].cross.key_value.gate("k_proj")
    factors = torch.sigmoid(torch.sigmoid(encoded_RD @ gate.A.T) @ gate.B.T)
    where = {"stack": "decoder", "part": "cross", "text": "image", "site": "k_proj"}
    (found,) = [each.values for each in observed_gates(loaded, on) if (each.where, each.layer) == (where, 2)]
    np.testing.assert_allclose(found, factors.numpy(), rtol=1e-5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, RunDirectory]:
    """Three short runs, which nobody may change."""
    folder = tmp_path_factory.mktemp("runs")
    options = {"steps": 4, "gradient_norms_every": 2}
    methods = {"plain": "addition", "pixel": "comt-pixel", "sas": "sas-resnet"}
    return {name: train(image_spec(method=method, **options), folder) for name, method in methods.items()}


def test_gradients_of_one_run_and_of_several_are_drawn(runs, tmp_path) -> None:
    assert call("plot-gradients", runs["pixel"].path, "--results", "r").exit_code == 0
    frame = pd.read_csv("r/smoke/comt/figures/a-row-tiny-seed1/conv-gradients.csv")
    assert set(frame["row"]) == {"a-row-tiny-seed1 (comt-pixel)"}
    assert {"step 1", "step 2", "step 4"} < set(frame)
    logged = [line["norms"]["stem.convolution.weight"] for line in runs["pixel"].gradients()]
    assert frame["greatest"][0] == pytest.approx(max(logged), rel=1e-5)
    for others in (["plain", "plain", "pixel"], ["plain", "sas"], ["pixel", "plain"]):
        assert call("plot-gradients", *(runs[name].path for name in others), "--results", "r").exit_code == 0
    several = [pd.read_csv(path)["row"].unique() for path in Path("r/smoke/comt/figures").glob("*.csv")]
    shown = {frozenset(name.partition("(")[2].rstrip(")") for name in names) for names in several}
    assert len(several) == 2, "the third is the first in another order"
    assert shown == {frozenset({"addition", "comt-pixel"}), frozenset({"addition", "sas-resnet"})}


def test_gates_of_images_are_summed_up_and_connections_drawn_as_shares(runs) -> None:
    assert drawn("analyze-gates", runs["pixel"].path) == ["gate-summary"]
    summary = read("gate-summary")
    assert summary[["site", "layer"]].to_numpy().tolist() == [["norm1", 1], ["norm1", 2], ["norm2", 1], ["norm2", 2]]
    assert "residual-shares" in drawn("analyze-gates", runs["sas"].path)
    for name, arguments, said in (
        ("plain", [], "has no gates to analyse: it holds method addition"),
        ("pixel", ["--text", "a"], "is an image classifier, which takes no such option"),
    ):
        assert said in refused("analyze-gates", runs[name].path, *arguments)


def test_a_data_set_is_drawn_as_a_network_sees_it(monkeypatch) -> None:
    monkeypatch.setenv("COMT_CACHE", "cache")
    monkeypatch.setattr(glyphs, "IMAGES", {"train": 60, "validation": 10})
    assert drawn("plot-images", "glyphs10", "--size", "16", "--augmentation", "crop") == ["glyphs10-16-crop"]
    frame = pd.read_csv("x/glyphs10-16-crop.csv", dtype={"class": str})
    assert sorted(frame["index"]) == list(range(60))  # six of each class: all there are
    assert frame["class"].tolist() == ["35689BEGRS"[label] for label in frame["label"]]
    assert (frame["row"] == frame["label"]).all()
    assert frame.groupby("row")["column"].max().tolist() == [5] * 10
