"""A recipe whose runs start from those of another: its plan, its training, its table, and its verbs' errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError

RECIPE = """\
title: {title}
command: train-lm
baseline: plain
seeds: [1]
{start}settings:
  model: {{size: tiny, width: 32, ffn_width: {ffn_width}, layers: 2, heads: 2}}
  data: {{corpus: "{corpus}", tokenizer: bytes, rows: pad, sequence_length: 48, validation_fraction: 0.2}}
  train: {{steps: 6, batch_size: 8, learning_rate: 0.003, kernels: reference}}
rows:
  plain: {{method: pre-ln}}
  gated: {{method: comt}}
columns:
  whole: {{}}
scales:
  smoke: {{description: a few seconds}}
"""


@pytest.fixture
def recipes(tiny_corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    texts = {"corpus": tiny_corpus, "ffn_width": 48}
    (tmp_path / "first.yaml").write_text(RECIPE.format(title="First", start="", **texts), encoding="utf-8")
    start = "start: {recipe: first.yaml}\n"
    (tmp_path / "second.yaml").write_text(RECIPE.format(title="Second", start=start, **texts), encoding="utf-8")
    return tmp_path


def comt(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    if status:  # the program prints it without a traceback
        assert isinstance(result.exception, UserError), result.exception
        assert result.exception.exit_status == status
        return str(result.exception)
    assert result.exit_code == 0, result.output
    return result.output


TRAIN = ("train-lm", "--recipe", "second.yaml", "--jobs", "1", "--device", "cpu")


def test_sources_are_planned_trained_and_left_out_of_the_table(recipes):
    plan = comt(*TRAIN, "--rows", "gated", "--dry-run")
    assert "to start from: own/first, whole" in plan
    assert "2 runs, 1 of them to start from, 2 to do" in plan
    assert comt("status", "second.yaml", "--scale", "smoke", "--rows", "gated").splitlines() == [
        "own/second smoke: 1 run: 1 missing",
        "  to start from: own/first smoke: 1 run: 1 missing",
    ]
    comt(*TRAIN, "--rows", "gated")
    plan = {row["table"]: row for row in json.loads(comt("show", "second.yaml", "--rows", "gated", "--json"))}
    assert set(plan) == {"own/second"}  # it is done: its source is not needed any more
    source = plan["own/second"]["start"]
    assert json.loads((recipes / "runs/by-id" / source / "spec.json").read_text())["table"] == "first"
    with (recipes / "runs/results/smoke/own/second.csv").open() as handle:
        assert {row["row"] for row in csv.DictReader(handle) if row["mean"]} == {"gated"}
    assert "  to start from: own/first smoke: 2 runs: 1 missing, 1 done" in comt("status", "second.yaml")
    assert "1 run of own/second starts from what is deleted" in " ".join(comt("rm", source, "--dry-run").split())
    assert "from what is deleted" not in comt("rm", "own/first", "own/second", "--dry-run")
    said = comt("train-lm", "--recipe", "first.yaml", "--rows", "gated", "--jobs", "1", "--device", "cpu")
    assert "1 of 1 runs are finished already" in said
    assert "gated: running" not in comt("status", "first.yaml")
    assert "1 done" in comt("status", "first.yaml")
    rows = json.loads(comt("show", "second.yaml", "--no-cost", "--json"))
    assert [(row["table"], row["row"], row["state"]) for row in rows] == [
        ("own/first", "plain", "missing"),
        ("own/second", "plain", "missing"),
        ("own/second", "gated", "done"),
    ]


def test_the_start_stands_among_the_settings_of_a_cell(recipes):
    found = {each["key"]: each for each in json.loads(comt("show", "second.yaml", "--settings", "gated", "--json"))}
    starts = {key: (each["value"], each["given_by"]) for key, each in found.items() if key.startswith("start.")}
    assert starts == {
        "start.recipe": ("first.yaml", "second.yaml:5"),
        "start.row": ("gated", "default"),
        "start.column": ("whole", "default"),
        "start.seed": (None, "default"),
        "start.new": ([], "default"),
        "start.drop": ([], "default"),
    }


def test_models_that_do_not_fit_are_told_before_anything_is_trained(recipes):
    path = recipes / "second.yaml"
    path.write_text(path.read_text().replace("ffn_width: 48", "ffn_width: 64"), encoding="utf-8")
    for command in ((*TRAIN, "--dry-run"), TRAIN):
        said = comt(*command, status=2)
        assert "own/second plain, whole, seed 1 cannot start from own/first plain, whole, seed 1: " in said
        assert "blocks.0.mlp.gate_up.weight is [96, 32] in the source, and [128, 32] in the model" in said
    assert not (recipes / "runs/by-id").exists()


def test_a_wrong_start_is_told_with_its_line(recipes):
    path = recipes / "second.yaml"
    path.write_text(path.read_text().replace("first.yaml}", "first.yaml, row: gatd}"), encoding="utf-8")
    assert "line 5: start.row: first.yaml has no row 'gatd'; did you mean gated?" in comt(*TRAIN, status=2)
