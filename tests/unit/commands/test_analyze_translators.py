"""`comt analyze-gates` of translators, from a checkpoint to files; and what does not take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_translation import toy_model, toy_spec, write_run
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError

KINDS = ("png", "pdf", "txt", "tex", "csv")
TEXT = "Two trains."


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def made(name: str, **method) -> str:
        spec = toy_spec(name, {"name": name, **method}, encoder_layers=1, decoder_layers=2)
        write_run(Path(name), spec, toy_model(spec))
        return name

    return made


def call(*arguments: str):
    result = CliRunner().invoke(app, list(arguments))
    if not isinstance(result.exception, UserError | SystemExit | None):
        raise result.exception
    return result


def stems(folder: str) -> list[str]:
    files = sorted(path.name for path in Path(folder).iterdir())
    found = list(dict.fromkeys(name.rpartition(".")[0] for name in files))
    assert files == sorted(f"{stem}.{kind}" for stem in found for kind in KINDS)
    return found


@pytest.mark.usefixtures("quick_figures")
def test_each_stack_and_text_has_its_figure(run) -> None:
    result = call("analyze-gates", run("transponder", residual="post-norm"), "--text", TEXT, "--out", "x")
    assert result.exit_code == 0, result.output
    by_token = [f"gate-values-by-token-{name}" for name in ("decoder-source", "decoder-target", "encoder-source")]
    by_channel = [f"gate-values-by-channel-{stack}-mlp-down_proj" for stack in ("decoder", "encoder")]
    assert stems("x") == ["gate-summary", *by_channel, *by_token]
    source = [*TEXT.replace(" ", "_"), "</s>"]
    for name, parts in (("encoder-source", ["attention", "mlp"]), ("decoder-source", ["cross"])):
        frame = pd.read_csv(f"x/gate-values-by-token-{name}.csv")
        assert frame["part"].unique().tolist() == parts
        tokens = frame.drop_duplicates("position")["token"].replace("<0x20>", "_").tolist()
        assert tokens == source
    target = pd.read_csv("x/gate-values-by-token-decoder-target.csv")
    assert target["part"].unique().tolist() == ["attention", "cross", "mlp"]
    assert target["token"].iloc[0] == "<s>"
    summary = pd.read_csv("x/gate-summary.csv")
    assert len(summary) == 2 * (6 + 2 * 10)
    assert f"Source: “{TEXT}”; its translation" in Path("x/gate-values-by-token-decoder-target.txt").read_text()
    assert (
        "of the decoder, on the tokens of the source" in Path("x/gate-values-by-token-decoder-source.txt").read_text()
    )


@pytest.mark.usefixtures("quick_figures")
def test_a_site_is_drawn_in_every_branch_that_has_it(run) -> None:
    folder = run("transponder")
    assert call("analyze-gates", folder, "--site", "k_proj", "--out", "x").exit_code == 0
    found = [stem.removeprefix("gate-values-by-channel-") for stem in stems("x") if "channel" in stem]
    assert found == ["decoder-attention-k_proj", "decoder-cross-k_proj", "encoder-attention-k_proj"]
    refused = call("analyze-gates", folder, "--site", "gate_proj", "--out", "y")
    assert "no channel-wise gates at gate_proj" in refused.exception.message
    assert not Path("y").exists()


@pytest.mark.usefixtures("quick_figures")
@pytest.mark.parametrize(
    ("method", "shares", "has_summary"),
    [
        ({"name": "sas"}, ["alpha", "beta", "(1-alpha)(1-beta)"], False),
        ({"name": "eau+grc"}, ["g"], True),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_residual_connections_have_their_shares_drawn(run, method, shares, has_summary) -> None:
    assert call("analyze-gates", run(**method), "--text", TEXT, "--out", "x").exit_code == 0
    found = stems("x")
    assert "residual-shares" in found
    assert ("gate-summary" in found) == has_summary
    frame = pd.read_csv("x/residual-shares.csv")
    junctions = frame[["stack", "layer", "part"]].drop_duplicates().to_numpy().tolist()
    decoder = [["decoder", layer, part] for layer in (1, 2) for part in ("attention", "cross", "mlp")]
    assert junctions == [["encoder", 1, "attention"], ["encoder", 1, "mlp"], *decoder]
    assert frame["share"].unique().tolist() == shares
    assert np.isfinite(frame[["mean", "std"]]).all(axis=None)
    if method["name"] == "eau+grc":
        assert set(pd.read_csv("x/gate-summary.csv")["kind"]) == {"evaluator"}
        assert "shown is e, the evaluator" in Path("x/gate-summary.txt").read_text()


@pytest.mark.usefixtures("quick_figures")
def test_without_a_text_a_checkpoint_is_enough(run) -> None:
    assert call("analyze-gates", run("grc"), "--out", "x").exit_code == 0
    assert "Source: “The train to Berlin" in Path("x/residual-shares.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["analyze-gates", "--images", "3"], "grc is a translator; --images is for captioners and image classifiers"),
        (["analyze-gates", "--site", "q_proj"], "has no gates on projections or branches"),
        (["analyze-gates", "--text", "a" * 40], "the text has 40 tokens; grc-c-seed1 takes 1 to 39"),
        (["plot-cosine"], "grc is a translator, not a language model"),
    ],
)
def test_what_cannot_be_drawn_is_refused(run, arguments, said) -> None:
    verb, *rest = arguments
    error = call(verb, run("grc"), *rest, "--out", "x").exception
    assert said in error.message
    assert error.exit_status == 2
    assert not Path("x").exists()
    if verb == "plot-cosine":
        assert error.hint == "comt translate, analyze-gates and average take it."
