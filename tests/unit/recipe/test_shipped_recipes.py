"""Every recipe that comes with the program, at every scale, against what the papers print."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
from planning_on import plan_on

from comt_cli.methods import catalogue, methods
from comt_cli.recipe.load import LoadedRecipe, available_recipes, load_recipe
from comt_cli.recipe.schema import AblationName
from comt_cli.recipe.yaml_lines import read
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.language import Settings

ROOT = Path(__file__).parents[3]
RECIPES = sorted(path for path in (ROOT / "recipes").glob("*/*.yaml") if path.parent.name != "setups")
CELLS = list(csv.DictReader((ROOT / "tests/data/paper_cells.csv").read_text().splitlines()))
COMMANDS = {path: read(path).data["command"] for path in RECIPES}
LANGUAGE = [path for path in RECIPES if COMMANDS[path] == "train-lm" and path.parent.name != "ours"]
SMOKE_RUNS = 70
"""So many runs of a language model at scale smoke, trained once each, fit into a quarter of an hour on two cores."""

OURS = {
    *("cost", "evening-images", "evening-study", "evening-tokens", "precision", "equal-time-comt"),
    *("equal-time-transponder", "gate-start", "ladder", "modern", "table3-tuned", "table3-cost"),
    *("table5-cross-entropy", "start", "bert", "glue"),
}
"""Tables without a published value, or none that is known."""
BESIDE = {"table1-standard": "table1", **{f"table{n}-normal": f"table{n}" for n in (4, 5, 6)}}
"""Tables of ours that stand beside the values of a published one."""


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(params=RECIPES, ids=name_of)
def loaded(request) -> LoadedRecipe:
    return load_recipe(request.param, catalogue())


@pytest.fixture(params=LANGUAGE, ids=name_of)
def language(request) -> LoadedRecipe:
    return load_recipe(request.param, catalogue())


@pytest.fixture(scope="module")
def all_loaded() -> dict[str, LoadedRecipe]:
    return {name_of(path): load_recipe(path, catalogue()) for path in RECIPES}


@pytest.fixture(scope="module")
def all_language(all_loaded) -> dict[str, LoadedRecipe]:
    return {name_of(path): all_loaded[name_of(path)] for path in LANGUAGE}


def runs_of(loaded: LoadedRecipe, scale: str) -> list[RunSpec]:
    return plan_on(loaded, scale, lambda _: ("print", "content"))


def test_every_recipe_has_a_name():
    assert {path.resolve() for path in available_recipes().values()} >= set(RECIPES)


def test_a_recipe_stands_where_it_says(loaded):
    paper, table = loaded.recipe.paper, loaded.recipe.table
    assert (paper, table) == (loaded.path.parent.name, loaded.path.stem)
    name = f"{table}.yaml" if paper == "comt" else f"{paper}/{table}"
    assert f"comt {loaded.recipe.command} --recipe {name} " in loaded.path.read_text()  # how to run it
    assert (loaded.recipe.figure is not None) == table.startswith("figure")


def test_rows_of_a_method_that_is_only_like_the_published_one_say_so(loaded):
    """What the first words of a method's file declare ("EAU-like"), tables and figures show beside its numbers."""
    for row in loaded.recipe.rows:
        described = sys.modules[methods()[loaded.methods[row]["name"]].__module__].__doc__
        assert all(word.lower() in row for word in re.findall(r"\w+-like", described.splitlines()[0])), row


def test_every_cell_and_increase_is_the_papers(loaded):
    recipe = loaded.recipe
    ours = {
        (row, column): (value, entry.paper_increase.get(column, ""))
        for row, entry in recipe.rows.items()
        for column, value in entry.paper.items()
        if value is not None
    }
    theirs = {
        (cell["row"], cell["column"]): (float(cell["value"]), cell["param_increase"])
        for cell in CELLS
        if (cell["paper"], cell["table"]) == (recipe.paper, BESIDE.get(recipe.table, recipe.table))
        and cell["metric"] in (recipe.metric, recipe.columns[cell["column"]].metric)
    }
    assert ours == theirs
    assert bool(theirs) == (recipe.figure is None and recipe.table not in OURS)
    printed = {(row, column) for row, entry in recipe.rows.items() for column in entry.paper_increase}
    assert printed <= set(theirs)


