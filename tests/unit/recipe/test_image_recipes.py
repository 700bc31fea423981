"""Recipes for `train-resnet`: their settings at every place, what is wrong with them, and the identity of their runs."""
# ruff: noqa: E501 (a case is a line)

from __future__ import annotations

import json
import re

import pytest
from planning_on import plan_on

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.errors import UserError
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings, ImageTrainSettings
from comt_cli.tasks.settings.resnet import ResNetSettings

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

# What stands in the small recipe, what is put in its place, then the whole text of the one problem that must come.
BROKEN = {
    "command of the other kind": ("train-resnet", "train-resent", "line 4: command: 'train-resent' is not one of train-lm, finetune, train-bert, train-caption, train-mt, train-resnet; did you mean train-resnet?"),
    "key of the other command": ("learning_rate: 0.1", "learning_rate: 0.1\n    evaluation_tokens: 9", "line 12: settings.train.evaluation_tokens: unknown key; did you mean evaluation_batch_size?"),
    "unknown key of a scale's column": ("{batch_size: 4}", "{batchsize: 4}", "line 35: scales.smoke.columns.tiny.settings.train.batchsize: unknown key; did you mean batch_size?"),
    "text for a number": ("steps: 100", 'steps: "100"', 'line 10: settings.train.steps: "100" does not fit: should be a whole number'),
    "number for a list": ("steps: 100", "milestones: 3\n    steps: 100", "line 10: settings.train.milestones: 3 does not fit: should be a list"),
    "text in a list": ("steps: 100", "milestones: [a]\n    steps: 100", 'line 10: settings.train.milestones[0]: "a" does not fit: should be a whole number'),
    "unknown images": ("images: cifar100", "images: cifar1000", "line 25: columns.cifar100/resnet18.settings.data.images: 'cifar1000' is not one of glyphs10, glyphs100, cifar10, cifar100, imagenet; did you mean cifar100?"),
    "unknown size": ("settings:\n          train", "settings:\n          model: {size: resnet19}\n          train", "line 35: scales.smoke.columns.tiny.settings.model.size: no size is called 'resnet19'; did you mean resnet18?"),
    "augmentation of other images": ("data: {images: cifar100}", "data: {images: imagenet}", "line 8: settings.data.augmentation: images of different sizes need resized-crop-flip, or none"),
    "milestones of no step": ("steps: 100", "steps: 100\n    milestones: [50]", "line 11: settings.train.milestones: belong to the schedule step, which needs at least one"),
    "milestones after the end": ("steps: 100", "steps: 100\n    schedule: step\n    milestones: [50, 100]", "line 12: settings.train.milestones: the rate cannot fall after 100 of 100 steps; give steps below 100"),
    "warm-up rate of no warm-up": ("steps: 100", "steps: 100\n    warmup_learning_rate: 0.1", "line 11: settings.train.warmup_learning_rate: there is no warm-up; give warmup_steps"),
    "metric of the other command": ("baseline: plain", "metric: perplexity\nbaseline: plain", "line 5: metric: 'perplexity' is not one of accuracy, top5_accuracy; valid: accuracy, top5_accuracy"),
    "method of the other command": ("method: addition", "method: pre-ln", "line 14: rows.plain.method: the method pre-ln is not for train-resnet; valid: addition, comt-pixel, comt-sliding-window, highway, rezero, sas-resnet, scaled, scaling-gate"),
    "method of the other command, near one of this": ("name: comt-pixel\n      hidden: 4", "name: scaled-init", "line 17: rows.gated.method: the method scaled-init is not for train-resnet; did you mean scaled?"),
    "unknown method": ("method: addition", "method: adition", "line 14: rows.plain.method: no method is called 'adition'; did you mean addition?"),
    "unknown option": ("hidden: 4", "hiden: 4", "line 19: rows.gated.method.hiden: unknown key; did you mean hidden?"),
    "setup of the other command": ("setup: narrow-resnet18", "setup: c4-60m", "line 33: scales.smoke.columns.tiny.setup: c4-60m is a setup of train-lm; this recipe is for train-resnet"),
    "setup of the other command for a scale": ("setup: comt-images-smoke", "setup: smoke", "line 29: scales.smoke.setup: smoke is a setup of train-lm; this recipe is for train-resnet"),
    "setup that is not there": ("setup: narrow-resnet18", "setup: narrow-resnet19", "line 33: scales.smoke.columns.tiny.setup: no setup is called 'narrow-resnet19'; did you mean narrow-resnet18?"),
    "drawing of the other command": ("rows:", "figure: {draw: gate-values}\nrows:", "line 12: figure.draw: gate-values is not drawn of what train-resnet trains; valid: conv-gradients, residual-shares, block-gradients"),
    "text for a classifier": ("rows:", "figure: {draw: block-gradients, text: a b}\nrows:", "line 12: figure.text: block-gradients reads none; leave the key out"),
    "site of another drawing": ("rows:", "figure: {draw: block-gradients, site: conv1}\nrows:", "line 12: figure.site: block-gradients has no use for it; leave the key out"),
    "shares of no shares": ("rows:", "figure: {draw: residual-shares}\nrows:", "line 12: figure.draw: residual-shares are those of the method sas-resnet; the row plain has another"),
}  # fmt: skip


