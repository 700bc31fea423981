"""A small recipe and run directories as training leaves them, without training."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from planning_on import plan_on

from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.report.exhibits.table import Table, footnotes, verdict
from comt_cli.report.frame import Record, records_of, runs_frame
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task

RECIPES = {path.stem: path.read_text(encoding="utf-8") for path in (Path(__file__).parent / "recipes").iterdir()}
RESULTS: dict[str, dict[str, Any]] = json.loads(RECIPES.pop("results"))


class Shown:
    """A table as it is shown: its cells, and its pages."""

    def __init__(self, loaded: LoadedRecipe, specs: list[RunSpec], runs: Path) -> None:
        self.runs = runs_frame(loaded, specs, runs)
        self.cells = Table().frame(self.runs)
        self.attrs, self.records = self.cells.attrs, records_of(self.cells)
        self.markdown, self.latex = Table().page(self.cells), Table().latex(self.cells)
        self.verdict, self.footnotes, self.notes = verdict(self.cells), footnotes(self.cells), self.attrs["notes"]
        self.best = list(self.cells.loc[self.cells["_best"], "row"])

    def at(self, row: str, column: str | None = None) -> Record:
        """The cell of a row, under the first column if none is named."""
        return next(
            each for each in self.cells.to_dict("records") if each["row"] == row and column in (None, each["column"])
        )


@dataclass
class Bench:
    """A recipe, a folder for its runs, and ways to leave a run in every state."""

    folder: Path
    name: str = "table9"
    text: str = RECIPES["table9"]
    metric: str = "perplexity"
    result: dict[str, Any] = field(default_factory=lambda: RESULTS["text"])

    def __post_init__(self) -> None:
        self.runs, self.results = self.folder / "runs", self.folder / "results"
        self.recipe = self.folder / "recipes" / "comt" / f"{self.name}.yaml"
        self.recipe.parent.mkdir(parents=True, exist_ok=True)
        self.recipe.write_text(self.text, encoding="utf-8")

    def loaded(self, *overrides: str) -> LoadedRecipe:
        return load_recipe(self.recipe, catalogue(), overrides)

    def specs(self, scale: str = "smoke", overrides: tuple[str, ...] = (), **selection: Any) -> list[RunSpec]:
        return plan_on(self.loaded(*overrides), scale, lambda _: ("feedfeedfeedfeed", "c0ffee"), **selection)

    def table(self, scale: str = "smoke", overrides: tuple[str, ...] = (), **selection: Any) -> Shown:
        """The table of what is there."""
        return Shown(self.loaded(*overrides), self.specs(scale, overrides, **selection), self.runs)

    def directory(self, row: str, seed: int, scale: str = "smoke", **changes: Any) -> RunDirectory:
        """The run directory of a row and seed (of the first column), made with its spec.json."""
        spec = next(spec for spec in self.specs(scale, seeds=[seed], **changes) if spec.row == row)
        directory = RunDirectory.of(self.runs, spec)
        directory.create(spec)
        return directory

    def finish(self, spec: RunSpec, value: float) -> None:
        """A run of any column that ended with this value of the metric."""
        directory = RunDirectory.of(self.runs, spec)
        directory.create(spec)
        directory.result_file.write_text(json.dumps({**self.result, self.metric: value}), encoding="utf-8")

    def done(self, row: str, values: dict[int, float], **result: Any) -> None:
        """Runs that ended with these values of the metric, by seed."""
        for seed, value in values.items():
            content = {**self.result, self.metric: value, **result}
            self.directory(row, seed).result_file.write_text(json.dumps(content), encoding="utf-8")

    def diverged(self, row: str, *seeds: int, **result: Any) -> None:
        quality = ("loss", "galore_perplexity", "bits_per_byte", "top5_accuracy")
        common = {key: value for key, value in self.result.items() if key not in quality}
        content = {**common, "state": "diverged", "step": 120, "diverged_at": 120, "last_finite_loss": 7.25, **result}
        for seed in seeds:
            self.directory(row, seed).result_file.write_text(json.dumps(content), encoding="utf-8")

    def started(self, row: str, seed: int, steps: int = 3) -> RunDirectory:
        """A run that logged every tenth step, half a second a step, and has no result."""
        directory = self.directory(row, seed)
        numbers = range(10, 10 * steps + 1, 10)
        counted = "images" if "images" in self.result else "tokens"
        metrics = [{"step": n, counted: 512 * n, "loss": 9 - n / 100, "learning_rate": 1e-3} for n in numbers]
        timings = [{"step": n, "seconds": n / 2, f"{counted}_per_second": 1024.0} for n in numbers]
        evaluation = {"step": 10 * steps, "validation_loss": 8.0}
        directory.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in [*metrics, evaluation]))
        directory.timings_file.write_text("".join(json.dumps(line) + "\n" for line in timings))
        return directory


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `recipes/comt` is a folder of recipes that go by name; no corpus is hashed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Task, "identify", lambda self, settings: ("feedfeedfeedfeed", "c0ffee"))


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


@pytest.fixture
def images(tmp_path: Path) -> Bench:
    """A table of accuracies, three seeds each: a gain, a loss, a row of which a seed diverged, a row with one seed."""
    bench = Bench(tmp_path, "table8", RECIPES["table8"], "accuracy", RESULTS["images"])
    bench.done("baseline", {1: 80.0, 2: 81.0, 3: 80.5}, extra_parameters_percent=0.0)
    bench.done("sliding-window", {1: 80.75, 2: 81.5, 3: 81.25})
    bench.done("pixel", {1: 79.0, 2: 80.25, 3: 79.25}, extra_parameters_percent=0.07)
    bench.done("pixel-4", {1: 79.9, 2: 81.05}, extra_parameters_percent=0.14)
    bench.diverged("pixel-4", 3)
    bench.done("own", {1: 85.0}, extra_parameters_percent=0.0)
    bench.started("own", 2)
    return bench
