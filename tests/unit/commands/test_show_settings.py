"""`comt show --settings`: every setting of a cell, with the line that gave it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.load import load_recipe

RECIPE = """\
title: A table
command: train-lm
metric: perplexity
baseline: plain
seeds: [1]
settings:
  data: {tokenizer: bytes}
  train: {batch_size: 2, learning_rate: 1e-3}
rows:
  plain: {method: pre-ln}
  gated:
    method: {name: comt, hidden: 3}
    settings:
      train:
        learning_rate: 3e-3
columns:
  one: {setup: own}
  two: {settings: {data: {sequence_length: 64}}}
scales:
  smoke:
    description: Seconds
    settings:
      train: {steps: 7}
"""
SETUP = """\
# A comment.
data:
  sequence_length: 32
model: {size: tiny, width: 16, heads: 2}
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    for name, text in {"recipes/mine/table.yaml": RECIPE, "recipes/setups/own.yaml": SETUP}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    return "recipes/mine/table.yaml"


def settings(recipe: str, *arguments: str) -> dict[str, tuple[object, str]]:
    result = CliRunner().invoke(app, ["show", recipe, *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return {entry["key"]: (entry["value"], entry["given_by"]) for entry in json.loads(result.stdout)}


def test_every_setting_is_there_with_the_line_that_gave_it(recipe):
    found = settings(recipe, "--settings", "gated,one", "--set", "train.beta1=0.8")
    table, setup = "recipes/mine/table.yaml", "recipes/setups/own.yaml"
    assert found["method.name"] == ("comt", f"{table}:12")
    assert found["method.hidden"] == (3, f"{table}:12")
    assert found["method.residual"] == ("pre-norm", "default")
    assert found["model.width"] == (16, f"{setup}:4")
    assert found["model.layers"][1] == "size tiny"
    assert found["data.sequence_length"] == (32, f"{setup}:3")
    assert found["train.learning_rate"] == (3e-3, f"{table}:15")
    assert found["train.batch_size"] == (2, f"{table}:8")
    assert found["train.steps"] == (7, f"{table}:23")
    assert found["train.beta1"] == (0.8, "--set train.beta1=0.8")
    assert found["train.beta2"] == (0.999, "default")
    (loaded,) = [load_recipe(Path(recipe), catalogue(), ["train.beta1=0.8"])]
    told = loaded.settings["smoke"]["gated", "one"].model_dump(mode="json")
    assert {key for key in found if not key.startswith("method.")} == {
        f"{section}.{key}" for section, values in told.items() for key in values
    }


def test_another_cell_has_another_origin(recipe):
    found = settings(recipe, "--settings", "plain,two", "--also", "wide={name: comt, hidden: 64}")
    assert found["data.sequence_length"] == (64, "recipes/mine/table.yaml:18")
    assert found["train.learning_rate"] == (1e-3, "recipes/mine/table.yaml:8")
    added = settings(recipe, "--settings", "wide,two", "--also", "wide={name: comt, hidden: 64}")
    assert added["method.hidden"] == (64, "--also")


def test_it_is_a_table_to_read(recipe):
    lines = CliRunner().invoke(app, ["show", recipe, "--settings", "plain,one"]).output.splitlines()
    assert lines[0] == "mine/table, scale smoke: plain under one"
    (line,) = [line for line in lines if line.startswith("data.sequence_length")]
    assert line.split() == ["data.sequence_length", "32", "recipes/setups/own.yaml:3"]


@pytest.mark.parametrize(
    ("arguments", "says", "hint"),
    [
        (["--settings", "gatd,one"], "there is no row 'gatd'", "gated"),
        (["--settings", "gated,ones"], "there is no column 'ones'", "one"),
        (["--settings", "gated"], "--settings gated: say under which column", "gated,one"),
        (["--settings", "gated,one", "--scale", "smok"], "there is no scale 'smok'", "smoke"),
        (["--settings", "gated,one", "--rows", "plain", "--gpus", "2"], "does not go with --rows and --gpus", "None"),
    ],
)
def test_what_is_not_there_is_told(recipe, arguments, says, hint):
    result = CliRunner().invoke(app, ["show", recipe, *arguments])
    assert isinstance(result.exception, UserError)
    assert says in str(result.exception)
    assert hint in str(result.exception.hint)


def test_it_needs_neither_torch_nor_data(recipe):
    code = (
        "import sys; from comt_cli.app import app\n"
        "sys.argv[1:] = ['show', 'recipes/mine/table.yaml', '--settings', 'plain,one']\n"
        "try: app()\n"
        "except SystemExit as end: assert not end.code\n"
        "sys.exit(', '.join({'torch', 'numpy'} & set(sys.modules)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
