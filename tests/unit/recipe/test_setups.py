"""Setups: where they are found, which settings win, and that what is wrong in one names its own file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, available_recipes, find_recipe, load_recipe
from comt_cli.recipe.problems import RecipeError

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
    assert smoke.train.beta2 == 0.6
    assert smoke.train.steps == 100
    assert load(shelf, "train.beta2=0.7").settings["smoke"]["plain", "tiny"].train.beta2 == 0.7
    paper = loaded.settings["paper"]["plain", "c4/130m"]
    assert (paper.train.beta2, paper.data.vocabulary) == (0.999, 300)  # the paper's columns name no setup
    change(shelf / "mine/table1.yaml", "settings:\n  data", "setup: quick\nsettings:\n  data")
    paper = load(shelf).settings["paper"]["plain", "c4/130m"]
    assert (paper.train.beta2, paper.data.vocabulary) == (0.6, 300)  # recipe's setup < recipe's settings


def test_setups_stand_beside_the_recipes_folder_then_among_the_roots(shelf, tmp_path):
    (tmp_path / "recipes" / "setups").mkdir(parents=True)
    mine = tmp_path / "recipes" / "setups" / "quick.yaml"
    mine.write_text("train: {beta2: 0.7}")
    assert load(shelf).settings["smoke"]["plain", "tiny"].train.beta2 == 0.6  # beside it
    (shelf / "setups" / "quick.yaml").unlink()
    assert load(shelf).settings["smoke"]["plain", "tiny"].train.beta2 == 0.7  # ./recipes
    mine.unlink()
    (missing,) = problems(shelf)
    assert missing.startswith("line 38: scales.smoke.columns.tiny.setup: ")
    assert "smoke" in missing.partition("; ")[2]  # those that there are
    change(shelf / "mine/table1.yaml", "setup: quick", "setup: smoke")  # the program's own
    assert load(shelf).settings["smoke"]["plain", "tiny"].data.vocabulary == 2048


@pytest.mark.parametrize(
    ("old", "new", "expected", "said"),
    [
        ("  beta1: 0.5", "  beta_1: 0.5", "line 5: train.beta_1", "beta1?"),
        ("train:", "trian:", "line 3: trian", "train?"),
        ("beta1: 0.5", 'beta1: "0.5"', "line 5: train.beta1", "number"),
        ("beta1: 0.5", "beta1: 1.5", "line 5: train.beta1", "less than 1"),
        ("beta1: 0.5", "batch_size: 3", "line 5: train.batch_size", "line 4"),
        ("beta1: 0.5", "beta1: *b", "line 5", "alias"),
        ("beta1: 0.5", "warmup_steps: 101", "line 5: train.warmup_steps", "100"),
        ("size: tiny}", "heads: 7}", "line 1: model.heads", "128"),
    ],
)
def test_a_problem_in_a_setup_names_its_file_and_line_once(shelf, old, new, expected, said):
    """A combination that cannot work is blamed on the setup if that gave the value, though the rest is the recipe's."""
    change(shelf / "setups/quick.yaml", old, new)
    (only,) = problems(shelf)
    assert only.startswith(f"shelf/setups/quick.yaml, {expected}: ")
    assert said in only


def test_a_combination_that_the_recipe_spoils_names_the_recipe(shelf):
    change(shelf / "setups/quick.yaml", "  beta1: 0.5", "  warmup_steps: 50")
    change(shelf / "mine/table1.yaml", "{batch_size: 4}", "{batch_size: 4, steps: 49}")
    (only,) = problems(shelf)
    assert only.startswith("shelf/setups/quick.yaml, line 5: train.warmup_steps: ")
    change(shelf / "mine/table1.yaml", "steps: 49}", "steps: 49, warmup_steps: 60}")
    (only,) = problems(shelf)
    assert only.startswith("line 42: scales.smoke.columns.tiny.settings.train.warmup_steps: ")
    smoke, paper = problems(shelf, "train.warmup_steps=200")
    assert smoke.startswith("--set train.warmup_steps=200: ")
    assert paper.startswith("--set train.warmup_steps=200: ")


def test_all_problems_of_recipe_and_setups_come_at_once(shelf):
    change(shelf / "setups/quick.yaml", "beta1: 0.5", "beta_1: 0.5")
    change(shelf / "setups/quick.yaml", "vocabulary: 400", "vocabulary: -1")
    change(shelf / "mine/table1.yaml", "baseline: plain", "baseline: plan")
    change(shelf / "mine/table1.yaml", "    method: mix-ln", "    method: mixln")
    change(shelf / "mine/table1.yaml", "c4/130m: {}", "c4/130m: {setup: quack}")
    assert [problem.partition(": ")[0] for problem in problems(shelf)] == [
        "line 5",
        "line 25",
        "line 28",
        "shelf/setups/quick.yaml, line 2",
        "shelf/setups/quick.yaml, line 5",
    ]


@pytest.mark.parametrize("text", ["", "# nothing", "- a", "just text", "train: ["])
def test_a_file_that_is_no_setup(shelf, text):
    (shelf / "setups/quick.yaml").write_text(text)
    (only,) = problems(shelf)
    assert only.startswith("shelf/setups/quick.yaml")
    assert "is not" in only


def test_setups_are_no_paper_and_no_recipe():
    assert not any(name.startswith("setups/") for name in available_recipes())
    with pytest.raises(UserError, match="there is no recipe setups/smoke"):
        find_recipe("setups/smoke")


def test_a_setup_given_for_a_recipe_is_told_apart(shelf):
    with pytest.raises(RecipeError, match="is a setup, not a recipe"):
        load_recipe(shelf / "setups" / "quick.yaml", catalogue())