def test_every_cell_of_the_papers_has_a_recipe(all_loaded):
    assert {f"{cell['paper']}/{cell['table']}" for cell in CELLS} == {
        name
        for name, loaded in all_loaded.items()
        if loaded.recipe.figure is None and loaded.recipe.table not in {*BESIDE, *OURS}
    }
    assert len(CELLS) == 161 + 81 + 14 + 16  # of language models, image classifiers, translators and captioners
    assert {cell["source"] for cell in CELLS} == {"printed", "second-hand"}


def test_values_that_are_known_second_hand_are_said_to_be(loaded):
    sources = {
        cell["source"] for cell in CELLS if (cell["paper"], cell["table"]) == (loaded.recipe.paper, loaded.recipe.table)
    }
    comment = re.sub(r"\n# ?", " ", loaded.path.read_text().partition("\n\n")[0])
    assert ("values are second-hand" in comment) == ("second-hand" in sources)


def test_every_scale_can_be_planned(loaded):
    scales = set(loaded.recipe.scales)
    assert scales - {"evening"} == {"smoke", "small", "paper"} or scales == {"evening"}
    for scale in loaded.recipe.scales:
        runs = runs_of(loaded, scale)
        seeds = loaded.recipe.scales[scale].seeds or loaded.recipe.seeds
        points = len(loaded.grids[scale].points) if scale in loaded.grids else 1
        a_cell = len(seeds) * points
        if loaded.has_trials(scale):  # and what these choose is not known yet
            a_cell = len(seeds) + len(loaded.grids[scale].seeds) * points
        assert len(runs) == len(loaded.recipe.rows) * len(loaded.columns(scale)) * a_cell
        assert len({run.relative_path for run in runs}) == len(runs)
        assert all(loaded.compared_column(scale, run.column) in loaded.recipe.columns for run in runs)
        if scale != "paper":
            assert {loaded.task.data_name(run.settings).partition(" ")[0] for run in runs} <= OFFLINE


OFFLINE = {
    *("python-docs", "python-source", "glyphs10", "glyphs100", "almanac", "scenes"),
    *("acceptability", "follows", "scene-nli", "scene-similarity"),
}
"""Data that is made here."""


@pytest.mark.parametrize(
    ("scale", "column"),
    [("smoke", "python-docs/tiny"), ("evening", "python-docs/tiny"), ("small", "python-source/60m")],
)
def test_a_scale_is_the_same_in_every_recipe_of_a_language_model(all_language, scale, column):
    """So that a row which recurs is trained once."""
    having = [loaded for loaded in all_language.values() if scale in loaded.recipe.scales]
    different: dict[str, Settings] = {
        settings.model_dump_json(): settings for loaded in having for settings in loaded.settings[scale].values()
    }
    assert len(different) == 1
    assert {name for loaded in having for name in loaded.columns(scale)} == {column}
    (settings,) = different.values()
    assert (settings.model.size, settings.train.schedule) == (column.partition("/")[2], "cosine")


def test_all_smoke_runs_of_language_models_together_are_few(all_language):
    runs = [run for loaded in all_language.values() for run in runs_of(loaded, "smoke")]
    distinct = {run.id for run in runs}
    assert len(distinct) <= SMOKE_RUNS
    assert len(runs) > len(distinct) + 20  # baselines and the methods themselves recur
    assert {run.seed for run in runs} == {1}
    of_tables = {
        run.id for name, loaded in all_language.items() if "/table" in name for run in runs_of(loaded, "smoke")
    }
    figures = [loaded for loaded in all_language.values() if loaded.recipe.figure]
    assert {run.id for loaded in figures for run in runs_of(loaded, "smoke")} <= of_tables  # they cost nothing


