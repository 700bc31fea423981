"""Setups, and the recipes that runs start from: where they are found, what wins, and errors by file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning_on import plan_on
from small_recipe import SMALL, assert_only_problem

from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.plan import RunSpec

SETUP = """\
model: {size: tiny}
data: {vocabulary: 400}
train:
  batch_size: 2
  beta1: 0.5
  beta2: 0.6
"""


@pytest.fixture
def shelf(tmp_path, monkeypatch, small) -> Path:
    """A folder with `mine/table1.yaml`, the small recipe whose column of scale smoke has the setup `quick`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shelf" / "mine").mkdir(parents=True)
    (tmp_path / "shelf" / "setups").mkdir()
    text = small.replace("        compare_to: c4/130m", "        setup: quick\n        compare_to: c4/130m")
    (tmp_path / "shelf" / "mine" / "table1.yaml").write_text(text)
    (tmp_path / "shelf" / "setups" / "quick.yaml").write_text(SETUP)
    return tmp_path / "shelf"


def load(shelf: Path, *overrides: str) -> LoadedRecipe:
    return load_recipe(Path(shelf.name) / "mine" / "table1.yaml", catalogue(), overrides)


def problems(shelf: Path, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load(shelf, *overrides)
    return [str(problem) for problem in caught.value.problems]


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_a_setup_comes_just_before_the_settings_of_its_place(shelf):
    change(shelf / "mine/table1.yaml", "    seeds: [7]", "    seeds: [7]\n    settings: {train: {beta1: 0.1}}")
    loaded = load(shelf)
    smoke = loaded.settings["smoke"]["plain", "tiny"]
    assert smoke.data.vocabulary == 400  # recipe's settings < column's setup
    assert smoke.train.beta1 == 0.5  # scale's settings < column's setup
    assert smoke.train.batch_size == 4  # column's setup < column's settings
    assert (smoke.train.beta2, smoke.train.steps) == (0.6, 100)
    paper = loaded.settings["paper"]["plain", "c4/130m"]
    assert (paper.train.beta2, paper.data.vocabulary) == (0.999, 300)  # the paper's columns name no setup
    (shelf / "setups" / "quick.yaml").unlink()
    (missing,) = problems(shelf)
    assert missing.startswith("line 39: scales.smoke.columns.tiny.setup: ")
    change(shelf / "mine/table1.yaml", "setup: quick", "setup: smoke")  # the program's own
    assert load(shelf).settings["smoke"]["plain", "tiny"].data.vocabulary == 2048


@pytest.mark.parametrize(
    ("old", "new", "expected", "said"),
    [
        ("  beta1: 0.5", "  beta_1: 0.5", "line 5: train.beta_1", "beta1?"),
        ("beta1: 0.5", 'beta1: "0.5"', "line 5: train.beta1", "number"),
        ("beta1: 0.5", "beta1: *b", "line 5", "alias"),
        ("beta1: 0.5", "warmup_steps: 101", "line 5: train.warmup_steps", "100"),
    ],
)
def test_a_problem_in_a_setup_names_its_file_and_line_once(shelf, old, new, expected, said):
    """A combination that cannot work is blamed on the setup if that gave the value, though the rest is the recipe's."""
    change(shelf / "setups/quick.yaml", old, new)
    (only,) = problems(shelf)
    assert only.startswith(f"shelf/setups/quick.yaml, {expected}: ")
    assert said in only


@pytest.mark.parametrize("text", ["", "- a", "train: ["])
def test_a_file_that_is_no_setup(shelf, text):
    (shelf / "setups/quick.yaml").write_text(text)
    (only,) = problems(shelf)
    assert only.startswith("shelf/setups/quick.yaml")
    assert "is not" in only


STARTED = """\
title: A table that starts from another
command: train-lm
baseline: plain
seeds: [3, 4]
start: {recipe: source.yaml, new: [head]}
settings:
  model: {size: tiny}
  data: {vocabulary: 300}
  train: {steps: 50}
rows:
  plain: {method: pre-ln}
  gated: {method: {name: comt, hidden: 4}}
columns:
  one: {}
scales:
  smoke: {description: quick}
"""


def write(folder: Path, started: str = STARTED, source: str = SMALL) -> Path:
    (folder / "source.yaml").write_text(source, encoding="utf-8")
    path = folder / "started.yaml"
    path.write_text(started, encoding="utf-8")
    return path


def load_started(folder: Path, started: str = STARTED, source: str = SMALL, **options: Any) -> LoadedRecipe:
    return load_recipe(write(folder, started, source), catalogue(), **options)


def plan(loaded: LoadedRecipe, scale: str = "smoke") -> list[RunSpec]:
    return plan_on(loaded, scale, lambda settings: ("print", "content"))


def test_runs_start_from_the_run_of_their_row_and_seed(tmp_path):
    every = plan(load_started(tmp_path))
    assert [(run.row, run.seed) for run in every] == [("plain", 3), ("gated", 3), ("plain", 4), ("gated", 4)]
    for run in every:
        (source,) = run.sources
        assert (source.table, source.row, source.column, source.seed) == ("source", run.row, "tiny", run.seed)
        assert (source.scale, source.method, run.start.new) == ("smoke", run.method, ("head",))
    source = load_recipe(tmp_path / "source.yaml", catalogue())
    (same,) = plan_on(source, "smoke", lambda _: ("print", "content"), rows="plain", seeds=[3])
    assert same.id == every[0].start.run.id  # trained for either table, it is trained once


def test_what_is_named_of_a_start_counts_and_rows_win_over_columns(tmp_path):
    text = STARTED.replace("one: {}", "one: {start: {recipe: source.yaml, row: extra, seed: 1, drop: [c]}}")
    text = text.replace("plain: {method: pre-ln}", "plain: {method: pre-ln, start: {recipe: source.yaml, drop: [r]}}")
    loaded = load_started(tmp_path, text.replace("columns:\n", "  bare: {method: pre-ln, start: null}\ncolumns:\n"))
    starts = {row: (start.row, start.seed, start.drop) for (row, _), start in loaded.starts["smoke"].items()}
    assert starts == {"plain": ("plain", None, ("r",)), "gated": ("extra", 1, ("c",))}


def test_what_is_set_is_not_for_the_source_and_added_rows_are(tmp_path):
    loaded = load_started(
        tmp_path, overrides=["train.steps=20"], also={"dyt": "dyt", "wide": {"name": "comt", "hidden": 8}}
    )
    every = {run.row: run for run in plan(loaded)}
    assert {run.settings.train.steps for run in every.values()} == {20}
    assert {run.sources[0].settings.train.steps for run in every.values()} == {100}
    assert every["wide"].sources[0].method == every["wide"].method


RECIPE = "recipe: source.yaml"
SMOKE = "  smoke: {description: quick}"
WRONG = {
    "no such recipe": ("source.yaml", "sorce.yaml", "line 5: start.recipe"),
    "no such row": (RECIPE, "recipe: source.yaml, row: plan", "line 5: start.row -> plain"),
    "a row of another name": ("  gated:", "  gatd:", "line 5: start.row -> gated"),
    "several columns": (SMOKE, f"{SMOKE}\n  paper: {{description: slow}}", "line 5: start.column"),
    "in a row": (
        "method: pre-ln", "method: pre-ln, start: {recipe: source.yaml, seed: -1}",
        "line 11: rows.plain.start.seed",
    ),
    "in a column": (
        "one: {}", "one: {start: {recipe: source.yaml, row: gate}}", "line 14: columns.one.start.row -> gated",
    ),
    "a part twice": ("[head]", "[head, head]", "line 5: start.new"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_told_once_with_its_line(old, new, expected, tmp_path):
    assert_only_problem(STARTED, old, new, expected, lambda text: load_started(tmp_path, text))


def test_what_is_wrong_in_the_source_is_told_with_its_file(tmp_path):
    def only(started: str = STARTED, source: str = SMALL) -> str:
        with pytest.raises(RecipeError) as error:
            load_started(tmp_path, started, source)
        (problem,) = error.value.problems
        return str(problem)

    broken = only(source=SMALL.replace("method: mix-ln", "method: mixln"))
    assert broken.startswith(f"{tmp_path}/source.yaml, line 25: rows.extra.method: ")
    circle = only(source=SMALL.replace("seeds: [1, 2]", "seeds: [1, 2]\nstart: {recipe: started.yaml}"))
    assert circle.startswith(f"{tmp_path}/source.yaml, line 7: start.recipe: ")
    assert circle.endswith("started.yaml -> source.yaml -> started.yaml")
    assert only(STARTED.replace("source.yaml", "started.yaml")).startswith("line 5: start.recipe: ")
