"""What changed settings are called: the names of tables, `table3@steps-12`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from comt_cli.methods import catalogue
from comt_cli.recipe.load import find_recipe, load_recipe
from comt_cli.recipe.variant import split_variant, table_name
from comt_cli.tasks.settings.language import Settings


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ((), "recipe"),
        (("train.steps=12",), "recipe@steps-12"),
        (("train.steps=12", "train.learning_rate=0.010"), "recipe@learning_rate-0.01+steps-12"),
        (("train.learning_rate=1e-2", "train.steps=12"), "recipe@learning_rate-0.01+steps-12"),
        (("train.steps=12", "train.kernels=reference", "train.save_every=3"), "recipe@steps-12"),
        (("train.steps=100", "model.size=tiny"), "recipe"),  # as the recipe has them
        (("train.steps=100", "train.warmup_steps=0.1"), "recipe"),
        (("train.steps=12", "model.size=tiny"), "recipe@steps-12"),
        (("train.warmup_steps=0.5",), "recipe@warmup_steps-0.5"),  # as given, not the steps that it comes to
        (("train.learning_rate=1e+18",), "recipe@learning_rate-1e18"),
        (("train.learning_rate=1e-18",), "recipe@learning_rate-1e-18"),
        (("train.warmup_steps=5",), "recipe@warmup_steps-5"),
        (("train.steps=12", "train.batch_size=3"), "recipe@batch_size-3+steps-12"),
    ],
)
def test_names_of_changed_settings(small, load, overrides, name):
    loaded = load(small, *overrides, scale="smoke")
    assert loaded.outputs("smoke") == name
    assert loaded.outputs("paper") == "recipe", "the settings are for one scale"


def test_a_share_of_unequal_steps_is_named_as_it_was_given(small, load):
    own = small.replace("    method: mix-ln\n", "    method: mix-ln\n    settings: {train: {steps: 60}}\n")
    loaded = load(own, "train.warmup_steps=0.5", scale="smoke")
    assert loaded.outputs("smoke") == "recipe@warmup_steps-0.5"
    assert loaded.changed("smoke") == ("train.warmup_steps=0.5",)


def test_the_name_in_the_readme_is_that_of_its_example():
    text = " ".join((Path(__file__).parents[3] / "recipes/README.md").read_text(encoding="utf-8").split())
    said = re.search(r"train-lm --recipe table3.yaml --scale smoke --set (train.steps=\S+) --set (\S+) ", text)
    assert said is not None
    loaded = load_recipe(find_recipe("table3"), catalogue(), said.groups(), "smoke")
    assert f"`{loaded.outputs('smoke')}.*` beside `table3.*`" in text


def test_no_two_settings_share_a_name():
    told = ["files:a/b", "files:a-b", "files-a-b", "files:a/b*", "files-a", "x" * 60, "x" * 61, "-", "a+b", "é", ""]
    names = [table_name("t", {"data.corpus": each}, Settings).removeprefix("t@") for each in told]
    assert len(set(names)) == len(told)
    assert all(re.fullmatch(r"[A-Za-z0-9+._-]{1,48}", name) for name in names)
    assert names[0].startswith("corpus-files-a-b-")
    assert table_name("t", {}, Settings) == "t"
    one, other = {"train.steps": 1, "train.seed": 2}, {"train.steps": 12}
    assert table_name("t", one, Settings) != table_name("t", other, Settings)


def test_names_of_tables_come_apart(tmp_path):
    assert split_variant("comt/table3@steps-12") == ("comt/table3", "steps-12")
    assert split_variant("table3") == ("table3", "")
    assert split_variant("me@home/table3") == ("me@home/table3", "")
    path = tmp_path / "a@b.yaml"
    path.touch()
    assert split_variant(str(path)) == (str(path), "")