def problems_of(text: str, load, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load(text, *overrides)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(("old", "new", "expected"), BROKEN.values(), ids=list(BROKEN))
def test_broken(old, new, expected, load):
    assert old in SMALL
    found = problems_of(SMALL.replace(old, new, 1), load)
    assert expected in found
    assert {re.sub(r"^line \d+: ", "", problem) for problem in found} == {re.sub(r"^line \d+: ", "", expected)}


def test_all_that_few_steps_contradict_is_told_at_once(load):
    text = SMALL.replace("steps: 100", "steps: 100\n    schedule: step\n    milestones: [50]\n    warmup_steps: 30")
    text = text.partition("  smoke:")[0] + "  paper:" + text.rpartition("  paper:")[2]  # the scale paper alone
    assert problems_of(text, load, "train.steps=20", "train.nesterov=true", "train.momentum=0") == [
        "--set train.steps=20: train.warmup_steps (line 13): warm-up of 30 steps is longer than 20 steps; "
        "give at most 20; --set train.warmup_steps=VALUE gives another",
        "--set train.steps=20: train.milestones (line 12): the rate cannot fall after 50 of 20 steps; "
        "give steps below 20; --set train.milestones=VALUE gives another",
        "--set train.nesterov=true with --set train.momentum=0: needs a momentum above 0",
    ]


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


def test_a_scales_own_settings_win_over_its_setup(load):
    text = SMALL.replace(
        "    setup: comt-images-smoke\n", "    setup: comt-images-smoke\n    settings: {train: {steps: 170}}\n"
    )
    assert load(text).settings["smoke"]["plain", "tiny"].train.steps == 170


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.beta1=0.5", "--set train.beta1=0.5: unknown key; valid: steps, batch_size"),
        ("train.milestones=5", "--set train.milestones=5: 5 does not fit: should be a list"),
        ("train.nesterov=1", "--set train.nesterov=1: 1 does not fit: should be true or false"),
    ],
)
def test_overrides_are_typed_by_the_command(override, said, load):
    (only,) = problems_of(SMALL, load, override)
    assert only.startswith(said)


def test_gradients_are_drawn_where_they_are_logged(load):
    text = SMALL.replace("rows:", "figure: {draw: conv-gradients}\nrows:", 1)
    wanted = (
        "line 12: figure.draw: conv-gradients are drawn from a log that training keeps: set train.gradient_norms_every"
    )
    assert problems_of(text, load) == [
        f"{wanted} (scale smoke, column tiny)",
        f"{wanted} (scale paper, column cifar10/resnet18)",
        f"{wanted} (scale paper, column cifar100/resnet18)",
    ]
    assert load(text, "train.gradient_norms_every=5").recipe.figure.draw == "conv-gradients"
    logged = text.replace("train: {batch_size: 4}", "train: {gradient_norms_every: 5}")
    assert problems_of(logged, load) == [
        f"{wanted} (scale paper, column cifar10/resnet18)",
        f"{wanted} (scale paper, column cifar100/resnet18)",
    ]


def test_shares_are_drawn_of_the_method_that_has_them(load):
    text = SMALL.replace("rows:", "figure: {draw: residual-shares}\nrows:", 1).replace(
        "method: addition", "method: sas-resnet"
    )
    assert load(text).recipe.figure.draw == "residual-shares"


