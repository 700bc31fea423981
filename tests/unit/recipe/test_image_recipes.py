"""Recipes for `train-resnet`: their settings at every place, and what is wrong with them."""
# ruff: noqa: E501 (a case is a line)

from __future__ import annotations

import pytest
from planning_on import plan_on
from small_recipe import assert_only_problem, problems_of

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.errors import UserError
from comt_cli.tasks.settings.images import ImageSettings

SMALL = """\
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

# What is put in the place of what stands in the small recipe, and the place of the one problem that must come.
BROKEN = {
    "command of the other kind": ("train-resnet", "train-resent", "line 4: command -> train-resnet"),
    "key of the other command": ("learning_rate: 0.1", "learning_rate: 0.1\n    evaluation_tokens: 9", "line 12: settings.train.evaluation_tokens -> evaluation_batch_size"),
    "number for a list": ("steps: 100", "milestones: 3\n    steps: 100", "line 10: settings.train.milestones"),
    "text in a list": ("steps: 100", "milestones: [a]\n    steps: 100", "line 10: settings.train.milestones[0]"),
    "unknown images": ("images: cifar100", "images: cifar1000", "line 25: columns.cifar100/resnet18.settings.data.images -> cifar100"),
    "unknown size": ("settings:\n          train", "settings:\n          model: {size: resnet19}\n          train", "line 35: scales.smoke.columns.tiny.settings.model.size -> resnet18"),
    "augmentation of other images": ("data: {images: cifar100}", "data: {images: imagenet}", "line 8: settings.data.augmentation"),
    "milestones of no step": ("steps: 100", "steps: 100\n    milestones: [50]", "line 11: settings.train.milestones"),
    "milestones after the end": ("steps: 100", "steps: 100\n    schedule: step\n    milestones: [50, 100]", "line 12: settings.train.milestones"),
    "warm-up rate of no warm-up": ("steps: 100", "steps: 100\n    warmup_learning_rate: 0.1", "line 11: settings.train.warmup_learning_rate"),
    "metric of the other command": ("baseline: plain", "metric: perplexity\nbaseline: plain", "line 5: metric"),
    "method of the other command": ("name: comt-pixel\n      hidden: 4", "name: scaled-init", "line 17: rows.gated.method -> scaled"),
    "setup of the other command for a scale": ("setup: comt-images-smoke", "setup: smoke", "line 29: scales.smoke.setup"),
    "text for a classifier": ("rows:", "figure: {draw: block-gradients, text: a b}\nrows:", "line 12: figure.text"),
    "site of another drawing": ("rows:", "figure: {draw: block-gradients, site: conv1}\nrows:", "line 12: figure.site"),
    "shares of no shares": ("rows:", "figure: {draw: residual-shares}\nrows:", "line 12: figure.draw"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), BROKEN.values(), ids=list(BROKEN))
def test_broken(old, new, expected, load):
    assert_only_problem(SMALL, old, new, expected, load)


def test_all_that_few_steps_contradict_is_told_at_once(load):
    text = SMALL.replace("steps: 100", "steps: 100\n    schedule: step\n    milestones: [50]\n    warmup_steps: 30")
    text = text.partition("  smoke:")[0] + "  paper:" + text.rpartition("  paper:")[2]  # the scale paper alone
    found = problems_of(text, load, "train.steps=20", "train.nesterov=true", "train.momentum=0")
    assert [": ".join(problem.split(": ")[:2]) for problem in found[:2]] == [
        "--set train.steps=20: train.warmup_steps (line 13)",
        "--set train.steps=20: train.milestones (line 12)",
    ]
    assert found[2].startswith("--set train.nesterov=true with --set train.momentum=0: ")


def test_what_a_run_is_told_comes_from_every_place(load):
    loaded = load(SMALL, "train.momentum=0.8", "train.schedule=step", "train.milestones=[5, 7]")
    assert loaded.recipe.metric == "accuracy"
    tiny = loaded.settings["smoke"]["gated", "tiny"]
    assert isinstance(tiny, ImageSettings)
    assert (tiny.model.size, tiny.model.width) == ("resnet18", 8)  # the column's setup
    assert (tiny.data.size, tiny.data.augmentation) == (16, "none")  # recipe's settings < scale's setup
    assert (tiny.train.steps, tiny.train.batch_size) == (500, 4)  # scale's setup < column's settings
    assert (tiny.train.momentum, tiny.train.milestones) == (0.8, (5, 7))  # the command line last
    assert tiny.train.min_lr_ratio is None
    paper = loaded.settings["paper"]["plain", "cifar100/resnet18"]
    assert (paper.data.images, paper.data.augmentation, paper.train.steps) == ("cifar100", "crop-flip", 100)
    assert [run.command for run in plan_on(loaded, "paper", lambda _: ("x", "content"))] == ["train-resnet"] * 8


def test_gradients_are_drawn_where_they_are_logged(load):
    text = SMALL.replace("rows:", "figure: {draw: conv-gradients}\nrows:", 1)
    for logged, scales in ((text, 3), (text.replace("{batch_size: 4}", "{gradient_norms_every: 5}"), 2)):
        found = problems_of(logged, load)
        assert len(found) == scales
        assert all(problem.startswith("line 12: figure.draw: ") for problem in found)
        assert all("train.gradient_norms_every" in problem for problem in found)
    assert load(text, "train.gradient_norms_every=5").recipe.figure.draw == "conv-gradients"


def test_letters_lie_in_no_folder_of_ones_own():
    with pytest.raises(ValueError, match="folder: glyphs100 is drawn into the cache"):
        ImageDataSettings(images="glyphs100", folder="/somewhere")
    assert ImageDataSettings(images="cifar100", folder="/somewhere").folder == "/somewhere"


def test_one_data_set_is_read_from_one_folder(load):
    """Two folders would be prepared as one, and one row would show numbers of the other's images."""
    head, _, scales = SMALL.partition("  smoke:")
    one = head + scales[scales.index("  paper:") :]
    two = one.replace("    in_paper: false", "    in_paper: false\n    settings: {data: {folder: /elsewhere}}")
    assert plan_on(load(one), "paper", lambda settings: (settings.data.images, None))
    with pytest.raises(UserError, match=r"gated at .* read the same data from two folders, None and /elsewhere"):
        plan_on(load(two), "paper", lambda settings: (settings.data.images, None))
