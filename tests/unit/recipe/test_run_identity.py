"""The id of a run: every setting of every task that can change a number is part of it, and labels are not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on

from comt_cli.runs.plan import RunSpec, RunStart, with_sources
from comt_cli.tasks import task_of, tasks

BASES = {
    "train-lm": {"model": {"size": "tiny"}, "data": {"vocabulary": 300}},
    "train-bert": {"model": {"size": "tiny"}, "data": {"vocabulary": 300}},
    "finetune": {"model": {"size": "tiny"}, "data": {"vocabulary": 300}},
    "train-caption": {"model": {"size": "nano"}, "data": {}},
    "train-mt": {"model": {"size": "nano"}, "data": {"vocabulary_size": 1000}},
    "train-resnet": {"model": {}, "data": {}},
}
TRAIN = {"steps": 100, "batch_size": 32, "warmup_steps": 1}
NO_NUMBER = {
    *(("train", key) for key in ("save_every", "keep_every", "kernels", "cuda_graphs")),
    *(("data", key) for key in ("folder", "glue_folder")),
}
"""No part of an id; nor is `sharding`, but that of a task which has it refused."""
MSCOCO = {"corpus": "mscoco", "vocabulary_rule": "karpathy-gt5"}
BESIDE: dict[str, list[dict[str, Any]]] = {
    "corpus": [
        {"corpus": "c4", "max_train_tokens": 5, "validation_fraction": None},
        {"corpus": "python-source"},
        MSCOCO,
        {"corpus": "wmt14-en-de"},
    ],
    "max_train_tokens": [{"corpus": "c4", "task": "cola", "max_train_tokens": 9, "validation_fraction": None}],
    "min_lr_ratio": [{"schedule": "cosine"}],
    "features": [MSCOCO],
    "regions": [MSCOCO],
    "vocabulary_size": [MSCOCO],
    "tokenizer": [{"tokenizer": "bytes", "vocabulary": None}, {"tokenizer": "bytes", "vocabulary_size": None}],
    "vocabulary_rule": [{"corpus": "mscoco", "vocabulary_rule": "nltk-ge5"}],
    "folder": [
        {"corpus": "wikitext-103", "validation_fraction": None},
        {"images": "cifar10", "size": 32, "augmentation": "none"},
        MSCOCO,
        {"corpus": "wmt14-en-de"},
    ],
    "task": [{"task": "scene-nli"}],
    "glue_folder": [{"task": "cola"}],
    "select": [{"evaluate_every": 50}],
    "average_last": [{"average_every": 5, "average_last": 2}],
    "average_every": [{"average_every": 5, "average_last": 2}],
    "cuda_graphs": [{"compile": True}],
    "milestones": [{"milestones": [5], "schedule": "step", "min_lr_ratio": None}],
    "warmup_learning_rate": [{"warmup_steps": 5}],
    "samples": [{"objective": "cider"}],
    "self_critical_baseline": [{"objective": "cider"}],
}
"""What a value needs beside it, by key: the first that the task's settings allow."""
ONLY_ONE = {"family"}
FILES = {"validation_files", "test_files", "validation_fraction", "test_fraction"}
"""Of corpora of one's own alone."""
REFUSED = {
    *((command, "sharding") for command in ("train-bert", "finetune", "train-caption", "train-mt")),
    *((command, "compile") for command in ("finetune", "train-caption", "train-mt")),
}


def spec_of(command: str, settings: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate_json(json.dumps({
        "paper": "comt", "table": "table3", "command": command, "scale": "smoke", "row": "pre-ln+comt",
        "column": "c4/130m", "seed": 1, "method": {"name": "comt", "hidden": 2}, "settings": settings,
        "data_fingerprint": "abc", "data_content": "0123",
    }))  # fmt: skip


def values(annotation: Any, default: Any) -> Iterator[Any]:
    """What a key might have instead of its default."""
    options = [annotation, *get_args(annotation)]
    yield from (each for option in options for each in get_args(option) if isinstance(each, str))
    if isinstance(default, bool):
        yield not default
    yield from (
        "60m",
        "tiny",
        "mini",
        "resnet50",
        "glyphs100",
        "vi",
        [1, 1],
        2,
        4,
        8,
        16,
        64,
        128,
        8192,
        0.05,
        0.5,
        "c",
        True,
    )


def pairs_of(command: str, section: str, key: str, field: Any) -> tuple[RunSpec, RunSpec]:
    """Two runs that differ in one key."""
    base = {**BASES[command], "train": TRAIN}
    for beside, value in itertools.product([{}, *BESIDE.get(key, [])], values(field.annotation, field.default)):
        before = {**base, section: {**base.get(section, {}), **beside}}
        if key in beside:
            before, changed = base, before
        else:
            changed = {**before, section: {**before[section], key: value}}
        try:
            one, other = (spec_of(command, settings) for settings in (before, changed))
        except ValueError:
            continue
        if one.settings != other.settings:
            return one, other
    raise AssertionError(f"no other value was found of {command}: {section}.{key}")


SETTINGS = [(command, section) for command, task in tasks().items() for section in task.settings.model_fields]


@pytest.mark.parametrize(("command", "section"), SETTINGS)
def test_every_setting_that_can_change_a_number_is_part_of_the_id(command, section):
    assert BASES.keys() == tasks().keys()
    fields = task_of(command).settings.model_fields[section].annotation.model_fields
    for key, field in fields.items():
        if key in ONLY_ONE | FILES or (command, key) in REFUSED:
            continue
        one, other = pairs_of(command, section, key, field)
        assert (one.id == other.id) == ((section, key) in NO_NUMBER or key == "sharding"), key


LANGUAGE = {**BASES["train-lm"], "train": {"steps": 100}}
SPEC = spec_of("train-lm", LANGUAGE)


def test_the_ids_of_runs_are_the_same_tomorrow():
    """Guards finished runs: whoever changes these on purpose raises SPEC_VERSION, and knows that all runs are new."""
    image = spec_of("train-resnet", {"model": {}, "data": {}, "train": {"steps": 100}}).model_copy(
        update={"method": {"name": "comt-pixel", "hidden": 2}}
    )
    assert (SPEC.id, image.id, started().id) == ("8bcee96d0f57", "140bed221d8a", "ce710b41b019")
    for spec in (SPEC, image, started(started(), new=("head",))):
        assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("change", "same"),
    [
        *(({key: "other"}, True) for key in ("paper", "table", "row", "column", "scale")),
        ({"point": {"train.learning_rate": 1}, "changed": {"train.learning_rate": 1}}, True),
        ({"method": {"hidden": 2, "name": "comt"}}, True),  # the order of keys says nothing
        ({"data_fingerprint": "abd"}, True),  # whatever prepared it, the data is the same
        *(({key: value}, False) for key, value in (("command", "train-resnet"), ("seed", 2), ("data_content", "0124"))),
        ({"method": {"name": "comt", "hidden": 3}}, False),
    ],
)
def test_labels_are_no_part_of_the_id_and_all_else_is(change, same):
    assert (SPEC.model_copy(update=change).id == SPEC.id) is same
    assert set(RunSpec.model_fields) - {"settings", "start"} == {
        *("paper", "table", "row", "column", "scale", "point", "changed", "method", "data_fingerprint"),
        *("command", "seed", "data_content"),
    }


