"""Everything that can be wrong with a recipe and its settings, each with the line, the key and the words that mend it."""
# ruff: noqa: E501 (a case is a line)

from __future__ import annotations

import pickle
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on
from small_recipe import assert_only_problem, load_recipe_text, problems_of

from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.find import as_name
from comt_cli.recipe.load import load_recipe
from comt_cli.recipe.problems import MAX_BYTES, MAX_DEPTH, RecipeError
from comt_cli.recipe.schema import NAME_PATTERN
from comt_cli.recipe.settings import steps_of
from comt_cli.runs.plan import parse_seeds
from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.tasks.settings.translation import TranslationTrainSettings

# What stands in the small recipe, what is put in its place, then the line and the key of the one problem that must come,
# and the name it must propose. What is not of a key begins with what it is.
BROKEN = {
    "unknown key at the top": ("title:", "titel: x\ntitle:", "line 1: titel -> title"),
    "unknown key in settings": ("  data: {v", "  date: {}\n  data: {v", "line 8: settings.date -> data"),
    "text for a number": ("steps: 100", 'steps: "100"', "line 10: settings.train.steps"),
    "not a number": ("steps: 100", "learning_rate: .nan\n    steps: 100", "line 10: settings.train.learning_rate"),
    "true as a paper value": ("c4/130m: 19.5", "c4/130m: true", "line 22: rows.gated.paper.c4/130m"),
    "not one of the choices": ("steps: 100", "schedule: cosin\n    steps: 100", "line 10: settings.train.schedule -> cosine"),
    "unknown command": ("train-lm", "trian-lm", "line 4: command -> train-lm"),
    "unknown size": ("size: 250m", "size: 250n", "line 31: columns.c4/250m.settings.model.size -> 250m"),
    "missing key": ("title: A small table\n", "", "title"),
    "missing setting": ("    steps: 100\n    warmup_steps: 10\n", "", "line 26: train.steps"),
    "unknown method": ("mix-ln", "mixln", "line 25: rows.extra.method -> mix-ln"),
    "unknown site": ("hidden: 4", "sites: [q_proj, k_prj]", "line 20: rows.gated.method.sites[1] -> k_proj"),
    "baseline without a row": ("baseline: plain", "baseline: plan", "line 5: baseline -> plain"),
    "paper value without a column": ("c4/130m: 20.5", "c4/130m: 20.5, c4/131m: 2", "line 16: rows.plain.paper.c4/131m -> c4/130m"),
    "paper value missing": ("      c4/250m: 18.5\n", "", "line 21: rows.gated.paper"),
    "note of a scale that is not there": ("    in_paper: false", "    notes: {evening: its maps did not move}\n    in_paper: false", "line 26: rows.extra.notes.evening"),
    "ablation of a row that is not there": ("scales:", "ablations: {cost: {rows: [plain, gate]}}\nscales:", "line 32: ablations.cost.rows[1] -> gated"),
    "unknown drawing": ("rows:", "figure: {draw: gate-valus}\nrows:", "line 13: figure.draw -> gate-values"),
    "name that is no folder": ("paper: mine", "paper: ../../x", "line 2: paper"),
    "name too long": ("paper: mine", f"paper: {'x' * 101}", "line 2: paper"),
    "channels of no site": ("rows:", "figure: {draw: channel-gates}\nrows:", "line 13: figure.site"),
    "setup that is not there": ("settings:\n  data", "setup: smok\nsettings:\n  data", "line 7: setup -> smoke"),
    "compared to no column": ("compare_to: c4/130m", "compare_to: c4/13m", "line 38: scales.smoke.columns.tiny.compare_to -> c4/130m"),
    "key twice": ("    warmup_steps: 10", "    steps: 10", "line 11: settings.train.steps"),
    "number too long to read": ("steps: 100", f"steps: {'9' * 5000}", "line 10: settings.train.steps"),
    "hexadecimal number too long to print": ("steps: 100", f"steps: 0x{'f' * 5000}", "line 10: settings.train.steps"),
    "key that is no word": ("c4/130m: {}", "c4/130m: {}\n  ? [a, b]\n  : {}", "line 29: columns"),
    "alias": ("seeds: [1, 2]", "seeds: *many", "line 6: an alias is not allowed"),
    "tag": ("seeds: [1, 2]", "seeds: !!python/object:os.system [1]", "line 6: a tag is not allowed"),
    "too deep": ("seeds: [1, 2]", f"seeds: {'[' * (MAX_DEPTH + 1)}{']' * (MAX_DEPTH + 1)}", "line 6: is nested more than 20 levels deep"),
    "warm-up longer than training": ("warmup_steps: 10", "warmup_steps: 101", "line 11: settings.train.warmup_steps"),
    "noam without warm-up": ("warmup_steps: 10", "schedule: noam", "line 28: train.warmup_steps"),
    "batch that cannot be cut": ("model: {size: 250m}", "train: {micro_batch_size: 3}", "line 31: columns.c4/250m.settings.train.micro_batch_size"),
    "increase without a column": ("c4/250m: null}", "c4/250m: null}\n    paper_increase: {c4/103m: 1%}", "line 17: rows.plain.paper_increase.c4/103m -> c4/130m"),
    "other papers' numbers of a row in the paper": ("    in_paper: false", "    paper: {c4/130m: 1, c4/250m: 1}\n    published: {of: a network, baseline: 2, value: 1}", "line 27: rows.extra.published"),
    "ablated option that one row has": ("scales:", "ablations: {hidden-size: {option: hidden}}\nscales:", "line 32: ablations.hidden-size.option"),
    "directive": ("title:", "%YAML 1.1\n---\ntitle:", "line 1: a directive is not allowed"),
    "heads that do not divide": ("size: tiny}", "size: tiny, heads: 7}", "line 40: scales.smoke.columns.tiny.settings.model.heads"),
    "no vocabulary to train": ("{vocabulary: 300}", "{}", "line 28: data.vocabulary"),
    "no name of a command": ("command: train-lm", "command: []", "line 4: command"),
    "tokenizer of no weights": ("{vocabulary: 300}", "{vocabulary: 300, tokenizer: start}", "line 8: settings.data.tokenizer"),
    "weights of no form": ("    method: pre-ln\n", "    method: pre-ln\n    start: hub:x\n", "line 16: rows.plain.start"),
    "gates below one beside weights": ("      hidden: 4", "      hidden: 4\n    start: gates.gguf", "line 18: rows.gated.method"),
    "a union of types": ("warmup_steps: 10", "warmup_steps: {a: 1}", "line 11: settings.train.warmup_steps"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), BROKEN.values(), ids=list(BROKEN))
