"""A small recipe and run directories as training leaves them, without training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from comt_cli.methods import methods
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.recipe.plan import RunSpec, plan
from comt_cli.recipe.run_directory import RunDirectory

RECIPE = """
title: Gates & norms_50% | a test
paper: comt
table: table9
command: train-lm
baseline: pre-ln
seeds: [1, 2, 3]
settings:
  data: {corpus: python-docs, vocabulary: 512, sequence_length: 64}
  train: {steps: 200, batch_size: 8}
rows:
  post-ln: {method: post-ln, paper: {c4/130m: 26.95, c4/250m: 1409.79}}
  pre-ln: {method: pre-ln, paper: {c4/130m: 26.73, c4/250m: 21.92}}
  pre-ln+comt: {method: comt, paper: {c4/130m: 23.77, c4/250m: null}, paper_increase: {c4/130m: <1%}}
  pre-ln+own: {method: transponder, in_paper: false}
columns:
  c4/130m: {settings: {model: {size: 130m}}}
  c4/250m: {settings: {model: {size: 250m}}}
scales:
  smoke:
    description: A tiny model
    settings: {model: {size: tiny}}
    columns:
      tiny: {compare_to: c4/130m}
  paper:
    description: As published
"""

RESULT: dict[str, Any] = {
    "state": "done",
    "step": 200,
    "steps": 200,
    "tokens": 100_000,
    "loss": 3.0,
    "galore_perplexity": 30.0,
    "train_loss": 2.9,
    "parameters": 1_234_567,
    "extra_parameters": 1000,
    "extra_parameters_percent": 0.5,
    "flops": 1.5e12,
    "train_seconds": 12.5,
    "tokens_per_second": 8000.0,
    "mfu": None,
    "peak_memory_bytes": None,
    "waiting_share": 0.01,
    "device": "a test CPU",
    "git_commit": "0123456789ab",
}


@dataclass
class Bench:
    """A recipe, a folder for its runs, and ways to leave a run in every state."""

    folder: Path

    def __post_init__(self) -> None:
        self.runs, self.results = self.folder / "runs", self.folder / "results"
        self.recipe = self.folder / "table9.yaml"
        self.recipe.write_text(RECIPE, encoding="utf-8")

    def loaded(self, *overrides: str) -> LoadedRecipe:
        return load_recipe(self.recipe, methods(), overrides)

    def specs(self, scale: str = "smoke", overrides: tuple[str, ...] = (), **selection: Any) -> list[RunSpec]:
        return plan(self.loaded(*overrides), scale, lambda data: "feedfeedfeedfeed", **selection)

    def directory(self, row: str, seed: int, scale: str = "smoke", **changes: Any) -> RunDirectory:
        """The run directory of a row and seed (of the first column), made with its spec.json."""
        spec = next(spec for spec in self.specs(scale, seeds=[seed], **changes) if spec.row == row)
        directory = RunDirectory.of(self.runs, spec)
        directory.create(spec)
        return directory

    def finish(self, spec: RunSpec, value: float) -> None:
        """A run of any column that ended with this perplexity."""
        directory = RunDirectory.of(self.runs, spec)
        directory.create(spec)
        directory.result_file.write_text(json.dumps({**RESULT, "perplexity": value}), encoding="utf-8")

    def done(self, row: str, values: dict[int, float], **result: Any) -> None:
        """Runs that ended with these perplexities, by seed."""
        for seed, value in values.items():
            content = {**RESULT, "perplexity": value, **result}
            self.directory(row, seed).result_file.write_text(json.dumps(content), encoding="utf-8")

    def diverged(self, row: str, *seeds: int, **result: Any) -> None:
        common = {key: value for key, value in RESULT.items() if "perplexity" not in key and key != "loss"}
        content = {**common, "state": "diverged", "step": 120, "diverged_at": 120, "last_finite_loss": 7.25, **result}
        for seed in seeds:
            self.directory(row, seed).result_file.write_text(json.dumps(content), encoding="utf-8")

    def started(self, row: str, seed: int, steps: int = 3) -> RunDirectory:
        """A run that logged every tenth step, half a second a step, and has no result."""
        directory = self.directory(row, seed)
        numbers = range(10, 10 * steps + 1, 10)
        metrics = [{"step": n, "tokens": 512 * n, "loss": 9 - n / 100, "learning_rate": 1e-3} for n in numbers]
        timings = [{"step": n, "seconds": n / 2, "tokens_per_second": 1024.0} for n in numbers]
        evaluation = {"step": 10 * steps, "validation_loss": 8.0}
        directory.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in [*metrics, evaluation]))
        directory.timings_file.write_text("".join(json.dumps(line) + "\n" for line in timings))
        return directory


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def mixed(bench: Bench) -> Bench:
    """Three seeds each: a clear gain, a row of which a seed diverged, a baseline, a row still going on."""
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0}, extra_parameters_percent=0.0)
    bench.done("pre-ln+comt", {1: 95.0, 2: 104.0, 3: 100.0}, extra_parameters_percent=1.0)
    bench.done("post-ln", {1: 120.0, 2: 130.0})
    bench.diverged("post-ln", 3)
    bench.done("pre-ln+own", {1: 90.0}, device="another CPU")
    bench.started("pre-ln+own", 2)
    return bench
