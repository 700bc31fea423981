"""What follows training: figures of recipes are drawn from their run, once; ablations when their numbers change."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import comt_cli.commands.outcome
from comt_cli.commands.outcome import outcome_as_json, write_outcome
from comt_cli.commands.planning import Planned, plan_recipe
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.models.llama import Llama
from comt_cli.recipe.run_directory import RunDirectory

RECIPE = """
title: A figure
paper: mine
table: figure7
command: train-lm
baseline: {row}
seeds: [4, 5]
figure: {figure}
settings:
  model: {{size: tiny, width: 32, ffn_width: 48, layers: 2, heads: 4}}
  data: {{corpus: "files:{folder}/*.txt", tokenizer: bytes, sequence_length: 64}}
  train: {{steps: 1}}
rows:
  plain: {{method: pre-ln, in_paper: false}}
  gated: {{method: {method}, in_paper: false}}
columns:
  tiny: {{}}
scales:
  smoke: {{description: Small}}
"""
TABLE = """
title: A table
paper: mine
table: table7
command: train-lm
baseline: plain
seeds: [4]
settings:
  model: {{size: tiny}}
  data: {{corpus: "files:{folder}/*.txt", tokenizer: bytes, sequence_length: 64}}
  train: {{steps: 1}}
rows:
  plain: {{method: pre-ln, in_paper: false}}
  narrow: {{method: {{name: comt, hidden: 2}}, in_paper: false}}
  wide: {{method: {{name: comt, hidden: 4}}, in_paper: false}}
columns:
  tiny: {{}}
ablations:
  hidden-size: {{option: hidden}}
scales:
  smoke: {{description: Small}}
