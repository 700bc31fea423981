"""A plan as it comes: the first lines before anything is counted, a column once it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.campaign import estimate, jobs
from comt_cli.commands.plan_costs import Trained
from comt_cli.commands.planning import plan_recipe
from comt_cli.commands.show import print_plan
from comt_cli.models import accounting
from comt_cli.training import speed

RECIPE = """
title: Two widths
paper: mine
table: widths
command: train-lm
baseline: pre-ln
seeds: [1, 2]
settings:
  model: {size: tiny, layers: 1}
  data: {tokenizer: bytes, corpus: "files:*.txt", sequence_length: 16}
  train: {steps: 20, batch_size: 2}
rows:
  pre-ln: {method: pre-ln, in_paper: false}
  comt: {method: comt, in_paper: false}
columns:
  narrow: {settings: {model: {width: 32}}}
  wide: {settings: {model: {width: 64}}}
scales:
  smoke: {description: Small}
"""


@pytest.fixture(autouse=True)
def recipe(tmp_path, monkeypatch) -> None:
    """Nothing counted, and nothing measured: every step takes as many seconds as it has 1e9 FLOPs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(speed, "measured_step_flops", lambda spec, device, threads: 1e9)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for module in (estimate, jobs):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)
    accounting._COUNTED.clear()
    Path("text.txt").write_text("a text")
    Path("widths.yaml").write_text(RECIPE)


def show(*arguments: str):
    result = CliRunner().invoke(app, ["show", "widths.yaml", "--device", "cpu", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_what_is_counted_is_said_once():
    assert show().stderr == "counting 4 networks ...\n"
    assert show().stderr == ""
    assert show("--set", "model.layers=2", "--rows", "comt", "--columns", "wide").stderr == "counting 1 network ...\n"
    assert show("--set", "train.steps=30").stderr == "", "the steps are nothing to a network"


def test_each_column_is_printed_before_the_next_is_counted(monkeypatch, capsys):
    planned = plan_recipe("widths.yaml", "smoke")
    heard = []
    count = accounting.cost_of

    def counted(spec):
        heard.append((spec.column, capsys.readouterr().out))
        return count(spec)

    monkeypatch.setattr(accounting, "cost_of", counted)
    print_plan(planned, Path("runs"), Trained("cpu"))
    assert "Two widths (" in heard[0][1]
    assert "narrow" not in heard[0][1]
    before_wide = "".join(out for _, out in heard[: [column for column, _ in heard].index("wide") + 1])
    assert "narrow" in before_wide
    assert "wide" not in before_wide


def test_finished_runs_are_read_once(monkeypatch):
    heard = []
    monkeypatch.setattr(estimate, "finished_runs", lambda *arguments: heard.append(arguments) or [])
    show()
    assert len(heard) == 1


def test_a_batch_that_cannot_be_shared_is_refused():
    result = CliRunner().invoke(app, ["show", "widths.yaml", "--device", "cpu", "--gpus", "3"])
    assert "a batch of 2 rows cannot be shared evenly by 3 processes" in str(result.exception)


def test_without_costs_nothing_is_counted(monkeypatch):
    monkeypatch.setattr("comt_cli.models.counting.count", None)
    result = show("--no-cost")
    assert result.stderr == ""
    assert "8 runs, 8 to do. Costs were not counted." in result.stdout
    rows = json.loads(show("--no-cost", "--json").stdout)
    assert [row["parameters"] for row in rows] == [None] * 8
    assert {row["state"] for row in rows} == {"missing"}


def test_json_is_clean_and_has_the_times():
    result = show("--json", "--jobs", "2")
    rows = json.loads(result.stdout)
    assert [row["estimated_seconds"] for row in rows] == [round(row["flops"] / 1e9, 1) for row in rows]
    assert {row["estimated_from"] for row in rows} == {"a training step measured here"}


def test_the_whole_counts_what_runs_at_once():
    assert re.search(r"8 runs, 8 to do, about 1\d s, 2 at a time on", show("--jobs", "2").stdout)
    assert ", 8 at a time on" in show("--jobs", "1000").stdout
    one = show("--jobs", "1").stdout
    assert "8 runs, 8 to do, about" in one
    assert "at a time" not in one
    assert "Time is estimated from a training step measured here; memory" in one