def test_broken(old, new, expected, small, load):
    assert_only_problem(small, old, new, expected, load)


def test_all_problems_of_a_file_come_at_once_in_its_order(small, load):
    broken = small
    for old, new in {
        "title:": "titel:", "baseline: plain": "baseline: plan", "seeds: [1, 2]": "seeds: [1, two]",
        "    warmup_steps: 10\n": "    warmup_steps: 10\n    steps: 10\n", "steps: 100": 'steps: "100"',
        "hidden: 4": "hiden: 4", "c4/250m: 18.5": "c4/251m: 18.5", "mix-ln": "mix", "size: 250m": "size: 250m, heads: 7",
        "    description: quick\n": "", "compare_to: c4/130m": "compare_to: c4/31m",
    }.items():  # fmt: skip
        broken = broken.replace(old, new)
    assert [problem.partition(": ")[2].split(":")[0] for problem in problems_of(broken, load, "train.stps=1")] == [
        *("is missing", "unknown key; did you mean steps?"),  # the title, --set train.stps=1
        *("titel", "baseline", "seeds[1]", "settings.train.steps", "settings.train.steps"),  # text for a number; twice
        *("rows.gated.method.hiden", "rows.gated.paper", "rows.gated.paper.c4/251m", "rows.extra.method"),
        *("columns.c4/250m.settings.model.heads", "scales.smoke.description", "scales.smoke.columns.tiny.compare_to"),
    ]


