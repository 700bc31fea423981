"""`recipes/README.md` explains every key and every option once, with its default, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined
from small_recipe import load_recipe_text

from comt_cli.methods import catalogue, methods
from comt_cli.methods.base import SITE_SETS
from comt_cli.recipe.find import available_recipes
from comt_cli.recipe.schema import Ablation, Column, Figure, Published, Recipe, Row, Scale, Start, Sweep
from comt_cli.recipe.settings import overrides_of
from comt_cli.runs.plan import plan
from comt_cli.tasks import FIRST, Task, tasks
from comt_cli.tasks.base import CONVOLUTIONS, NORMS

ROOT = Path(__file__).parents[3]
README = (ROOT / "recipes/README.md").read_text()
HEADINGS = {
    "recipe": Recipe,
    "rows": Row,
    "published": Published,
    "columns": Column,
    "scales": Scale,
    "ablations": Ablation,
    "figure": Figure,
    "start": Start,
    "sweep": Sweep,
    "settings": overrides_of(tasks()[FIRST].settings),
    **{
        section if command == FIRST else f"{section} of {command}": task.settings.model_fields[section].annotation
        for command, task in tasks().items()
        for section in task.settings.model_fields
    },
}
NAMES = {**{sites: name for name, sites in SITE_SETS.items()}, CONVOLUTIONS: "all", NORMS: "all", (): "[]"}
"""Defaults that are lists, as a recipe would say them."""


def table_under(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading of the page, without its head."""
    section = re.search(rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", README, re.MULTILINE | re.DOTALL)
    assert section, f"recipes/README.md has no section {heading}"
    table = re.search(r"(?<=\| --- \| --- \| --- \| --- \|\n)(?:\|.*\n)+", section[1])
    assert table, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()]


def choices(schema: dict) -> str:
    """The values that a key can have, where they are counted."""
    values = schema.get("enum") or [schema[key] for key in ("const",) if key in schema]
    return ", ".join(f"`{value}`" for value in values)


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
        return f"`{NAMES[value]}`"
    return "`{}`"


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_tables_of_keys_are_those_of_the_schema(heading):
    """Their order, choices and defaults. Kinds that the schema cannot put in words, and meanings, are the page's."""
    kind, table = HEADINGS[heading], table_under(heading)
    properties = kind.model_json_schema()["properties"]
    defaults = {key: printed_default(field) for key, field in kind.model_fields.items()}
    if heading == "recipe":
        defaults["metric"] = "the task's first"
    assert all(map(all, table))
    assert [(key, default) for key, _, default, _ in table] == [(f"`{key}`", said) for key, said in defaults.items()]
    assert [said for _, said, *_ in table] == [
        choices(properties[key]) or said for key, (_, said, *_) in zip(defaults, table, strict=True)
    ]


def test_the_readme_explains_every_option_of_every_method():
    explained = {(row[0].strip("`"), row[1].strip("`")): row[3] for row in table_under("method options")}
    assert explained == {
        (name, key): printed_default(field)
        for name, method in methods().items()
        for key, field in method.model_fields.items()
    }
    text = README[README.index("### method options") :]
    assert all(f"`{name}`" in text for name in methods())


def test_the_readmes_own_recipe_is_right(monkeypatch):
    monkeypatch.setattr(Task, "identify", lambda *_: ("print", "content"))
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert len(plan(load_recipe_text(text, catalogue()), "smoke")) == 9


def test_the_readme_lists_every_recipe():
    def place(name: str) -> tuple:
        paper, _, table = name.partition("/")
        return paper, not table.startswith("table"), not table.startswith("figure"), table

    assert re.findall(r"^\| `(\S+)\.yaml` \|", README, re.MULTILINE) == sorted(available_recipes(), key=place)
