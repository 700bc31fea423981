"""`comt analyze-gates` and `comt plot-cosine`, from a checkpoint to files."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from comt_cli.analysis.figures.gate_values import GateValues
from comt_cli.analysis.subject import Request, Subject
from comt_cli.app import app
from comt_cli.data.text.settings import DataSettings
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.errors import UserError
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.models.llama import Llama
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.language import Settings, TrainSettings
from comt_cli.tasks.settings.llama import ModelSettings


def save(folder: Path, layers: int = 2, **method) -> Path:
    """A run directory's checkpoint with a network as it is at the start."""
    settings = Settings(
        model=ModelSettings(size="tiny", width=32, ffn_width=48, layers=layers, heads=4),
        data=DataSettings(tokenizer="bytes", sequence_length=64),
        train=TrainSettings(steps=1),
    )
    names = {"paper": "transponder", "table": "t", "command": "train-lm", "scale": "smoke", "row": "a/b", "column": "c"}
    spec = RunSpec(**names, seed=3, method=method, settings=settings, data_fingerprint="none")
    model = Llama(settings.model, 258, method_from(method).wiring())
    initialise(model, 0)
    state = {"format": 1, "spec": spec.model_dump(mode="json"), "vocabulary": 258, "model": model.state_dict()}
    folder.mkdir()
    torch.save({**state, "tokenizer": ByteTokenizer().to_json()}, folder / "checkpoint.pt")
    return folder


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.usefixtures("quick_figures")
def test_analyze_gates_writes_every_figure_and_says_where(tmp_path) -> None:
    folder = save(tmp_path / "run", name="transponder")
    result = run("analyze-gates", folder, "--text", "a castle", "--results", tmp_path / "results")
    assert result.exit_code == 0, result.output
    out = tmp_path / "results" / "smoke" / "transponder" / "figures" / "a-b-c-seed3"
    stems = ("gate-summary", "gate-values-by-channel-down_proj", "gate-values-by-token")
    assert sorted(result.output.splitlines()) == [f"wrote {out / stem}.{{png,pdf,txt,tex,csv}}" for stem in stems]
    kinds = ("png", "pdf", "txt", "tex", "csv")
    assert all((out / f"{stem}.{kind}").stat().st_size > 0 for stem in stems for kind in kinds)
    csv = pd.read_csv(out / "gate-values-by-token.csv")
    frame = GateValues().frame(Subject(Request("a castle"), loaded=load(folder, LoadedModel)))
    pd.testing.assert_frame_equal(csv, frame, rtol=1e-5, check_dtype=False)


@pytest.mark.usefixtures("quick_figures")
def test_analyze_gates_of_scalar_gates(tmp_path) -> None:
    folder = save(tmp_path / "run", name="comt", sites=["v_proj"])
    result = run("analyze-gates", folder / "checkpoint.pt", "--out", tmp_path / "here")
    assert result.exit_code == 0, result.output
    assert sorted({path.stem for path in (tmp_path / "here").iterdir()}) == ["gate-summary", "gate-values-by-token"]
    said = (tmp_path / "here" / "gate-summary.txt").read_text(encoding="utf-8")
    assert "learning rate 0.001, comt (sites v_proj)" in said
    wrong = run("analyze-gates", folder, "--site", "v_proj", "--out", tmp_path / "there")
    assert isinstance(wrong.exception, UserError)
    assert "are scalars" in wrong.exception.message
    assert not (tmp_path / "there").exists()


@pytest.mark.usefixtures("quick_figures")
def test_a_site_can_be_chosen_and_an_impossible_one_writes_nothing(tmp_path) -> None:
    folder = save(tmp_path / "run", name="transponder", sites=["q_proj", "k_proj"])
    for site, stem in (([], "k_proj"), (["--site", "q_proj"], "q_proj")):
        assert run("analyze-gates", folder, *site, "--out", tmp_path / "here").exit_code == 0
        assert (tmp_path / "here" / f"gate-values-by-channel-{stem}.csv").exists()
    wrong = run("analyze-gates", folder, "--site", "down_proj", "--out", tmp_path / "there")
    assert isinstance(wrong.exception, UserError)
    assert not (tmp_path / "there").exists()


