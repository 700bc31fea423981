"""From a recipe to runs: how values are read, merged and identified, and rows that the command line adds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on
from small_recipe import load_recipe_text

from comt_cli.data.text.settings import DataSettings
from comt_cli.errors import StorageError, UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.find import available_recipes, find_recipe, split_variant, table_name
from comt_cli.recipe.load import load_recipe
from comt_cli.recipe.problems import RecipeError, parse
from comt_cli.runs.plan import RunSpec, RunStart, plan, with_sources
from comt_cli.tasks import Task, tasks
from comt_cli.tasks.settings.language import Settings
from comt_cli.verbs.plan import also_rows, plan_recipe

YAML = {
    **{"3e-4": 3e-4, "3e4": 3e4, "no": "no", "yes": "yes", "on": "on", "true": True, "null": None, "~": None, "": None},
    **{"010": 10, "0o10": 8, "0x10": 16, "12:30:45": "12:30:45", "2026-11-21": "2026-11-21", "'200'": "200"},
    **{"[1, 2.0]": [1, 2.0], "{a: b}": {"a": "b"}},
}


def test_yaml_is_read_as_version_1_2():
    for text, value in YAML.items():
        read = parse(f"key: {text}").data["key"]
        assert (read, type(read)) == (value, type(value)), text


def test_lines(small):
    document = parse(small)
    lines = small.splitlines()
    assert lines[document.line(("rows", "gated", "method", "hidden")) - 1] == "      hidden: 4"
    assert document.line(("rows", "gated", "nowhere")) == document.line(("rows", "gated"))
    assert document.line(("nowhere",)) is None
    assert all(f"{path[-1]}:" in lines[line - 1] for path, line in document.lines.items() if isinstance(path[-1], str))
    assert parse("\ufeffa: 1\r\nb: 2\r\n").lines == {("a",): 1, ("b",): 2}


def test_the_later_layer_wins_key_by_key(small, load):
    text = small.replace("size: tiny}", "size: tiny}\n          data: {sequence_length: 32}").replace(
        "    in_paper: false", "    in_paper: false\n    settings: {train: {batch_size: 2, beta1: 0.5}}"
    )
    text = text.replace(
        "    seeds: [7]", "    seeds: [7]\n    settings: {train: {beta1: 0.7, beta2: 0.7, epsilon: 0.7}}"
    )
    text = text.replace("{batch_size: 4}", "{batch_size: 4, beta2: 0.6}")
    loaded = load(text, "train.steps=50", "train.learning_rate=3e-4")
    plain, extra = (loaded.settings["smoke"][row, "tiny"] for row in ("plain", "extra"))
    assert (plain.train.batch_size, extra.train.batch_size) == (4, 2)  # recipe 8 < column 4 < row 2
    assert (plain.train.beta1, extra.train.beta1) == (0.7, 0.5)  # default < scale < row
    assert (plain.train.beta2, plain.train.epsilon) == (0.6, 0.7)  # scale < column
    assert (plain.train.steps, plain.train.learning_rate, plain.train.warmup_steps) == (50, 3e-4, 10)
    assert (plain.data.vocabulary, plain.data.sequence_length) == (300, 32)
    paper = {cell: settings.model.size for cell, settings in loaded.settings["paper"].items()}
    assert paper == {(row, f"c4/{size}"): size for row in ("plain", "gated", "extra") for size in ("130m", "250m")}
    alone = load(text, "train.steps=5", "train.warmup_steps=1", scale="smoke").settings
    assert (alone["smoke"]["plain", "tiny"].train.steps, alone["paper"]["plain", "c4/130m"].train.steps) == (5, 100)


def test_the_order_of_a_plan_fills_the_table_evenly(small, load, monkeypatch):
    asked: list[DataSettings] = []

    def identify(self, settings: Settings) -> tuple[str, str]:
        asked.append(settings.data)
        return f"print{len(asked)}", "content"

    monkeypatch.setattr(Task, "identify", identify)
    runs = plan(load(small), "paper")
    assert [(run.column, run.seed, run.row) for run in runs] == [
        (column, seed, row)
        for column in ("c4/130m", "c4/250m")
        for seed in (1, 2)
        for row in ("plain", "gated", "extra")
    ]
    assert len({run.id for run in runs}) == 12
    assert len(asked) == 1  # one data set, looked at once
    assert {(run.data_fingerprint, run.data_content) for run in runs} == {("print1", "content")}
    assert [run.seed for run in plan(load(small), "smoke", rows="plain")] == [7]
    chosen = plan(load(small), "paper", rows="extra,plain", columns="c4/250m", seeds=[5])
    assert [(run.column, run.seed, run.row) for run in chosen] == [("c4/250m", 5, "plain"), ("c4/250m", 5, "extra")]


def test_only_what_is_wrong_with_a_key_is_told_at_its_line(small, load, monkeypatch):
    """A full disk keeps its exit status."""
    for error, status in ((StorageError("data.corpus: full"), 1), (UserError("data.corpus: odd"), 2)):
        monkeypatch.setattr(Task, "identify", mock.Mock(side_effect=error))
        with pytest.raises(UserError) as caught:
            plan(load(small), "smoke")
        assert (caught.value is error, caught.value.exit_status) == (status == 1, status)


def test_recipes_are_found_by_path_and_by_name(tmp_path, monkeypatch, small):
    shipped = find_recipe("table3.yaml").resolve()
    assert shipped.parts[-3:] == ("recipes", "comt", "table3.yaml")
    for name in ("table3", "comt/table3", "comt/table3.yaml"):
        assert find_recipe(name).resolve() == shipped
    monkeypatch.chdir(tmp_path)  # nothing here: those that came with the program
    assert find_recipe("comt/table3").resolve() == shipped
    assert "comt/table3" in available_recipes()
    own = tmp_path / "recipes" / "comt" / "table3.yaml"  # one's own comes before the program's
    own.parent.mkdir(parents=True)
    own.write_text(small)
    assert find_recipe("table3").resolve() == available_recipes()["comt/table3"].resolve() == own
    (tmp_path / "table3").write_text(small)  # a file as it stands comes before any name
    assert find_recipe("table3") == Path("table3")
    assert load_recipe(Path("table3"), catalogue()).path == Path("table3")


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ((), "recipe"),
        (("train.steps=12",), "recipe@steps-12"),
        (("train.steps=12", "train.learning_rate=0.010"), "recipe@learning_rate-0.01+steps-12"),
        (("train.steps=12", "train.kernels=reference", "train.save_every=3"), "recipe@steps-12"),
        (("train.steps=100", "model.size=tiny"), "recipe"),  # as the recipe has them
        (("train.steps=100", "train.warmup_steps=0.1"), "recipe"),
        (("train.steps=12", "model.size=tiny"), "recipe@steps-12"),
        (("train.warmup_steps=0.5",), "recipe@warmup_steps-0.5"),  # as given, not the steps that it comes to
        (("train.learning_rate=1e+18",), "recipe@learning_rate-1e18"),
    ],
)
def test_names_of_changed_settings(small, load, overrides, name):
    loaded = load(small, *overrides, scale="smoke")
    assert loaded.outputs("smoke") == name
    assert loaded.outputs("paper") == "recipe", "the settings are for one scale"


def test_no_two_settings_share_a_name():
    told = ["files:a/b", "files:a-b", "files-a-b", "files:a/b*", "files-a", "x" * 60, "x" * 61, "-", "a+b", "é", ""]
    names = [table_name("t", {"data.corpus": each}, Settings) for each in told]
    assert len(set(names)) == len(told)
    assert all(re.fullmatch(r"t@[A-Za-z0-9+._-]{1,48}", name) for name in names)
    assert [split_variant(name)[0] for name in names] == ["t"] * len(told)
    assert split_variant("me@home/table3") == ("me@home/table3", "")


def test_arguments():
    assert also_rows(None) == also_rows([]) == {}
    assert also_rows(["comt", "other=comt", "wide={name: comt, hidden: 64}", "{name: mix-ln, fraction: 0.5}"]) == {
        "comt": "comt",
        "other": "comt",
        "wide": {"name": "comt", "hidden": 64},
        "mix-ln": {"name": "mix-ln", "fraction": 0.5},
    }


@pytest.mark.parametrize(
    "arguments",
    [[""], ["wide={hidden: 4}"], ["[comt]"], ["wide={name: comt"], ["comt", "comt={name: comt, hidden: 4}"]],
    ids=str,
)
def test_arguments_of_no_form(arguments):
    with pytest.raises(UserError, match=re.escape(f"--also {arguments[-1]}: ")):
        also_rows(arguments)


def test_added_rows_stand_at_the_end_are_in_no_paper_and_always_selected(small):
    also = {"mine": "sandwich-ln", "gated": {"name": "comt", "hidden": 4}}  # the recipe has the second already
    recipe = load_recipe_text(small, catalogue(), also=also)
    assert list(recipe.recipe.rows) == ["plain", "gated", "extra", "mine"]
    written = small.replace("columns:\n  c4", "  mine: {method: sandwich-ln, in_paper: false}\ncolumns:\n  c4")
    everything = plan_on(recipe, "smoke", lambda _: ("x", "content"))
    assert everything == plan_on(load_recipe_text(written, catalogue()), "smoke", lambda _: ("x", "content"))
    assert {spec.row for spec in plan_on(recipe, "smoke", lambda _: ("x", None), rows="extra")} == {"extra", *also}
    planned = plan_recipe("table3", "smoke", also=also_rows(["mine=rezero"]), rows="pre-ln,mine").specs
    assert [(spec.row, spec.method["name"]) for spec in planned] == [("pre-ln", "pre-ln"), ("mine", "rezero")]


@pytest.mark.parametrize(
    ("also", "argument", "said"),
    [
        ({"mixln": "mixln"}, "mixln", "did you mean mix-ln?"),
        ({"wide": {"name": "comt", "hiden": 64}}, "wide: method.hiden", "did you mean hidden?"),
        ({"gated": "comt"}, "gated", "gated-2="),
        ({"a b": "comt"}, "a b", "'a b'"),
    ],
)
def test_what_is_wrong_with_an_added_row_names_the_argument_beside_what_is_wrong_in_the_file(
    small, also, argument, said
):
    with pytest.raises(RecipeError) as caught:
        load_recipe_text(small.replace("baseline: plain", "baseline: plan"), catalogue(), also=also)
    only, _ = map(str, caught.value.problems)
    assert only.startswith(f"--also {argument}: ")
    assert said in only


# ---- ids: every setting of every task that can change a number is part of them, and labels are not


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
    *(("train", key) for key in ("save_every", "keep_every", "observe_every", "kernels", "cuda_graphs", "sharding")),
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
    assert SPEC.with_content(None).id == SPEC.request == SPEC.with_content("4567").request
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
