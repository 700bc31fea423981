"""Every recipe that comes with the program, at every scale, against what the papers print."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
from planning_on import plan_on
from small_recipe import shipped

from comt_cli.files import canonical_json, sha256
from comt_cli.methods import catalogue, methods
from comt_cli.recipe.find import available_recipes
from comt_cli.recipe.load import load_recipe
from comt_cli.recipe.schema import AblationName
from comt_cli.runs.plan import RunSpec

ROOT = Path(__file__).parents[3]
RECIPES = [name for name in available_recipes() if (ROOT / f"recipes/{name}.yaml").is_file()]
CELLS = list(csv.DictReader((ROOT / "tests/data/paper_cells.csv").read_text().splitlines()))
OURS = {
    *("cost", "evening-images", "evening-study", "evening-tokens", "precision", "equal-time-comt"),
    *(
        "equal-time-transponder",
        "gate-reads",
        "gate-start",
        "ladder",
        "modern",
        "optimiser",
        "retrofit",
        "retrofit-equal-time",
        "table3-tuned",
        "table3-cost",
    ),
    *("table5-cross-entropy", "start", "bert", "glue"),
}
"""Tables without a published value, or none that is known."""
BESIDE = {"table1-standard": "table1", **{f"table{n}-normal": f"table{n}" for n in (4, 5, 6)}}
"""Tables of ours that stand beside the values of a published one."""
OFFLINE = {
    *("python-docs", "python-source", "glyphs10", "glyphs100", "almanac", "scenes"),
    *("acceptability", "follows", "scene-nli", "scene-similarity"),
}
"""Data that is made here."""


def runs_of(name: str, scale: str) -> list[RunSpec]:
    """The runs, whose data is identified by its settings, without keys that the first runs did not have."""
    return plan_on(shipped(name), scale, lambda settings: (settings.data.model_dump_json(exclude={"dtype"}),) * 2)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_stands_where_it_says_and_has_the_papers_cells(name):
    loaded = shipped(name)
    recipe, text = loaded.recipe, loaded.path.read_text()
    assert f"{recipe.paper}/{recipe.table}" == name
    called = f"{recipe.table}.yaml" if recipe.paper == "comt" else name
    assert f"comt {recipe.command} --recipe {called} " in text  # how to run it
    assert (recipe.figure is not None) == (recipe.table.startswith("figure") or name == "ours/retrofit-gates")
    for row in recipe.rows:  # of a method that is only like the published one ("EAU-like") its name says so
        described = sys.modules[methods()[loaded.methods[row]["name"]].__module__].__doc__
        assert all(word.lower() in row for word in re.findall(r"\w+-like", described.splitlines()[0])), row
    cells = [cell for cell in CELLS if cell["paper"] == recipe.paper]
    own = {cell["source"] for cell in cells if cell["table"] == recipe.table}
    comment = re.sub(r"\n# ?", " ", text.partition("\n\n")[0])
    assert ("values are second-hand" in comment) == ("second-hand" in own)
    ours = {
        (row, column): (value, entry.paper_increase.get(column, ""))
        for row, entry in recipe.rows.items()
        for column, value in entry.paper.items()
        if value is not None
    }
    theirs = {
        (cell["row"], cell["column"]): (float(cell["value"]), cell["param_increase"])
        for cell in cells
        if cell["table"] == BESIDE.get(recipe.table, recipe.table)
        and cell["metric"] in (recipe.metric, recipe.columns[cell["column"]].metric)
    }
    assert ours == theirs
    assert bool(theirs) == (recipe.figure is None and recipe.table not in OURS)
    assert {(row, column) for row, entry in recipe.rows.items() for column in entry.paper_increase} <= set(theirs)


def test_every_cell_of_the_papers_has_a_recipe():
    recipes = [shipped(name).recipe for name in RECIPES]
    assert {f"{cell['paper']}/{cell['table']}" for cell in CELLS} == {
        f"{recipe.paper}/{recipe.table}"
        for recipe in recipes
        if recipe.figure is None and recipe.table not in {*BESIDE, *OURS}
    }
    assert len(CELLS) == 161 + 81 + 14 + 16  # of language models, image classifiers, translators and captioners
    assert {method["name"] for name in RECIPES for method in shipped(name).methods.values()} == set(methods())
    assert {ablation for recipe in recipes for ablation in recipe.ablations} == {*get_args(AblationName)}


@pytest.mark.parametrize("name", RECIPES)
def test_every_scale_can_be_planned_and_its_steps_overridden_alone(name):
    loaded = shipped(name)
    scales = set(loaded.recipe.scales)
    assert scales - {"evening"} in ({"smoke", "small", "paper"}, set(), {"smoke"})
    for scale in scales:
        runs = runs_of(name, scale)
        seeds = loaded.recipe.scales[scale].seeds or loaded.recipe.seeds
        points = len(loaded.grids[scale].points) if scale in loaded.grids else 1
        a_cell = len(seeds) * points
        if loaded.has_trials(scale):  # and what these choose is not known yet
            a_cell = len(seeds) + len(loaded.grids[scale].seeds) * points
        assert len(runs) == len(loaded.recipe.rows) * len(loaded.recipe.columns_at(scale)) * a_cell
        assert len({run.relative_path for run in runs}) == len(runs)
        assert all(loaded.compared_column(scale, run.column) in loaded.recipe.columns for run in runs)
        if scale != "paper":
            assert {loaded.task.data_name(run.settings).partition(" ")[0] for run in runs} <= OFFLINE
            short = load_recipe(loaded.path, catalogue(), ["train.steps=10"], scale).settings[scale]
            assert {settings.train.steps for settings in short.values()} == {10}


GOLDEN = ROOT / "tests/golden/ids.json"


def hashes() -> dict[str, dict[str, str]]:
    """By recipe and scale, 12 digits over the rows, the seeds and the ids of all runs."""
    return {
        name: {
            scale: sha256(canonical_json([[run.row, run.column, run.seed, run.id] for run in runs_of(name, scale)]))[
                :12
            ]
            for scale in shipped(name).recipe.scales
        }
        for name in RECIPES
    }


def test_the_runs_of_every_recipe_are_those_of_yesterday():
    """Every setting of every run is in its id: finished runs are found again. After a change that was meant:
    python tests/unit/recipe/test_shipped_recipes.py --write"""
    assert hashes() == json.loads(GOLDEN.read_text(encoding="utf-8"))


if __name__ == "__main__" and "--write" in sys.argv:
    GOLDEN.write_text(f"{json.dumps(hashes(), indent=1)}\n", encoding="utf-8")
