"""Recipes of translators: what their settings refuse, imply and count in shares."""

from __future__ import annotations

import pytest

from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, available_recipes, load_recipe, load_recipe_text
from comt_cli.recipe.problems import RecipeError
from comt_cli.tasks.settings.translation import TranslationTrainSettings

RECIPE = """\
title: A small table
command: train-mt
baseline: plain
seeds: [1]
settings:
  model: {size: nano}
  data: {vocabulary_size: 1000}
  train: {steps: 200, warmup_steps: 0.1, average_last: 5, average_every: 0.05}
rows:
  plain: {method: post-ln}
  gated: {method: sas}
columns:
  one: {}
scales:
  smoke: {description: quick}
"""


def load(*overrides: str) -> LoadedRecipe:
    return load_recipe_text(RECIPE, catalogue(), overrides)


def train_of(*overrides: str) -> TranslationTrainSettings:
    train = load(*overrides).settings["smoke"]["plain", "one"].train
    assert isinstance(train, TranslationTrainSettings)
    return train


@pytest.mark.parametrize(
    ("override", "key"),
    [
        *((f"{key}={value}", key) for key, value in (("train.compile", "true"), ("train.sharding", "fsdp"))),
        *((f"{key}={value}", key) for key, value in (("train.min_lr_ratio", 0.1), ("train.warmup_steps", 0))),
        *((f"{key}={value}", key) for key, value in (("train.label_smoothing", 1), ("data.batch_tokens", 100))),
        ("train.average_every=0.3", "train.average_last"),
    ],
)
def test_what_does_not_go_together_is_refused(override, key):
    with pytest.raises(RecipeError) as refused:
        load(override)
    (only,) = map(str, refused.value.problems)
    assert only.startswith(f"--set {override}: ")
    assert (key in only) or override.startswith(key)


def test_the_default_schedule_has_no_floor_and_others_have():
    """Noam is this task's default: a floor is not implied there, and is where another schedule is asked for."""
    assert (train_of().schedule, train_of().min_lr_ratio) == ("noam", None)
    assert train_of("train.schedule=noam") == train_of()
    assert train_of("train.schedule=constant").min_lr_ratio is None
    assert train_of("train.schedule=cosine").min_lr_ratio == 0.1
    assert train_of("train.schedule=linear", "train.min_lr_ratio=0.2").min_lr_ratio == 0.2


def test_steps_between_averaged_weights_may_be_a_share():
    train = train_of()
    assert (train.warmup_steps, train.average_every) == (20, 10)
    assert train.averaged_steps == (160, 170, 180, 190, 200)
    assert train_of("train.steps=40").averaged_steps == (32, 34, 36, 38, 40)
    assert train_of("train.average_every=10") == train
    assert train_of("train.average_last=1", "train.average_every=null").averaged_steps == ()


def test_no_shipped_column_asks_for_a_score_that_its_target_has_not():
    """Compounds are split in German alone: a column of another target that inherits their score would stay empty."""
    for name, path in available_recipes().items():
        loaded = load_recipe(path, catalogue())
        if loaded.recipe.command != "train-mt":
            continue
        for scale in loaded.recipe.scales:
            for column in loaded.columns(scale):
                (row, *_) = loaded.recipe.rows
                target = loaded.settings[scale][row, column].data.target
                assert target == "de" or "compound" not in loaded.recipe.metric_at(scale, column), (name, scale, column)
