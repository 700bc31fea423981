"""`comt show`: what is counted and printed of a plan, for this machine and another, and the settings of a cell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tiny_recipe import TEXT, recipe
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.campaign import estimate, processes
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.models import accounting
from comt_cli.recipe.load import load_recipe
from comt_cli.training import speed

WIDTHS = recipe(
    "widths",
    {"pre-ln": "pre-ln", "comt": "comt"},
    seeds=[1, 2],
    settings={**TEXT, "model": {"size": "tiny", "layers": 1}, "train": {"steps": 20, "batch_size": 2}},
    columns={name: {"settings": {"model": {"width": width}}} for name, width in (("narrow", 32), ("wide", 64))},
)
SETTINGS = """\
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
TABLE, OWN = "recipes/mine/table.yaml", "recipes/setups/own.yaml"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    """Nothing counted, and nothing measured: every step takes as many seconds as it has 1e9 FLOPs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(speed, "measured_step_flops", lambda spec, device, threads: 1e9)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for module in (estimate, processes):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)
    accounting._COUNTED.clear()
    for name, text in {TABLE: SETTINGS, OWN: SETUP, "text.txt": "a text", "widths.yaml": WIDTHS}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


def show(*arguments: str):
    result = CliRunner().invoke(app, ["show", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result


def widths(*arguments: str):
    return show("widths.yaml", "--device", "cpu", *arguments)


def test_without_costs_nothing_is_counted(monkeypatch):
    monkeypatch.setattr("comt_cli.models.accounting.count", None)
    result = widths("--no-cost", "--set", "train.deterministic=false")
    assert result.stderr == ""
    assert "8 runs, 8 to do. Costs were not counted." in result.stdout
    rows = json.loads(widths("--no-cost", "--json").stdout)
    assert [row["parameters"] for row in rows] == [None] * 8
    assert {row["state"] for row in rows} == {"missing"}


def test_times_are_of_each_run_and_of_as_many_at_once_as_asked():
    rows = json.loads(widths("--json", "--jobs", "2").stdout)
    assert [row["estimated_seconds"] for row in rows] == [round(row["flops"] / 1e9, 1) for row in rows]
    assert {row["estimated_from"] for row in rows} == {"a training step measured here"}
    assert re.search(r"8 runs, 8 to do, about 1\d s, 2 at a time on", widths("--jobs", "2").stdout)
    assert "at a time" not in widths("--jobs", "1").stdout


PAPERS = ("transponder/table2", "--rows", "pre-ln", "--columns", "openwebtext/60m", "--scale", "paper")


def planned(*arguments: str) -> dict:
    (row,) = json.loads(show(*PAPERS, "--json", *arguments).stdout)
    return row


def test_a_plan_for_another_machine_assumes_a_share_of_its_peak():
    one, eight = planned("--plan-for", "l40s"), planned("--plan-for", "L40S", "--gpus", "8")
    assert one["estimated_from"] == "an assumption: 40% of the 362 TFLOP/s that L40S has at most by its data sheet"
    assert one["estimated_seconds"] == pytest.approx(one["flops"] / (0.4 * 362e12), rel=1e-3)
    assert eight["estimated_seconds"] == pytest.approx(one["estimated_seconds"] / 8, rel=1e-3)
    assert eight["estimated_memory_bytes"] < one["estimated_memory_bytes"]


def settings(*arguments: str) -> dict[str, tuple[object, str]]:
    entries = json.loads(show(TABLE, *arguments, "--json").stdout)
    return {entry["key"]: (entry["value"], entry["given_by"]) for entry in entries}


def test_every_setting_is_there_with_the_line_that_gave_it():
    found = settings("--settings", "gated,one", "--set", "train.beta1=0.8")
    assert found["method.name"] == ("comt", f"{TABLE}:12")
    assert found["method.hidden"] == (3, f"{TABLE}:12")
    assert found["method.residual"] == ("pre-norm", "default")
    assert found["model.width"] == (16, f"{OWN}:4")
    assert found["model.layers"][1] == "size tiny"
    assert found["data.sequence_length"] == (32, f"{OWN}:3")
    assert found["train.learning_rate"] == (3e-3, f"{TABLE}:15")
    assert found["train.batch_size"] == (2, f"{TABLE}:8")
    assert found["train.steps"] == (7, f"{TABLE}:23")
    assert found["train.beta1"] == (0.8, "--set train.beta1=0.8")
    assert found["train.beta2"] == (0.999, "default")
    told = load_recipe(Path(TABLE), catalogue()).settings["smoke"]["gated", "one"].model_dump(mode="json")
    assert {key for key in found if not key.startswith("method.")} == {
        f"{section}.{key}" for section, values in told.items() for key in values
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((TABLE, "--settings", "gatd,one"), "there is no row 'gatd'"),
        ((TABLE, "--settings", "gated"), "--settings gated: say under which column"),
        ((TABLE, "--settings", "gated,one", "--gpus", "2"), "it goes with neither"),
        ((*PAPERS, "--plan-for", "h10"), "There are H200, H100 PCIe, "),
        ((*PAPERS, "--plan-for", "h100", "--device", "cpu"), "Leave one of them out."),
        ((*PAPERS, "--plan-for", "h100", "--gpus", "7"), "Choose --gpus so that it divides train.batch_size"),
    ],
)
def test_what_cannot_be_shown_is_told(arguments, says):
    error = CliRunner().invoke(app, ["show", *arguments]).exception
    assert isinstance(error, UserError)
    assert says in str(error)
