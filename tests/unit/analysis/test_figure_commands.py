"""`comt analyze-gates` and `comt plot-cosine`, from a checkpoint to files."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.data.text.settings import DataSettings
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.errors import UserError
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.models.llama import Llama
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.language import ModelSettings, Settings, TrainSettings


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


pytestmark = pytest.mark.usefixtures("quick_figures")


STEMS = [
    ({"name": "transponder"}, 2, {"gate-summary", "gate-values-by-channel-down_proj", "gate-values-by-token"}),
    ({"name": "sas"}, 2, {"residual-shares"}),
    ({"name": "comt", "residual": "mudd"}, 1, {"gate-summary", "gate-values-by-token", "mixing"}),
    ({"name": "pre-ln"}, 2, set()),
    ({"name": "lime"}, 1, set()),
]


@pytest.mark.parametrize(
    ("method", "layers", "stems"), STEMS, ids=[f"{method['name']}-{k}" for k, (method, *_) in enumerate(STEMS)]
)
def test_what_a_network_has_is_drawn(tmp_path, method, layers, stems) -> None:
    result = run("analyze-gates", save(tmp_path / "run", layers, **method), "--results", tmp_path / "out")
    if stems:
        assert result.exit_code == 0, result.output
        out = tmp_path / "out" / "smoke" / "transponder" / "figures" / "a-b-c-seed3"
        assert {path.stem for path in out.iterdir()} == stems
        assert sorted(result.output.splitlines()) == [
            f"wrote {out / stem}.{{png,pdf,txt,tex,csv}}" for stem in sorted(stems)
        ]
    else:
        assert f"has no gates to analyse: it holds method {method['name']}" in result.exception.message
        assert not (tmp_path / "out").exists()


def test_a_site_can_be_chosen_and_an_impossible_one_writes_nothing(tmp_path) -> None:
    folder = save(tmp_path / "run", name="transponder", sites=["q_proj", "k_proj"])
    for site, stem in (([], "k_proj"), (["--site", "q_proj"], "q_proj")):
        assert run("analyze-gates", folder, *site, "--out", tmp_path / "here").exit_code == 0
        assert (tmp_path / "here" / f"gate-values-by-channel-{stem}.csv").exists()
    scalar = save(tmp_path / "scalar", name="comt", sites=["v_proj"])
    for source, site in ((folder, "down_proj"), (scalar, "v_proj")):
        wrong = run("analyze-gates", source, "--site", site, "--out", tmp_path / "there")
        assert isinstance(wrong.exception, UserError)
    assert not (tmp_path / "there").exists()


def test_plot_cosine_writes_its_figure_and_the_means(tmp_path) -> None:
    result = run("plot-cosine", save(tmp_path / "run", name="pre-ln"), "--out", tmp_path / "here")
    assert result.exit_code == 0, result.output
    csv = pd.read_csv(tmp_path / "here" / "residual-stream.csv")
    assert f"cosine {csv['cosine'].mean():.3f}" in result.output


@pytest.mark.parametrize(("field", "name"), [("column", "x/../../../../out"), ("paper", "../.."), ("scale", "/tmp/x")])
def test_a_strangers_checkpoint_does_not_choose_where_figures_go(tmp_path, field, name) -> None:
    path = save(tmp_path / "run", name="pre-ln") / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    torch.save({**state, "spec": {**state["spec"], field: name}}, path)
    results = tmp_path / "a" / "b" / "results"
    result = run("plot-cosine", path, "--results", results)
    if field == "column":
        assert result.exit_code == 0
        assert all(found.is_relative_to(results / "smoke") for found in tmp_path.rglob("*.png"))
    else:
        assert f"does not fit this version of comt: {field}" in result.exception.message
