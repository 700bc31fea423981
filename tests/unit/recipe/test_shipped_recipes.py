"""Every recipe that comes with the program, and the page that explains them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from comt_cli.methods import methods
from comt_cli.recipe.load import available_recipes, load_recipe, load_recipe_text
from comt_cli.recipe.plan import plan
from comt_cli.recipe.schema import Column, PartialSettings, Recipe, Row, Scale
from comt_cli.recipe.settings import DataSettings, ModelSettings, TrainSettings

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*/*.yaml"))
CELLS = list(csv.DictReader((ROOT / "tests/data/paper_cells.csv").read_text().splitlines()))
README = (ROOT / "recipes/README.md").read_text()
SECTIONS = {
    "recipe": Recipe,
    "rows": Row,
    "columns": Column,
    "scales": Scale,
    "settings": PartialSettings,
    "model": ModelSettings,
    "data": DataSettings,
    "train": TrainSettings,
}


@pytest.fixture(params=RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def loaded(request):
    return load_recipe(request.param, methods())


def test_there_are_recipes_and_all_have_names():
    assert ROOT / "recipes/comt/table3.yaml" in RECIPES
    assert {path.resolve() for path in available_recipes().values()} >= set(RECIPES)


def test_a_recipe_stands_where_it_says(loaded):
    assert (loaded.recipe.paper, loaded.recipe.table) == (loaded.path.parent.name, loaded.path.stem)
    text = loaded.path.read_text()
    assert text.startswith("# Table ")
    assert f"--recipe {loaded.path.name}" in text  # how to run it


def test_every_cell_is_the_papers(loaded):
    recipe = loaded.recipe
    ours = {
        (row, column): value for row, entry in recipe.rows.items() for column, value in entry.paper.items() if value
    }
    theirs = {
        (cell["row"], cell["column"]): float(cell["value"])
        for cell in CELLS
        if (cell["paper"], cell["table"], cell["metric"]) == (recipe.paper, recipe.table, recipe.metric)
    }
    assert theirs
    assert ours == theirs


def test_every_cell_of_the_papers_has_a_recipe():
    tables = {(cell["paper"], cell["table"]) for cell in CELLS}
    assert tables == {(path.parent.name, path.stem) for path in RECIPES}


def test_every_scale_can_be_planned(loaded):
    assert set(loaded.recipe.scales) == {"smoke", "small", "paper"}
    for scale in loaded.recipe.scales:
        runs = plan(loaded, scale, lambda _: "print")
        seeds = loaded.recipe.scales[scale].seeds or loaded.recipe.seeds
        assert len(runs) == len(loaded.recipe.rows) * len(loaded.columns(scale)) * len(seeds)
        assert len({run.relative_path for run in runs}) == len(runs)
        assert all(loaded.compared_column(scale, run.column) in loaded.recipe.columns for run in runs)
        assert {run.settings.data.corpus for run in runs if scale != "paper"} <= {"python-docs"}  # offline


def test_table3_is_what_the_paper_ran():
    loaded = load_recipe(ROOT / "recipes/comt/table3.yaml", methods())
    assert list(loaded.recipe.rows) == [
        "post-ln",
        "deepnorm",
        "post-ln+comt",
        "mix-ln",
        "pre-ln",
        "layernorm-scaling",
        "pre-ln+comt",
        "pre-ln+transponder",
    ]
    assert [row for row, entry in loaded.recipe.rows.items() if not entry.in_paper] == ["pre-ln+transponder"]
    assert (loaded.recipe.baseline, loaded.recipe.seeds) == ("pre-ln", [1])
    assert loaded.recipe.metric == "perplexity"
    given = loaded.settings["paper"]
    for row in loaded.recipe.rows:
        table = {
            column: (s.model.size, s.train.steps, s.train.warmup_steps, s.train.learning_rate)
            for column in loaded.recipe.columns
            for s in [given[row, column]]
        }
        assert table == {
            "c4/130m": ("130m", 20_000, 2_000, 1e-3),
            "c4/250m": ("250m", 40_000, 4_000, 1e-3),
            "c4/350m": ("350m", 60_000, 6_000, 1e-3),
            "c4/1b": ("1b", 100_000, 10_000, 5e-4),
        }
    for settings in given.values():
        data, train = settings.data, settings.train
        assert (data.corpus, data.tokenizer, data.rows, data.sequence_length) == ("c4", "t5", "pad", 256)
        assert (train.batch_size, train.optimizer, train.beta1, train.beta2, train.epsilon) == (
            512,
            "adam",
            0.9,
            0.999,
            1e-8,
        )
        assert (train.weight_decay, train.gradient_clipping) == (0, 0)
        assert (train.schedule, train.min_lr_ratio, train.precision) == ("cosine", 0.1, "bf16-pure")
        assert train.evaluation_tokens == 10_000_000
    smoke, small = loaded.recipe.scales["smoke"], loaded.recipe.scales["small"]
    assert (list(smoke.columns), list(small.columns)) == (["python-docs/tiny"], ["python-docs/60m"])
    assert len(small.seeds) == 3


def table_under(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading of the README, without its head."""
    section = re.search(rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", README, re.MULTILINE | re.DOTALL)
    assert section, f"recipes/README.md has no section {heading}"
    lines = [line for line in section[1].splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def printed_default(field) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | int | float):
        return f"`{value}`"
    if isinstance(value, tuple):
        return "all seven"
    return "`{}`"


def test_the_readme_explains_every_section():
    headings = set(re.findall(r"^### (.*)$", README, re.MULTILINE))
    assert headings == {*SECTIONS, "method options"}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_readme_explains_every_key_once_and_no_other(section):
    fields = SECTIONS[section].model_fields
    rows = table_under(section)
    assert [row[0].strip("`") for row in rows] == list(fields)  # in the order of the schema
    assert {row[0].strip("`"): row[2] for row in rows} == {key: printed_default(field) for key, field in fields.items()}
    assert all(row[1] and row[3] for row in rows)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_readme_lists_every_choice(section):
    schema = SECTIONS[section].model_json_schema()["properties"]
    for key, kind, _, _ in table_under(section):
        choices = schema[key.strip("`")].get("enum") or [schema[key.strip("`")].get("const")]
        if choices != [None]:
            assert re.findall(r"`([^`]+)`", kind) == choices


def test_the_readme_explains_every_option_of_every_method():
    explained = {(row[0].strip("`"), row[1].strip("`")): row[3] for row in table_under("method options")}
    assert explained == {
        (name, key): printed_default(field)
        for name, method in methods().items()
        for key, field in method.model_fields.items()
    }
    text = README[README.index("### method options") :]
    assert all(f"`{name}`" in text for name in methods())


def test_the_readmes_own_recipe_is_right():
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert len(plan(load_recipe_text(text, methods()), "smoke", lambda _: "print")) == 9
