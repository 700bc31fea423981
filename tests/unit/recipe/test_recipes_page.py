"""docs/recipe-keys has every key and every option, as the schema has them; recipes/README.md lists every recipe."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from small_recipe import load_recipe_text

from comt_cli.methods import catalogue, methods
from comt_cli.recipe import schema
from comt_cli.recipe.find import available_recipes
from comt_cli.recipe.settings import Section
from comt_cli.runs.plan import plan
from comt_cli.tasks import Task, tasks

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT))  # docs/ is no part of the package

from docs.site import recipe_keys  # noqa: E402

README = (ROOT / "recipes/README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(recipe_keys.PAGES.glob("*.md"))}
GROUPS = [kind.__name__ for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, Section)]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_schema_gives(page):
    assert PAGES[page] == recipe_keys.written(PAGES[page]), "python docs/site/recipe_keys.py --write"


def test_every_group_and_every_section_has_its_table():
    assert {*re.findall(r"keys: recipe (\w+)", PAGES["recipe.md"])} == {*GROUPS} - {"Section", "RunSettings"}
    for command, task in tasks().items():
        wanted = [f"metrics {command}", f"sizes {command}"]
        wanted += [f"section {command} {section}" for section in task.settings.model_fields]
        assert sorted(re.findall(r"keys: (.+) -->", PAGES[f"{command}.md"])) == sorted(wanted)
    with_options = [name for name, kind in methods().items() if kind.model_fields]
    assert re.findall(r"^### (\S+)$", PAGES["methods.md"], re.MULTILINE) == sorted(with_options)


def test_every_meaning_is_of_a_key_that_there_is():
    for text in PAGES.values():
        recipe_keys.written(text)
    known = {(kind, key) for kind, keys in recipe_keys.meanings().items() for key in keys}
    assert known - recipe_keys.used == set()


def test_a_key_without_a_meaning_is_found(monkeypatch):
    class Undescribed(Section):
        nothing: int = 1

    with pytest.raises(KeyError, match="nothing of Undescribed"):
        recipe_keys.keys_of(Undescribed)


def test_the_readmes_own_recipe_is_right(monkeypatch):
    monkeypatch.setattr(Task, "identify", lambda *_: ("print", "content"))
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert len(plan(load_recipe_text(text, catalogue()), "smoke")) == 9


def test_the_readme_lists_every_recipe():
    def place(name: str) -> tuple:
        paper, _, table = name.partition("/")
        return paper, not table.startswith("table"), not table.startswith("figure"), table

    assert re.findall(r"^\| `(\S+)\.yaml` \|", README, re.MULTILINE) == sorted(available_recipes(), key=place)
