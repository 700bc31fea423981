"""`start`: which run of another recipe each run starts from, and what can be wrong with that."""

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


def load(folder: Path, started: str = STARTED, source: str = SMALL, **options: Any) -> LoadedRecipe:
    return load_recipe(write(folder, started, source), catalogue(), **options)


def plan(loaded: LoadedRecipe, scale: str = "smoke") -> list[RunSpec]:
    return plan_on(loaded, scale, lambda settings: ("print", "content"))


def problems(folder: Path, started: str, source: str = SMALL) -> list[str]:
    with pytest.raises(RecipeError) as error:
        load(folder, started, source)
    return [str(problem) for problem in error.value.problems]


def test_runs_start_from_the_run_of_their_row_and_seed(tmp_path):
    every = plan(load(tmp_path))
    assert [(run.row, run.seed) for run in every] == [("plain", 3), ("gated", 3), ("plain", 4), ("gated", 4)]
    for run in every:
        assert run.start is not None
        source = run.start.run
        assert (source.table, source.row, source.column, source.seed) == ("source", run.row, "tiny", run.seed)
        assert source.scale == "smoke"
        assert source.method == run.method
        assert run.start.new == ("head",)
        assert run.sources == [source]
    source = load_recipe(tmp_path / "source.yaml", catalogue())
    (same,) = plan_on(source, "smoke", lambda _: ("print", "content"), rows="plain", seeds=[3])
    assert same.id == every[0].start.run.id  # trained for either table, it is trained once


def test_row_column_and_seed_can_be_named(tmp_path):
    two = SMALL.replace("      tiny:\n", "      other: {settings: {model: {size: tiny}}}\n      tiny:\n")
    start = "{recipe: source.yaml, row: extra, column: other, seed: 1}"
    (run, *_) = plan(load(tmp_path, STARTED.replace("{recipe: source.yaml, new: [head]}", start), two))
    assert (run.sources[0].row, run.sources[0].column, run.sources[0].seed) == ("extra", "other", 1)


def test_the_row_wins_over_the_column_and_this_over_the_recipe(tmp_path):
    text = STARTED.replace("one: {}", "one: {start: {recipe: source.yaml, drop: [c]}}\n  two: {}")
    text = text.replace("plain: {method: pre-ln}", "plain: {method: pre-ln, start: {recipe: source.yaml, drop: [r]}}")
    text = text.replace("columns:\n", "  bare: {method: pre-ln, start: null}\ncolumns:\n")
    starts = load(tmp_path, text).starts["smoke"]
    assert {cell: (start.new, start.drop) for cell, start in starts.items()} == {
        ("plain", "one"): ((), ("r",)),
        ("gated", "one"): ((), ("c",)),
        ("plain", "two"): ((), ("r",)),
        ("gated", "two"): (("head",), ()),
    }


def test_what_is_set_is_not_for_the_source_and_added_rows_are(tmp_path):
    loaded = load(tmp_path, overrides=["train.steps=20"], also={"dyt": "dyt", "wide": {"name": "comt", "hidden": 8}})
    every = {run.row: run for run in plan(loaded)}
    assert {run.settings.train.steps for run in every.values()} == {20}
    assert {run.sources[0].settings.train.steps for run in every.values()} == {100}
    assert every["wide"].sources[0].method == every["wide"].method
    assert every["dyt"].sources[0].method["name"] == "dyt"


def test_a_source_can_start_from_another_one(tmp_path):
    (tmp_path / "first.yaml").write_text(SMALL, encoding="utf-8")
    source = SMALL.replace("seeds: [1, 2]", "seeds: [1, 2]\nstart: {recipe: first.yaml}")
    (run, *_) = plan(load(tmp_path, STARTED, source))
    assert [source.table for source in run.sources] == ["first", "source"]


RECIPE = "recipe: source.yaml"
SMOKE = "  smoke: {description: quick}"
WRONG = {
    "no such recipe": ("source.yaml", "sorce.yaml", "line 5: start.recipe"),
    "no recipe named": (RECIPE, "row: plain", "line 5: start.recipe"),
    "unknown key": (RECIPE, "recipe: source.yaml, rows: [a]", "line 5: start.rows -> row"),
    "no such row": (RECIPE, "recipe: source.yaml, row: plan", "line 5: start.row -> plain"),
    "no such column": (RECIPE, "recipe: source.yaml, column: tinny", "line 5: start.column -> tiny"),
    "a row of another name": ("  gated:", "  gatd:", "line 5: start.row -> gated"),
    "no such scale": (SMOKE, f"{SMOKE}\n  small: {{description: slow}}", "line 5: start.recipe"),
    "several columns": (SMOKE, f"{SMOKE}\n  paper: {{description: slow}}", "line 5: start.column"),
    "in a row": (
        "method: pre-ln", "method: pre-ln, start: {recipe: source.yaml, seed: -1}",
        "line 11: rows.plain.start.seed",
    ),
    "in a column": (
        "one: {}", "one: {start: {recipe: source.yaml, row: gate}}", "line 14: columns.one.start.row -> gated",
    ),
    "a part twice": ("[head]", "[head, head]", "line 5: start.new"),
    "no name of a part": ("[head]", "['head.*']", "line 5: start.new[0]"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_told_once_with_its_line(old, new, expected, tmp_path):
    assert_only_problem(STARTED, old, new, expected, lambda text: load(tmp_path, text))


def test_what_is_wrong_in_the_source_is_told_with_its_file(tmp_path):
    found = problems(tmp_path, STARTED, SMALL.replace("method: mix-ln", "method: mixln"))
    assert len(found) == 1
    assert found[0].startswith(f"{tmp_path}/source.yaml, line 25: rows.extra.method: ")


def test_a_circle_is_an_error(tmp_path):
    source = SMALL.replace("seeds: [1, 2]", "seeds: [1, 2]\nstart: {recipe: started.yaml}")
    (only,) = problems(tmp_path, STARTED, source)
    assert only.startswith(f"{tmp_path}/source.yaml, line 7: start.recipe: ")
    assert only.endswith("started.yaml -> source.yaml -> started.yaml")
    (itself,) = problems(tmp_path, STARTED.replace("source.yaml", "started.yaml"))
    assert itself.startswith("line 5: start.recipe: ")