def test_a_ladder_has_two_rows_and_three_sizes(small, load):
    sizes = "columns:\n  a: {}\n  b: {}\n  c: {}\nscales:\n  smoke: {description: quick}\n"
    rows = "ladder: true\nrows:\n  plain: {method: pre-ln}\n"
    head = small.partition("rows:\n")[0].replace("paper: mine\ntable: table1\n", "")
    assert load(f"{head}{rows}  gated: {{method: comt}}\n{sizes}").recipe.ladder
    for wrong in (f"{head}{rows}{sizes}", f"{head}{rows}  gated: {{method: comt}}\n{sizes.replace('  c: {}', '')}"):
        (only,) = problems_of(wrong.replace("\n\n", "\n"), load)
        assert only.startswith("line 11: ladder: ")


def test_a_place_goes_by_the_file_and_not_by_the_paper(tmp_path, small, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipes" / "comt" / "table9.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(small)
    named = load_recipe(path, catalogue())
    assert (named.name, named.file, named.origin) == ("comt/table9", "comt/table9.yaml", "comt/table9.yaml")
    elsewhere = path.rename(tmp_path / "a b\u00e9.yaml")
    own = load_recipe(elsewhere, catalogue())
    assert (own.name, own.file, own.origin) == ("own/a-b--1ab8fc48", "a b\u00e9.yaml", str(elsewhere))
    others = ["\u88681", "\u56f31", "a b", "a(b", "a-b", "-a-b", "\udcff", "recipe", "x" * 101, "x" * 102]
    places = {as_name(name) for name in others}
    assert len(places) == len(others)
    assert all(re.fullmatch(NAME_PATTERN, place) and len(place) <= 100 for place in places)


def test_files_that_are_no_recipe(tmp_path, small, load):
    for text in ("", "# nothing\n", "{}", "- a\n- b\n", "just text"):
        assert problems_of(text, load) == ["is not a recipe: the file has no keys"]
    path = tmp_path / "bad.yaml"
    cases = {b"title: a\npaper: \xff\n": 2, b"#" * (MAX_BYTES + 1): None, b"title: a\npaper: \x00\n": 2,
             small.encode("utf-16"): 1}  # fmt: skip
    for content, line in cases.items():
        path.write_bytes(content)
        with pytest.raises(RecipeError, match=re.escape(f"{path}: 1 problem")) as caught:
            load_recipe(path, catalogue())
        assert caught.value.problems[0].line == line
    with pytest.raises(RecipeError, match="No such file"):
        load_recipe(tmp_path / "none.yaml", catalogue())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # from another process


SET = {
    **dict.fromkeys(("train", "train.steps", "train=5", "=5"), "should be SECTION.KEY"),
    "lr=0.1": "such as train.learning_rate",
    "trian.steps=5": "did you mean train?",
    **dict.fromkeys(("train.step=5", "train.steps.now=5", "train.epochs=3"), "did you mean steps?"),
    **dict.fromkeys(("train.steps=5.5", "train.steps='5'", "train.steps=true", "train.steps="), "valid integer"),
    "train.steps=0": "greater than 0",
    "train.steps=[1": "is not YAML",
    "train.warmup_steps=200": "100 steps",
    "train.warmup_steps=5.0": "a whole number of steps (without a point)",
    "train.lr=0.1": "did you mean learning_rate?",
    "train.seed=1": "--seeds",
    "train.steps=3": "line 11: settings.train.warmup_steps: ",
    "data.tokenizer=bytes": "line 8: settings.data.vocabulary: ",
}


@pytest.mark.parametrize(("argument", "expected"), SET.items(), ids=list(SET))
def test_broken_set(argument, expected, small, load):
    found = problems_of(small, load, argument)
    assert all(problem.startswith(f"--set {argument}: ") for problem in found)
    assert any(expected in problem for problem in found)


def test_of_several_sets_those_that_conflict_are_named(small, load):
    (only,) = problems_of(small, load, "train.learning_rate=1e-4", "train.steps=8", "train.warmup_steps=9")
    assert only.startswith("--set train.warmup_steps=9 with --set train.steps=8: ")


def test_a_floor_that_a_setup_gives_is_taken_back_by_null(small, load):
    given = "train.min_lr_ratio=0.1", "train.schedule=constant"
    (only,) = problems_of(small, load, *given)
    assert only.endswith("has no floor; leave the key out, or set null")
    load(small, "train.min_lr_ratio=null", given[1])


def test_a_recipe_without_a_paper_has_no_printed_values_and_an_ablated_option_two(small, load):
    found = problems_of(small.replace("paper: mine\n", ""), load)
    assert {"table", "rows.plain.paper", "rows.gated.paper"} <= {line.split(": ")[1] for line in found}
    ablation = "ablations: {hidden-size: {rows: [gated, extra], option: hidden}}\nscales:"
    text = small.replace("method: mix-ln", "method: {name: comt, hidden: 8}").replace("scales:", ablation)
    assert load(text).recipe.ablations["hidden-size"].option == "hidden"
    (only,) = problems_of(text.replace("hidden: 8", "hidden: 4"), load)
    assert only.startswith("line 32: ablations.hidden-size.option: 'hidden'")
    (only,) = problems_of(small.replace("scales:", ablation), load)
    assert "'hidden' is an option of only one of the rows; " in only


@pytest.mark.parametrize(
    ("what", "hint", "selection"),
    [
        ("row 'plane'", "did you mean plain?", {"rows": "gated,plane"}),
        ("column 'c4/130m'", "valid: tiny", {"columns": "c4/130m", "scale": "smoke"}),
        ("scale 'smokey'", "did you mean smoke?", {"scale": "smokey"}),
        ("row", "valid: plain, gated, extra", {"rows": " ,"}),
    ],
)
def test_a_selection_that_is_not_there(what, hint, selection, load, small):
    with pytest.raises(UserError, match=re.escape(what)) as caught:
        plan_on(load(small), **{"scale": "paper", "identify": lambda _: ("", "content"), **selection})
    assert caught.value.hint == hint


def test_seeds():
    assert parse_seeds(None) is None
    assert parse_seeds("3,1-3, 7") == [3, 1, 2, 7]
    assert parse_seeds("1-1000") == list(range(1, 1001))
    for text in ("", "a", "1,,2", "1.5", "-1", "3-1", "2147483648", "1-1001", "1-99999999999999999999"):
        with pytest.raises(UserError, match="--seeds"):
            parse_seeds(text)


# ---- settings of runs: moments as shares of the steps


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

BROKEN_IMAGES = {
    "command of the other kind": ("train-resnet", "train-resent", "line 4: command -> train-resnet"),
    "key of the other command": ("learning_rate: 0.1", "learning_rate: 0.1\n    evaluation_tokens: 9", "line 12: settings.train.evaluation_tokens -> evaluation_batch_size"),
    "augmentation of other images": ("data: {images: cifar100}", "data: {images: imagenet}", "line 8: settings.data.augmentation"),
    "milestones after the end": ("steps: 100", "steps: 100\n    schedule: step\n    milestones: [50, 100]", "line 12: settings.train.milestones"),
    "milestones that fall": ("steps: 100", "steps: 100\n    schedule: step\n    milestones: [0.5, 40]", "line 12: settings.train.milestones"),
    "method of the other command": ("name: comt-pixel\n      hidden: 4", "name: scaled-init", "line 17: rows.gated.method -> scaled"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), BROKEN_IMAGES.values(), ids=list(BROKEN_IMAGES))
def test_broken_images(old, new, expected, load):
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
