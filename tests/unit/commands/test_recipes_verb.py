"""`comt recipes`: a line a recipe, words that choose, one in detail, and copies that are recipes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.find import find_recipe
from comt_cli.recipe.load import load_recipe
from tests.shelf import Shelf, shelf

__all__ = ["shelf"]


def comt(*arguments: str):
    return CliRunner().invoke(app, ["recipes", *arguments])


def names(*arguments: str) -> list[str]:
    result = comt(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [recipe["name"] for recipe in json.loads(result.stdout)]


@pytest.mark.parametrize(
    ("words", "those"),
    [
        (("sas/t", "train-resnet"), lambda name, r: name.startswith("sas/t") and r["command"] == "train-resnet"),
        (("gates of", "MINE"), lambda name, _: name in ("mine/gates", "mine/twin")),
        (("sandwich-ln",), lambda _, recipe: "sandwich-ln" in recipe["methods"]),
    ],
)
def test_words_choose_recipes(shelf: Shelf, words, those):
    everything = json.loads(comt("--json").stdout)
    wanted = [recipe["name"] for recipe in everything if those(recipe["name"], recipe)]
    assert wanted
    assert names(*words) == wanted


def test_a_copy_is_a_recipe_of_its_own_with_all_its_comments(shelf: Shelf):
    result = comt("--copy", "table3", "my-table.yaml")
    assert result.exit_code == 0
    assert result.output.startswith("wrote my-table.yaml, a copy of ")
    copy, original = (load_recipe(path, catalogue()) for path in (Path("my-table.yaml"), find_recipe("table3")))
    assert copy.name == "own/my-table"
    assert copy.settings == original.settings
    assert copy.path.read_text() == f"# Copied from comt/table3.yaml.\n{original.path.read_text()}"


def test_nothing_is_ever_overwritten(shelf: Shelf):
    before = Path("recipes/mine/twin.yaml").read_text()
    assert "is there already: nothing was written" in str(comt("--copy", "table3", "recipes/mine/twin.yaml").exception)
    Path("dangling.yaml").symlink_to("elsewhere.yaml")
    assert "is there already" in str(comt("--copy", "table3", "dangling.yaml").exception)
    assert Path("recipes/mine/twin.yaml").read_text() == before
    assert not Path("elsewhere.yaml").exists()


def test_a_copy_whose_setups_are_not_found_from_there_is_not_written(shelf: Shelf, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "setups").mkdir()
    (elsewhere / "setups/own.yaml").write_text("train: {batch_size: 4}\n")
    (elsewhere / "papers").mkdir()
    source = elsewhere / "papers/table1.yaml"
    source.write_text(Path("recipes/mine/gates.yaml").read_text().replace("seeds: [1, 2]", "seeds: [1, 2]\nsetup: own"))
    result = comt("--copy", str(source), "mine.yaml")
    assert "no setup is called 'own'" in str(result.exception)
    assert not Path("mine.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("table3",), "--copy takes a recipe and the file to write"),
        (("table3", "copy.txt"), "a recipe's file ends in .yaml"),
        (("nonesuch", "copy.yaml"), "there is no recipe nonesuch"),
    ],
)
def test_what_cannot_be_copied_is_told(shelf: Shelf, arguments, says):
    result = comt("--copy", *arguments)
    assert isinstance(result.exception, UserError)
    assert says in str(result.exception)
