"""A task is declared in two files and found by being there: `tests/copying` has a third one, which no other file names.

Its verb trains and reports like those of the tasks that came with the program.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from one_process import answers
from same_bits import differ
from tiny_recipe import quick_recipe
from tiny_runs import write_corpus

ROOT = Path(__file__).resolve().parents[2]
COMT_FILE = ROOT / "tests/copying/comt.py"
COMT = (sys.executable, str(COMT_FILE))
RECIPE = """\
title: Copying
command: train-copying
baseline: plain
seeds: [1]
settings:
  model: {size: tiny, width: 32, ffn_width: 48, layers: 2, heads: 2}
  train: {steps: 90, batch_size: 16, learning_rate: 0.003, warmup_steps: 5, save_every: 7, log_every: 1}
rows:
  plain: {method: pre-ln}
  gated: {method: comt}
columns:
  whole: {}
  symbols: {metric: right}
  test: {metric: test_right}
scales:
  smoke: {description: a few seconds}
"""


def comt(*arguments: str) -> str:
    """Output of a command, on either stream. One thread: two machines then differ in rounding alone."""
    done = subprocess.run([*COMT, *arguments], capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def write(folder: Path, recipe: str = RECIPE, name: str = "copy.yaml") -> Path:
    path = folder / name
    path.write_text(recipe, encoding="utf-8")
    return path


def runs_below(folder: Path) -> dict[str, Path]:
    """The run directories by row."""
    return {json.loads((path / "spec.json").read_text())["row"]: path for path in folder.glob("by-id/*")}


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoint.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a table that was trained in one go, and what was said of it."""
    folder = tmp_path_factory.mktemp("copying")
    recipe = write(folder)
    places = ("--runs", str(folder / "runs"), "--results", str(folder / "results"))
    return folder, comt("train-copying", "--recipe", str(recipe), "--jobs", "1", *places)


def test_no_other_file_names_it():
    named = [path for path in ROOT.glob("comt_cli/**/*.py") if "train-copying" in path.read_text(encoding="utf-8")]
    assert named == []


def test_its_verb_and_its_recipes_are_there(trained, tmp_path):
    folder, _ = trained
    wrong = RECIPE.replace("baseline: plain", "baseline: plain\nmetric: rigth").replace("size: tiny", "size: tyni")
    wrong = wrong.replace("  train:", "  data: {symbol: 7}\n  train:")
    of_images = RECIPE.replace("method: comt", "method: comt-pixel")
    write(tmp_path, letters(tmp_path), "letters.yaml")
    misfit = RECIPE.replace("settings:", start().replace(f", drop: {HEADS}", ""), 1)
    paths = [write(tmp_path, text, f"{i}.yaml") for i, text in enumerate((wrong, of_images, misfit))]
    commands = [
        ("--help",),
        ("train-copying", "--help"),
        *(("show", str(path), "--runs", str(tmp_path / "runs")) for path in paths),
        ("status", str(folder / "copy.yaml"), "--runs", str(folder / "runs")),
    ]
    with_the_task = f"import sys; sys.path.insert(0, {str(COMT_FILE.parent)!r}); import comt"
    (helped, verbs), (_, options), *refused, (known, status) = (
        each[:2] for each in answers(commands, tmp_path, before=with_the_task)
    )
    assert (helped, known, [code for code, _ in refused]) == (0, 0, [2, 2, 2])
    assert "train-copying" in verbs
    assert "--recipe" in options
    assert "6 runs: 6 done" in status
    mistakes, wrong_method, wrong_start = (said for _, said in refused)
    assert re.search("line 4: metric: .*'rigth'.*did you mean right", mistakes), mistakes
    assert "line 7: settings.model.size: there is no size 'tyni'; did you mean tiny?" in mistakes
    assert "line 8: settings.data.symbol: unknown key; did you mean symbols?" in mistakes
    assert "rows.gated.method: there is no method for train-copying called 'comt-pixel'" in wrong_method
    assert "whole, seed 1 cannot start from own/letters plain, tiny, seed 1: embedding.weight is [" in wrong_start
    assert "in the source, and not in the model" in wrong_start


def test_a_table_is_written_and_its_columns_share_their_runs(trained):
    folder, said = trained
    assert "2 runs: 2 done" in said
    with (folder / "results/smoke/own/copy.csv").open() as handle:
        cells = list(csv.DictReader(handle))
    assert [(cell["row"], cell["column"], cell["metric"]) for cell in cells] == [
        ("plain", "whole", "copied"),
        ("gated", "whole", "copied"),
        ("plain", "symbols", "right"),
        ("gated", "symbols", "right"),
        ("plain", "test", "test_right"),
        ("gated", "test", "test_right"),
    ]
    runs = runs_below(folder / "runs")
    assert set(runs) == {"plain", "gated"}
    for cell in cells:
        result = json.loads((runs[cell["row"]] / "result.json").read_text())
        assert float(cell["mean"]) == pytest.approx(result[cell["metric"]])
        assert cell["run_ids"] == result["id"]
        assert result["test_loss"] != result["loss"]  # of other sequences
    page = (folder / "results/smoke/own/copy.md").read_text()
    assert "whole: sequences copied without a mistake, in per cent (higher is better); symbols: symbols copied" in page


def letters(folder: Path) -> str:
    """A recipe of language models, which copying may start from, on texts in the folder."""
    return quick_recipe("letters", write_corpus(folder / "texts"), {"plain": "pre-ln", "gated": "comt"}, {"steps": 4})


HEADS = "[embedding, head]"
"""Parts that do not fit another task: its symbols are no letters."""


def start() -> str:
    """The line of a recipe whose runs start from those of `letters`, and the key that follows."""
    return f"start: {{recipe: letters.yaml, new: {HEADS}, drop: {HEADS}}}\nsettings:"


@pytest.mark.slow
def test_it_can_start_from_a_run_of_another_task(tmp_path):
    write(tmp_path, letters(tmp_path), "letters.yaml")
    recipe = write(tmp_path, RECIPE.replace("settings:", start(), 1).replace("steps: 90", "steps: 6"))
    command = ("train-copying", "--recipe", str(recipe), "--rows", "gated", "--jobs", "2", "--device", "cpu")
    said = comt(*command, "--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results"))
    assert "2 runs: 2 done" in said
    by_command = {json.loads((run / "spec.json").read_text())["command"]: run for run in tmp_path.glob("runs/by-id/*")}
    copying, language = by_command["train-copying"], by_command["train-lm"]
    assert json.loads((copying / "result.json").read_text())["start"] == language.name
    assert differ(weights(copying)["final_norm.weight"], torch.ones(32))
