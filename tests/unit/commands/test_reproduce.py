"""`comt reproduce`: which recipes it takes, and whose figures it draws. Nothing is trained here."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

import comt_cli.commands.analyze_gates
import comt_cli.commands.plot_cosine
import comt_cli.methods
import comt_cli.training.launch
from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.methods import Method, Wiring, methods
from comt_cli.recipe.problems import RecipeError
from comt_cli.recipe.run_directory import RunDirectory

RECIPE = """
title: One
paper: mine
table: one
command: train-lm
baseline: pre-ln
seeds: [1, 2]
settings:
  model: {{size: tiny}}
  data: {{corpus: "files:{folder}/*.txt", tokenizer: bytes}}
  train: {{steps: 1}}
rows:
  post-ln: {{method: post-ln, in_paper: false}}
  pre-ln: {{method: pre-ln, in_paper: false}}
  own: {{method: own, in_paper: false}}
columns:
  tiny: {{}}
scales:
  {scale}: {{description: Small}}
"""


class Own(Method):
    """A user's gated method, whose options are its own."""

    name: ClassVar[str] = "own"

    def wiring(self) -> Wiring:
        from comt_cli.layers.gates import ComtGate
        from comt_cli.layers.residual import PreNorm

        return Wiring(PreNorm, {"q_proj": partial(ComtGate, hidden=2, init="normal")})


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(verb, row) of every figure; the runs are `done` as soon as they are asked for."""
    (tmp_path / "text.txt").write_text("a text")
    calls: list[tuple[str, str]] = []

    def train_on(gpus, specs, runs, device) -> None:
        calls.append(("train", specs[0].table))
        for spec in specs:
            directory = RunDirectory.of(runs, spec)
            directory.create(spec)
            directory.checkpoint_file.touch()
            write_json(directory.result_file, {"state": "done", "perplexity": 20.0})

    registered = {**methods(), "own": Own}
    monkeypatch.setattr(comt_cli.methods, "methods", lambda: registered)
    monkeypatch.setattr(comt_cli.training.launch, "train_on", train_on)
    for module, verb in (
        (comt_cli.commands.plot_cosine, "plot_cosine"),
        (comt_cli.commands.analyze_gates, "analyze_gates"),
    ):
        monkeypatch.setattr(module, verb, lambda path, results, verb=verb: calls.append((verb, Path(path).parts[-3])))
    monkeypatch.chdir(tmp_path)
    write_recipe("one")
    return calls


def write_recipe(table: str, scale: str = "smoke") -> Path:
    path = Path("recipes/mine") / f"{table}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RECIPE.format(folder=Path.cwd(), scale=scale).replace("table: one", f"table: {table}"))
    return path


def reproduce(*options: str):
    return CliRunner().invoke(app, ["reproduce", "--papers", "mine", *options])


def test_figures_of_the_first_seeds_baseline_and_of_whatever_has_gates(drawn) -> None:
    result = reproduce()
    assert result.exit_code == 0, result.output
    figures = [("plot_cosine", "pre-ln"), ("plot_cosine", "own"), ("analyze_gates", "own")]
    assert drawn == [("train", "one"), *figures]


def test_a_recipe_without_the_scale_is_skipped_and_named(drawn) -> None:
    write_recipe("two", "paper")
    result = reproduce()
    assert result.exit_code == 0, result.output
    assert "skipped: mine/two has no scale smoke, only paper" in result.stderr
    assert [name for verb, name in drawn if verb == "train"] == ["one"]
    assert isinstance(reproduce("--scale", "small").exception, UserError)


def test_a_broken_recipe_is_an_error_before_anything_is_trained(drawn) -> None:
    path = write_recipe("two")
    path.write_text(path.read_text().replace("baseline: pre-ln", "baseline: pre"))
    assert isinstance(reproduce().exception, RecipeError)
    assert drawn == []
