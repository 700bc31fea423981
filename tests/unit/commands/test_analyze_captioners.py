"""`comt analyze-gates` of captioners: what they are observed on, and which files come of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from caption_cases import caption_spec
from tiny_runs import dataset_of
from typer.testing import CliRunner

from comt_cli.analysis.gates import observed_gates
from comt_cli.analysis.observed import observed_image
from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import write_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedCaptioner
from comt_cli.layers.initialise import initialise
from comt_cli.models.build import model_of
from comt_cli.runs.plan import RunSpec

CAPTION = "a red 7"


def write_run(folder: Path, spec: RunSpec) -> str:
    """A run directory with a checkpoint, as if trained a little, so that it says various words."""
    model, generator = model_of(spec).to_empty(device="cpu"), torch.Generator().manual_seed(0)
    initialise(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(0.1 * torch.randn(parameter.shape, generator=generator))
    tokenizer = dataset_of(spec).tokenizer
    folder.mkdir()
    belongs = {"vocabulary": tokenizer.vocabulary_size, "tokenizer": tokenizer.to_json()}
    about = {"spec": spec.model_dump(mode="json"), "id": spec.id}
    write_state(folder / "checkpoint.pt", {**about, **belongs, "model": model.state_dict()})
    return str(folder)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda name, **method: write_run(Path(name), caption_spec(row=name, method={"name": name, **method}))


def call(*arguments: str):
    result = CliRunner().invoke(app, ["analyze-gates", *arguments])
    if not isinstance(result.exception, UserError | SystemExit | None):
        raise result.exception
    return result


def stems(folder: str) -> list[str]:
    return sorted({path.stem for path in Path(folder).iterdir()})


@torch.no_grad()
def test_what_is_run_is_the_image_of_that_number_and_the_words_behind_the_begin_word(run) -> None:
    loaded = load(run("comt"), LoadedCaptioner)
    dataset = dataset_of(loaded.run)
    on = observed_image(loaded, 3, CAPTION)
    batch = dataset.test.batch(np.array([3]))
    begin = dataset.tokenizer.special.need("begin")
    caption = torch.tensor([[begin, *dataset.tokenizer.encode(CAPTION)]])
    expected = loaded.model(torch.from_numpy(batch.regions), torch.from_numpy(batch.region_mask), caption)
    torch.testing.assert_close(loaded.model(*on.inputs), expected)
    assert on.sequences["image"].pieces[:8] == ["1-1", "1-2", "1-3", "1-4", "1-5", "1-6", "2-1", "2-2"]
    assert on.sequences["caption"].pieces == ["<s>", *CAPTION.split()]
    # Keys of cross-attention read the encoded image, whose gate is as CoMT's equation has it.
    encoded_RD = loaded.model.encoded(*on.inputs[:2])[0][0]
    gate = loaded.model.decoder[1].cross.key_value.gate("k_proj")
    factors = torch.sigmoid(torch.sigmoid(encoded_RD @ gate.A.T) @ gate.B.T)
    where = {"stack": "decoder", "part": "cross", "text": "image", "site": "k_proj"}
    (found,) = [each.values for each in observed_gates(loaded, on) if (each.where, each.layer) == (where, 2)]
    np.testing.assert_allclose(found, factors.numpy(), rtol=1e-5)


@pytest.mark.usefixtures("quick_figures")
def test_regions_and_words_have_their_figures(run) -> None:
    folder = run("transponder", residual="post-norm")
    result = call(folder, "--images", "3,", "--text", CAPTION, "--out", "x")
    assert result.exit_code == 0, result.output
    by_token = [f"gate-values-by-token-{name}" for name in ("decoder-caption", "decoder-image", "encoder-image")]
    by_channel = [f"gate-values-by-channel-{stack}-mlp-down_proj" for stack in ("decoder", "encoder")]
    assert stems("x") == ["gate-summary", *by_channel, *by_token]
    for name, parts in (("encoder-image", ["attention", "mlp"]), ("decoder-image", ["cross"])):
        frame = pd.read_csv(f"x/gate-values-by-token-{name}.csv")
        assert frame["part"].unique().tolist() == parts
        assert frame["token"].nunique() == 36
    words = pd.read_csv("x/gate-values-by-token-decoder-caption.csv")
    assert words.drop_duplicates("position")["token"].tolist() == ["<s>", *CAPTION.split()]
    said = Path("x/gate-summary.txt").read_text()
    truth = dataset_of(load(folder, LoadedCaptioner).run).texts["test"].references[3][0]
    assert f"Test image 3 of scenes; a caption of it, as it was given: “{CAPTION}”" in said
    assert f"“{truth}”" in said
    assert "its 36 regions, named by row and column" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--images", "2"], "grc-c-seed1 is observed on one image at a time"),
        (["--images", "12,"], "there is no test image 12"),
        (["--text", " "], "the caption has 0 words; grc-c-seed1 takes 1 to 12"),
        (["--text", "a " * 13], "the caption has 13 words"),
        (["--site", "q_proj"], "has no gates on projections or branches"),
    ],
)
def test_what_cannot_be_observed_is_refused(run, arguments, said) -> None:
    error = call(run("grc"), *arguments, "--out", "x").exception
    assert said in error.message
    assert error.exit_status == 2
    assert not Path("x").exists()


def test_other_images_are_not_taken_for_those_of_training(run) -> None:
    loaded = load(run("grc"), LoadedCaptioner)
    other = loaded.run.model_copy(update={"data_content": "0" * 16})
    with pytest.raises(UserError, match="was trained on other images of scenes"):
        observed_image(LoadedCaptioner(**{**vars(loaded), "spec": other}))