"""
RUNS, RESULTS = Path("runs"), Path("results")
FIGURE = RESULTS / "smoke" / "mine" / "figure7.png"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("a text")
    monkeypatch.chdir(tmp_path)


def figure_recipe(draw: str, method: str = "comt", row: str = "gated") -> Planned:
    path = Path("figure7.yaml")
    path.write_text(RECIPE.format(figure=draw, method=method, row=row, folder=Path.cwd()))
    return plan_recipe(path, "smoke")


def table_recipe() -> Planned:
    Path("table7.yaml").write_text(TABLE.format(folder=Path.cwd()))
    return plan_recipe(Path("table7.yaml"), "smoke")


def drawn_run(planned: Planned) -> RunDirectory:
    """The run directory that the figure is drawn from."""
    row = planned.loaded.recipe.baseline
    spec = next(spec for spec in planned.specs if spec.row == row)
    return RunDirectory.of(RUNS, spec)


def trained(planned: Planned) -> RunDirectory:
    """The run as training would leave it, with the weights of the start."""
    directory = drawn_run(planned)
    spec = next(spec for spec in planned.specs if RunDirectory.of(RUNS, spec).path == directory.path)
    directory.create(spec)
    model = Llama(spec.settings.model, 258, method_from(spec.method).wiring())
    initialise(model, 0)
    state = {"format": 1, "spec": spec.model_dump(mode="json"), "vocabulary": 258, "model": model.state_dict()}
    torch.save({**state, "tokenizer": ByteTokenizer().to_json()}, directory.checkpoint_file)
    write_json(directory.result_file, {"state": "done", "perplexity": 20.0, "device": "a CPU"})
    return directory


def outcome(planned: Planned, capsys: pytest.CaptureFixture[str], **options: bool) -> str:
    write_outcome(planned, RUNS, RESULTS, **options)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("figure", "method", "columns"),
    [
        ("{draw: residual-stream}", "pre-ln", ["layer", "position", "token", "cosine"]),
        ("{draw: gate-values, text: a castle}", "comt", ["site", "layer", "position", "token"]),
        ("{draw: channel-gates, site: q_proj}", "transponder", ["layer", "position", "token", "channel"]),
    ],
)
def test_a_figure_is_drawn_from_the_first_run_of_the_baseline(figure, method, columns, capsys) -> None:
    planned = figure_recipe(figure, method)
    directory = trained(planned)
    told = outcome(planned, capsys).splitlines()
    assert told == [f"wrote {FIGURE.with_name(f'figure7{end}')}" for end in (".png", ".pdf", ".csv", "-runs.csv")]
    frame = pd.read_csv(FIGURE.with_suffix(".csv"))
    assert list(frame)[:4] == columns
    if "castle" in figure:
        assert frame["position"].nunique() == len("a castle") + 1  # and the end of the text
    with FIGURE.with_name("figure7-runs.csv").open() as handle:
        (run,) = csv.DictReader(handle)
    assert (run["row"], run["seed"], run["device"]) == ("gated", "4", "a CPU")
    assert run["id"] == directory.path.name


def test_what_is_drawn_is_not_drawn_again_until_the_run_is_another(capsys, monkeypatch) -> None:
    planned = figure_recipe("{draw: residual-stream}", "pre-ln", "plain")
    directory = trained(planned)
    outcome(planned, capsys)
    with monkeypatch.context() as patch:
        patch.setattr(comt_cli.commands.outcome, "_draw", None)
        assert outcome(planned, capsys) == f"mine/figure7 (smoke) is drawn: {FIGURE}\n"
    later = FIGURE.stat().st_mtime + 5
    os.utime(directory.checkpoint_file, (later, later))
    assert f"wrote {FIGURE}" in outcome(planned, capsys)
    os.utime(directory.checkpoint_file, (0, 0))
    assert "is drawn" in outcome(planned, capsys)
    # As in a clone: the files are newer than any checkpoint, but of another run.
    runs_csv = FIGURE.with_name("figure7-runs.csv")
    runs_csv.write_text(runs_csv.read_text().replace(directory.path.name, "0" * 12))
    assert f"wrote {FIGURE}" in outcome(planned, capsys)
    FIGURE.with_suffix(".pdf").unlink()
    assert f"wrote {FIGURE}" in outcome(planned, capsys)


def test_a_drawn_figure_is_told_without_torch(capsys) -> None:
    planned = figure_recipe("{draw: residual-stream}")
    trained(planned)
    outcome(planned, capsys)
    code = (
        "import sys; from pathlib import Path\n"
        "from comt_cli.commands.planning import plan_recipe\n"
        "from comt_cli.commands.outcome import write_outcome\n"
        "write_outcome(plan_recipe(Path('figure7.yaml'), 'smoke'), Path('runs'), Path('results'))\n"
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"mine/figure7 (smoke) is drawn: {FIGURE}", "[]"]


def test_a_run_that_is_not_there_is_told_in_a_line(capsys) -> None:
    planned = figure_recipe("{draw: gate-values}")
    assert outcome(planned, capsys) == "mine/figure7 (smoke) is not drawn: its run (gated, tiny, seed 4) is missing.\n"
    directory = trained(planned)
    directory.result_file.write_text(json.dumps({"state": "diverged", "diverged_at": 3}))
    assert "its run (gated, tiny, seed 4) is diverged" in outcome(planned, capsys)
    directory.result_file.write_text(json.dumps({"state": "done", "perplexity": 3}))
    directory.checkpoint_file.unlink()
    assert "the checkpoint of its run (gated, tiny, seed 4) is gone" in outcome(planned, capsys)
    assert not RESULTS.exists()


def test_a_run_with_other_settings_does_not_take_a_figures_place(capsys) -> None:
    trained(figure_recipe("{draw: residual-stream}"))
    outcome(figure_recipe("{draw: residual-stream}"), capsys)
    before = FIGURE.read_bytes()
    changed = plan_recipe(Path("figure7.yaml"), "smoke", ["model.layers=3"])
    trained(changed)
    write_outcome(changed, RUNS, RESULTS, ["model.layers=3"])
    refusal = "is of another column, seed or settings (--results DIR draws it elsewhere"
    assert refusal in capsys.readouterr().out
    assert FIGURE.read_bytes() == before
    other_seed = plan_recipe(Path("figure7.yaml"), "smoke", seeds="2")
    trained(other_seed)
    assert refusal in outcome(other_seed, capsys)
    assert FIGURE.read_bytes() == before
    write_outcome(changed, RUNS, RESULTS, ["model.layers=3"], overwrite=True)
    assert FIGURE.read_bytes() != before


def test_a_network_without_such_gates_is_an_error(capsys) -> None:
    planned = figure_recipe("{draw: gate-values}", "{name: transponder, granularity: channel}")
    trained(planned)
    with pytest.raises(UserError, match="has no scalar gates to draw"):
        outcome(planned, capsys)
    assert not FIGURE.exists()


def test_a_report_tells_the_state_and_draws_nothing(capsys) -> None:
    planned = figure_recipe("{draw: gate-values}")
    trained(planned)
    state = "mine/figure7 (smoke) is not drawn yet: comt train-lm --recipe figure7.yaml --scale smoke draws it."
    assert outcome(planned, capsys, draw=False) == f"{state}\n"
    assert outcome_as_json(planned, RUNS, RESULTS)["state"] == state
    assert not RESULTS.exists()


def test_an_ablation_is_drawn_when_its_numbers_change(capsys) -> None:
    planned = table_recipe()
    for number, spec in enumerate(planned.specs):
        directory = RunDirectory.of(RUNS, spec)
        directory.create(spec)
        write_json(directory.result_file, {"state": "done", "perplexity": 20.0 + number})
    picture = RESULTS / "smoke" / "mine" / "table7-hidden-size.png"
    assert f"wrote {picture}" in outcome(planned, capsys)
    first = picture.read_bytes()
    assert str(picture) not in outcome(planned, capsys)
    write_json(directory.result_file, {"state": "done", "perplexity": 25.0})
    assert f"wrote {picture}" in outcome(planned, capsys)
    assert picture.read_bytes() != first
    with picture.with_suffix(".csv").open() as handle:
        lines = list(csv.DictReader(handle))
    assert [(line["row"], line["x"], line["value"]) for line in lines] == [
        ("plain", "", "20"),
        ("narrow", "2", "21"),
        ("wide", "4", "25"),
    ]


def test_a_table_that_is_kept_keeps_its_figures(capsys) -> None:
    planned = table_recipe()
    for spec in planned.specs:
        directory = RunDirectory.of(RUNS, spec)
        directory.create(spec)
        write_json(directory.result_file, {"state": "done", "perplexity": 20.0})
    outcome(planned, capsys)
    picture = RESULTS / "smoke" / "mine" / "table7-hidden-size.png"
    before = picture.read_bytes()
    directory.result_file.unlink()
    assert "this table 0" in outcome(planned, capsys)
    assert picture.read_bytes() == before