@pytest.mark.usefixtures("quick_figures")
def test_residual_connections_that_learn_have_their_shares_drawn(tmp_path) -> None:
    folder = save(tmp_path / "run", name="sas")
    assert run("analyze-gates", folder, "--text", "a castle", "--out", tmp_path / "here").exit_code == 0
    assert {path.stem for path in (tmp_path / "here").iterdir()} == {"residual-shares"}
    frame = pd.read_csv(tmp_path / "here" / "residual-shares.csv")
    assert frame.groupby(["layer", "part"], sort=False).size().to_dict() == {
        (layer, part): 3 for layer in (1, 2) for part in ("attention", "mlp")
    }
    assert set(frame["tokens"]) == {len("a castle")}
    refused = run("analyze-gates", save(tmp_path / "plain", name="pre-ln"), "--out", tmp_path / "there")
    assert "has no gates to analyse: it holds method pre-ln" in refused.exception.message


@pytest.mark.usefixtures("quick_figures")
def test_plot_cosine_writes_its_figure_and_the_means(tmp_path) -> None:
    folder = save(tmp_path / "run", name="pre-ln")
    result = run("plot-cosine", folder, "--out", tmp_path / "here")
    assert result.exit_code == 0, result.output
    csv = pd.read_csv(tmp_path / "here" / "residual-stream.csv")
    assert f"cosine {csv['cosine'].mean():.3f}" in result.output
    assert list(csv) == ["layer", "position", "token", "cosine", "angle", "update_cosine", "norm_ratio"]


@pytest.mark.usefixtures("quick_figures")
def test_a_strangers_checkpoint_does_not_choose_where_figures_go(tmp_path) -> None:
    folder = save(tmp_path / "run", name="pre-ln")
    path = folder / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    results = tmp_path / "a" / "b" / "results"
    for field, name in (("paper", "x/../../../out"), ("column", "x/../../../../out")):
        torch.save({**state, "spec": {**state["spec"], field: name}}, path)
        assert run("plot-cosine", folder, "--results", results).exit_code == 0
    assert {found.name for found in tmp_path.rglob("*.png")} == {"residual-stream.png"}
    assert all(found.is_relative_to(results / "smoke") for found in tmp_path.rglob("*.png"))
    for field in ("paper", "scale"):
        for name in ("../..", "/tmp/evil"):
            torch.save({**state, "spec": {**state["spec"], field: name}}, path)
            refused = run("plot-cosine", folder, "--results", results)
            assert isinstance(refused.exception, UserError)
            assert f"does not fit this version of comt: {field}" in refused.exception.message


@pytest.mark.parametrize("verb", ["analyze-gates", "plot-cosine", "export"])
def test_a_missing_model_is_named(verb, tmp_path) -> None:
    result = run(verb, tmp_path / "nothing.pt", *([tmp_path / "out"] if verb == "export" else []))
    assert isinstance(result.exception, UserError)
    assert "nothing.pt" in result.exception.message


@pytest.mark.usefixtures("quick_figures")
def test_a_single_block_has_no_earlier_values_and_mixes_what_it_puts_out(tmp_path) -> None:
    gated = run("analyze-gates", save(tmp_path / "a", 1, name="comt", residual="mudd"), "--out", tmp_path / "here")
    assert gated.exit_code == 0, gated.output
    assert {"gate-summary", "mixing"} <= {path.stem for path in (tmp_path / "here").iterdir()}
    refused = run("analyze-gates", save(tmp_path / "b", 1, name="lime"), "--out", tmp_path / "there")
    assert "has no gates to analyse: it holds method lime" in refused.exception.message
