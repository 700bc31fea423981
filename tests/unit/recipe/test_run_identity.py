"""The id of a run: every setting of every task that can change a number is part of it, and labels are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.runs.plan import RunSpec, RunStart, with_sources
from comt_cli.tasks import tasks

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
    *(("train", key) for key in ("save_every", "keep_every", "kernels", "cuda_graphs", "sharding")),
    *(("data", key) for key in ("folder", "glue_folder")),
}
"""Settings that are no part of an id."""


def spec_of(command: str, settings: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate_json(json.dumps({
        "paper": "comt", "table": "table3", "command": command, "scale": "smoke", "row": "pre-ln+comt",
        "column": "c4/130m", "seed": 1, "method": {"name": "comt", "hidden": 2}, "settings": settings,
        "data_fingerprint": "abc", "data_content": "0123",
    }))  # fmt: skip


@pytest.mark.parametrize("command", BASES)
def test_every_setting_that_can_change_a_number_is_part_of_the_id(command):
    assert BASES.keys() == tasks().keys()
    spec = spec_of(command, {**BASES[command], "train": TRAIN})
    for section, field in tasks()[command].settings.model_fields.items():
        keys = set(field.annotation.model_fields)
        left_out = {key for of, key in NO_NUMBER if of == section} | getattr(field.annotation, "later", frozenset())
        assert keys - set(spec.identity[section]) == keys & left_out


LANGUAGE = {**BASES["train-lm"], "train": {"steps": 100}}
SPEC = spec_of("train-lm", LANGUAGE)


def test_the_ids_of_runs_are_the_same_tomorrow():
    """Guards finished runs: whoever changes these on purpose raises SPEC_VERSION, and knows that all runs are new."""
    image = spec_of("train-resnet", {"model": {}, "data": {}, "train": {"steps": 100}}).model_copy(
        update={"method": {"name": "comt-pixel", "hidden": 2}}
    )
    assert (SPEC.id, image.id, started().id) == ("8bcee96d0f57", "140bed221d8a", "ce710b41b019")
    assert SPEC.with_content(None).id == SPEC.request == SPEC.model_copy(update={"data_content": "4567"}).request
    assert started(SPEC.with_content(None)).with_contents({"abc": "0123"}).id == started().id
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


def started(run: RunSpec = SPEC, **parts: tuple[str, ...]) -> RunSpec:
    """A run that starts from another one, of another seed."""
    return SPEC.model_copy(update={"seed": 5, "start": RunStart(run=run, **parts)})


def test_what_a_run_starts_from_is_part_of_its_id():
    plain, other = SPEC.model_copy(update={"seed": 5}), SPEC.model_copy(update={"seed": 6})
    parts = [started(new=("head",)), started(drop=("head",)), started(SPEC.with_content("4567"))]
    t5 = {"tokenizer": "t5", "vocabulary": None}
    implied = ({"data": {**BASES["train-lm"]["data"], **t5}}, {"data": {**t5, "vocabulary": 32000}})
    assert len({spec_of("train-lm", {**LANGUAGE, **said}).id for said in implied}) == 1
    assert spec_of("train-lm", {**LANGUAGE, "train": {"steps": 100, "min_lr_ratio": 0.1}}).id == SPEC.id
    runs = [plain, started(), started(other), started(started()), *parts]
    assert len({run.id for run in runs}) == len(runs)
    assert started(new=("a", "b")).id == started(new=("b", "a")).id
    assert started(SPEC.model_copy(update={"row": "other"})).id == started().id  # a label, there too
    second = started().model_copy(update={"seed": 8})
    assert with_sources([started(), second, SPEC]) == [SPEC, started(), second, SPEC]
    assert with_sources([started(started())]) == [SPEC, started(), started(started())]


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
    shown = SPEC.model_copy(update={"row": "a/b"}).relative_path
    assert shown.parts[:4] == ("comt", "table3", "a-b", "c4-130m")
    assert path.parts[0] not in ("by-id", "BY-ID", "results")  # the folders of the runs themselves
