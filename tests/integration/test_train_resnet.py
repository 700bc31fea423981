"""`comt train-resnet` from the recipe to the table, and `comt train-lm` beside it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app

RECIPE = """
title: Two rows on letters
paper: comt
table: tiny-letters
command: train-resnet
metric: accuracy
baseline: plain
seeds: [1, 2]
rows:
  plain: {method: addition, paper: {letters: 91.0}}
  pixel: {method: {name: comt-pixel, hidden: 2}, paper: {letters: 92.0}}
columns:
  letters:
    settings:
      model: {width: 4, blocks: [1, 1]}
      data: {images: glyphs10, size: 8, train_images: 64, validation_images: 20, augmentation: crop}
scales:
  smoke:
    description: Seconds
    settings:
      train: {steps: 6, batch_size: 16, log_every: 3, kernels: reference}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "letters.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return str(path)


def comt(*arguments: str) -> str:
    """Run a verb; its standard output. A `UserError` is raised as it is."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_recipe_becomes_a_table(recipe, tmp_path):
    folders = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--jobs", "1"]
    said = comt("train-resnet", "--recipe", recipe, "--rows", "plain", *folders)
    assert "plain" in said
    comt("train-resnet", "--recipe", recipe, *folders)
    results = [json.loads(path.read_text()) for path in sorted((tmp_path / "runs" / "by-id").glob("*/result.json"))]
    assert len(results) == 4
    assert all(result["state"] == "done" and result["evaluation"]["images"] == 20 for result in results)
    with (tmp_path / "results" / "smoke" / "own" / "letters.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [row["row"] for row in rows] == ["plain", "pixel"]
    plain = [result["accuracy"] for result in results if not result["extra_parameters"]]
    assert float(rows[0]["mean"]) == pytest.approx(sum(plain) / 2, rel=1e-3)
    assert "done" in comt("status", recipe, "--runs", str(tmp_path / "runs"))