def test_what_is_asked_for_has_a_name_before_the_data_is_prepared():
    unprepared = SPEC.with_content(None)
    assert unprepared.id == unprepared.request == SPEC.request != SPEC.id
    assert unprepared.with_content("0123").id == SPEC.id
    assert SPEC.model_copy(update={"data_fingerprint": "abd"}).request != SPEC.request
    unknown = started(unprepared)
    assert unknown.id == unknown.request == started().request
    assert (unknown.is_known, started().is_known) == (False, True)
    assert unknown.with_contents({"abc": "0123"}).id == started().id


def test_a_methods_defaults_are_part_of_the_id(small, load):
    short, full, other = (
        plan_on(load(small.replace("hidden: 4", text)), "smoke", lambda _: ("x", None), rows="gated")[0]
        for text in ("residual: pre-norm", "hidden: 2", "hidden: 3")
    )
    assert short.method == full.method
    assert short.id == full.id != other.id


def started(run: RunSpec = SPEC, **parts: tuple[str, ...]) -> RunSpec:
    """A run that starts from another one, of another seed."""
    return SPEC.model_copy(update={"seed": 5, "start": RunStart(run=run, **parts)})


def test_what_a_run_starts_from_is_part_of_its_id():
    plain, other = SPEC.model_copy(update={"seed": 5}), SPEC.model_copy(update={"seed": 6})
    parts = [started(new=("head",)), started(drop=("head",)), started(SPEC.with_content("4567"))]
    runs = [plain, started(), started(other), started(started()), *parts]
    assert len({run.id for run in runs}) == len(runs)
    assert started(new=("a", "b")).id == started(new=("b", "a")).id
    assert started(SPEC.model_copy(update={"row": "other"})).id == started().id  # a label, there too
    second = started().model_copy(update={"seed": 8})
    assert with_sources([started(), second, SPEC]) == [SPEC, started(), second, SPEC]
    assert with_sources([started(started())]) == [SPEC, started(), started(started())]


def test_saying_what_is_implied_makes_no_other_run():
    def id_with(section: str, **said: Any) -> str:
        return spec_of("train-lm", {**LANGUAGE, section: {**LANGUAGE[section], **said}}).id

    t5 = {"tokenizer": "t5", "vocabulary": None}
    assert id_with("data", **{**t5, "vocabulary": 32000}) == id_with("data", **t5)
    assert id_with("train", min_lr_ratio=0.1) == SPEC.id
    assert id_with("train", schedule="constant", min_lr_ratio=None) == id_with("train", schedule="constant")
    assert "test_share" not in SPEC.identity["train"]  # it came later


@pytest.mark.parametrize("field", ["paper", "table", "row", "column", "scale", "seed"])
def test_a_strangers_spec_cannot_name_a_folder_outside(field):
    for value in (-1, 2**31) if field == "seed" else ("../..", "/tmp/evil", "..", ""):
        with pytest.raises(ValueError, match=field):
            RunSpec.model_validate({**SPEC.model_dump(), field: value})


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9+._/-]{0,20}", fullmatch=True)


@given(paper=NAMES | st.sampled_from(["by-id", "BY-ID", "by/id", "results"]), table=NAMES, row=NAMES, column=NAMES)
def test_a_run_stays_below_its_folder_whatever_the_names(paper, table, row, column):
    spec = SPEC.model_copy(update={"paper": paper, "table": table, "row": row, "column": column})
    path = spec.relative_path
    assert (len(path.parts), path.name, path.is_absolute()) == (5, f"seed1-{spec.id}", False)
    assert ".." not in path.parts
    assert path.parts[0] not in ("by-id", "BY-ID", "results")  # the folders of the runs themselves


def test_where_people_find_a_run():
    assert SPEC.relative_path == Path("comt/table3/pre-ln+comt/c4-130m") / f"seed1-{SPEC.id}"