def test_a_figure_at_paper_scale_is_a_run_of_a_table(all_loaded):
    names = ("comt/table1", "comt/table3", "sas/table4", "transponder/table2")
    tables = {run.id for name in names for run in runs_of(all_loaded[name], "paper")}
    for loaded in all_loaded.values():
        if loaded.recipe.figure:
            assert {run.id for run in runs_of(loaded, "paper")} <= tables


def test_every_baseline_that_the_papers_name_has_a_row(all_loaded):
    trained = {method["name"] for loaded in all_loaded.values() for method in loaded.methods.values()}
    assert trained == set(methods())


def test_every_ablation_has_a_recipe(all_loaded):
    found = {ablation for loaded in all_loaded.values() for ablation in loaded.recipe.ablations}
    assert found == {*get_args(AblationName)}


STEPS = {"60m": 10_000, "130m": 20_000, "250m": 40_000, "350m": 60_000, "1b": 100_000}
RATES = {
    "comt": {"c4/60m": 1e-3, "c4/130m": 1e-3, "c4/250m": 1e-3, "c4/350m": 1e-3, "c4/1b": 5e-4},
    "transponder": {"c4/60m": 3e-3, "c4/130m": 1e-3, "c4/250m": 1e-3}
    | dict.fromkeys(("openwebtext/60m", "openwebtext/130m", "openwebtext/250m"), 3e-3),
}


def test_the_scale_paper_is_what_the_papers_ran(language):
    paper = language.recipe.paper
    for (_, column), settings in language.settings["paper"].items():
        corpus, size = column.split("/")
        model, data, train = settings.model, settings.data, settings.train
        assert model.size == size
        assert (data.corpus, data.tokenizer, data.rows, data.sequence_length) == (corpus, "t5", "pad", 256)
        assert (train.steps, train.warmup_steps) == (STEPS[size], STEPS[size] // 10)
        assert train.learning_rate == RATES[paper][column]
        assert train.schedule == {"comt": "cosine", "transponder": "noam"}[paper]
        assert train.min_lr_ratio == {"comt": 0.1, "transponder": None}[paper]
        adam = (train.optimizer, train.beta1, train.beta2, train.epsilon, train.weight_decay, train.gradient_clipping)
        assert adam == ("adam", 0.9, 0.999, 1e-8, 0, 0)
        assert (train.batch_size, train.precision, train.evaluation_tokens) == (512, "bf16-pure", 10_000_000)
        rows_read = train.steps * train.batch_size
        assert (
            data.max_train_tokens >= min(rows_read, 8_000_000) * 200
        )  # so many a row holds; OpenWebText has 8 million
        assert (train.sharding == "fsdp") == (size == "1b")


@pytest.mark.parametrize(("paper", "schedule"), [("comt", "noam"), ("transponder", "cosine")])
def test_the_other_papers_schedule_is_available_by_name(paper, schedule):
    """Transponder states noam; the scripts that it builds on have a cosine to a tenth."""
    path = ROOT / "recipes" / paper / "table3.yaml"
    loaded = load_recipe(path, catalogue(), [f"train.schedule={schedule}"], "paper")
    for settings in loaded.settings["paper"].values():
        assert (settings.train.schedule, settings.train.min_lr_ratio) == (
            schedule,
            0.1 if schedule == "cosine" else None,
        )


def test_the_rows_of_the_longest_tables():
    table3 = load_recipe(ROOT / "recipes/comt/table3.yaml", catalogue()).recipe
    assert [row for row, entry in table3.rows.items() if not entry.in_paper] == [
        "pre-ln+transponder", "deepnorm-mixln-code",
    ]  # fmt: skip
    assert len(table3.rows) == 9
    table2 = load_recipe(ROOT / "recipes/transponder/table2.yaml", catalogue())
    in_paper = [row for row, entry in table2.recipe.rows.items() if entry.in_paper]
    assert in_paper == list(table2.recipe.rows)[:8]
    names = {row: table2.methods[row]["name"] for row in in_paper}
    assert {row: name for row, name in names.items() if name != row} == {
        "deepnet": "deepnorm", "sdpa-gate": "full-rank-gate", "all-gate": "full-rank-gate",
    }  # fmt: skip