def test_all_problems_come_at_once(load):
    broken = (
        SMALL.replace("steps: 100", "stepz: 100")
        .replace("method: addition", "method: pre-ln")
        .replace("setup: narrow-resnet18", "setup: c4-60m")
        .replace("baseline: plain", "baseline: plan")
        .replace("images: cifar100", "image: cifar100")
    )
    assert [problem.partition(": ")[0] for problem in problems_of(broken, load, "train.beta1=1")] == [
        "--set train.beta1=1",
        "line 5",
        "line 10",
        "line 14",
        "line 25",
        "line 33",
    ]


SPEC = RunSpec(
    paper="comt",
    table="table1",
    command="train-resnet",
    scale="smoke",
    row="pixel",
    column="tiny",
    seed=1,
    method={"name": "comt-pixel", "hidden": 2},
    settings=ImageSettings(model=ResNetSettings(), data=ImageDataSettings(), train=ImageTrainSettings(steps=100)),
    data_fingerprint="abc",
    data_content="0123",
)
# For every setting, a value that is valid in SPEC, with what it needs beside it, and is not the one that stands there.
OTHER = {
    "model": {"size": {"size": "resnet50"}, "stem": {"stem": "7x7"}, "width": {"width": 8}, "blocks": {"blocks": [1, 1]}},
    "data": {
        "images": {"images": "glyphs100"}, "size": {"size": 16}, "augmentation": {"augmentation": "crop"},
        "train_images": {"train_images": 100}, "validation_images": {"validation_images": 100}, "folder": {"folder": "x"},
    },
    "train": {
        "steps": {"steps": 101}, "batch_size": {"batch_size": 32}, "micro_batch_size": {"micro_batch_size": 8},
        "learning_rate": {"learning_rate": 0.1}, "schedule": {"schedule": "cosine"}, "warmup_steps": {"warmup_steps": 5},
        "min_lr_ratio": {"min_lr_ratio": 0.0}, "weight_decay": {"weight_decay": 0.1},
        "gradient_clipping": {"gradient_clipping": 1.0}, "precision": {"precision": "bf16-mixed"},
        "compile": {"compile": True}, "kernels": {"kernels": "fused"}, "log_every": {"log_every": 5},
        "evaluate_every": {"evaluate_every": 50}, "evaluation_batch_size": {"evaluation_batch_size": 4},
        "save_every": {"save_every": 50}, "keep_every": {"keep_every": 50},
        "milestones": {"milestones": [5], "schedule": "step", "min_lr_ratio": None},
        "warmup_learning_rate": {"warmup_learning_rate": 0.1, "warmup_steps": 5}, "momentum": {"momentum": 0.5},
        "nesterov": {"nesterov": True}, "gradient_norms_every": {"gradient_norms_every": 5},
        "select": {"select": "best", "evaluate_every": 50}, "deterministic": {"deterministic": False},
        "cuda_graphs": {"cuda_graphs": True},
    },
}  # fmt: skip
NOT_PART_OF_THE_ID = {
    *(("train", key) for key in ("save_every", "keep_every", "kernels", "cuda_graphs")),
    ("data", "folder"),
}
ALL_SETTINGS = [
    (section, key)
    for section, kind in (("model", ResNetSettings), ("data", ImageDataSettings), ("train", ImageTrainSettings))
    for key in kind.model_fields
    if (section, key) != ("model", "family")  # the only one
]


@pytest.mark.parametrize(("section", "key"), ALL_SETTINGS)
def test_every_setting_that_can_change_a_number_is_part_of_the_id(section, key):
    data = SPEC.model_dump(mode="json")
    if key == "folder":  # letters lie in none
        data["settings"]["data"].update({"images": "cifar10", "size": 32, "augmentation": "none"})
    if key == "cuda_graphs":  # of compiled code
        data["settings"]["train"]["compile"] = True
    before = RunSpec.model_validate_json(json.dumps(data))
    data["settings"][section].update(OTHER[section][key])
    changed = RunSpec.model_validate_json(json.dumps(data))
    assert changed.settings != before.settings
    assert (changed.id == before.id) == ((section, key) in NOT_PART_OF_THE_ID)


def test_the_id_of_a_run_is_the_same_tomorrow():
    """Guards finished runs: whoever changes this on purpose raises SPEC_VERSION, and knows that all runs are new."""
    assert SPEC.id == "140bed221d8a"
    assert RunSpec.model_validate_json(SPEC.model_dump_json()) == SPEC


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
