"""Settings of runs: shares of the steps, and what those of classifiers and translators refuse and imply."""
# ruff: noqa: E501 (a case is a line)

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on
from small_recipe import assert_only_problem, load_recipe_text

from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.problems import RecipeError
from comt_cli.recipe.settings import steps_of
from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.tasks.settings.translation import TranslationTrainSettings

# ---- moments as shares of the steps


def test_a_share_and_the_steps_it_comes_to_are_one_run(small, load):
    shared = small.replace("warmup_steps: 10", "warmup_steps: 0.1")
    by_share, by_steps = (plan_on(load(text), "paper", lambda _: ("print", None)) for text in (shared, small))
    assert by_share == by_steps  # settings, and with them ids
    for text, override, steps in (
        (small, "train.warmup_steps=0.25", 25), (shared, "train.steps=40", 4), (small, "train.steps=40", 10),
    ):  # fmt: skip
        assert load(text, override).settings["smoke"]["plain", "tiny"].train.warmup_steps == steps


@given(st.integers(1, 10**6), st.integers(1, 9999))
def test_a_share_is_the_nearest_whole_step_and_at_least_one(steps, hundredths_of_per_cent):
    share = hundredths_of_per_cent / 10_000
    found = steps_of(share, steps)
    exact = Fraction(hundredths_of_per_cent, 10_000) * steps
    assert 1 <= found <= steps
    assert steps_of(0.29, 50) == 15  # a half is rounded up, though 0.29 * 50 < 14.5 in binary
    assert found == 1 or abs(found - exact) <= Fraction(1, 2)
    assert TrainSettings(steps=steps, warmup_steps=share).warmup_steps == found  # type: ignore[arg-type]


# ---- image classifiers

IMAGES = """\
title: A small table
paper: mine
table: table1
command: train-resnet
baseline: plain
seeds: [1, 2]
settings:
  data: {augmentation: crop-flip}
  train:
    steps: 100
    learning_rate: 0.1
rows:
  plain:
    method: addition
    paper: {cifar10/resnet18: 91.12, cifar100/resnet18: null}
  gated:
    method:
      name: comt-pixel
      hidden: 4
    in_paper: false
columns:
  cifar10/resnet18: {settings: {data: {images: cifar10}}}
  cifar100/resnet18:
    settings:
      data: {images: cifar100}
scales:
  smoke:
    description: quick
    setup: comt-images-smoke
    columns:
      tiny:
        compare_to: cifar10/resnet18
        setup: narrow-resnet18
        settings:
          train: {batch_size: 4}
  paper:
    description: as published
"""

BROKEN = {
    "command of the other kind": ("train-resnet", "train-resent", "line 4: command -> train-resnet"),
    "key of the other command": ("learning_rate: 0.1", "learning_rate: 0.1\n    evaluation_tokens: 9", "line 12: settings.train.evaluation_tokens -> evaluation_batch_size"),
    "augmentation of other images": ("data: {images: cifar100}", "data: {images: imagenet}", "line 8: settings.data.augmentation"),
    "milestones after the end": ("steps: 100", "steps: 100\n    schedule: step\n    milestones: [50, 100]", "line 12: settings.train.milestones"),
    "milestones that fall": ("steps: 100", "steps: 100\n    schedule: step\n    milestones: [0.5, 40]", "line 12: settings.train.milestones"),
    "method of the other command": ("name: comt-pixel\n      hidden: 4", "name: scaled-init", "line 17: rows.gated.method -> scaled"),
    "setup of the other command for a scale": ("setup: comt-images-smoke", "setup: smoke", "line 29: scales.smoke.setup"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), BROKEN.values(), ids=list(BROKEN))
def test_broken(old, new, expected, load):
    assert_only_problem(IMAGES, old, new, expected, load)


def test_one_data_set_is_read_from_one_folder(load):
    """Two folders would be prepared as one, and one row would show numbers of the other's images."""
    head, _, scales = IMAGES.partition("  smoke:")
    one = head + scales[scales.index("  paper:") :]
    two = one.replace("    in_paper: false", "    in_paper: false\n    settings: {data: {folder: /elsewhere}}")
    assert plan_on(load(one), "paper", lambda settings: (settings.data.images, None))
    with pytest.raises(UserError, match=r"gated at .* read the same data from two folders, None and /elsewhere"):
        plan_on(load(two), "paper", lambda settings: (settings.data.images, None))


# ---- translators

PAIRS = """\
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
columns:
  one: {}
scales:
  smoke: {description: quick}
"""


def train_of(*overrides: str) -> TranslationTrainSettings:
    train = load_recipe_text(PAIRS, catalogue(), overrides).settings["smoke"]["plain", "one"].train
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
def test_settings_that_do_not_go_together_are_refused(override, key):
    with pytest.raises(RecipeError) as refused:
        train_of(override)
    (only,) = map(str, refused.value.problems)
    assert only.startswith(f"--set {override}: ")
    assert (key in only) or override.startswith(key)


def test_steps_between_averaged_weights_may_be_a_share_and_other_schedules_have_a_floor():
    train = train_of()
    assert (train.warmup_steps, train.average_every, train.schedule, train.min_lr_ratio) == (20, 10, "noam", None)
    assert train.averaged_steps == (160, 170, 180, 190, 200)
    assert train_of("train.average_last=1", "train.average_every=null").averaged_steps == ()
    floors = [train_of(f"train.schedule={name}").min_lr_ratio for name in ("constant", "cosine")]
    assert floors == [None, 0.1]
