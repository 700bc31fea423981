"""From a recipe to runs: how values are read, merged and identified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on

from comt_cli.data.text.settings import DataSettings
from comt_cli.methods import catalogue
from comt_cli.recipe.load import available_recipes, find_recipe, load_recipe
from comt_cli.recipe.yaml_lines import parse
from comt_cli.runs.plan import RunSpec, RunStart, plan, with_sources
from comt_cli.tasks import Task
from comt_cli.tasks.settings.language import Settings, TrainSettings
from comt_cli.tasks.settings.llama import ModelSettings

SPEC = RunSpec(
    paper="comt",
    table="table3",
    command="train-lm",
    scale="smoke",
    row="pre-ln+comt",
    column="c4/130m",
    seed=1,
    method={"name": "comt", "hidden": 2},
    settings=Settings(
        model=ModelSettings(size="tiny"), data=DataSettings(vocabulary=300), train=TrainSettings(steps=100)
    ),
    data_fingerprint="abc",
    data_content="0123",
)

SPEC_ID = "8bcee96d0f57"

# For every setting, a value that is valid in SPEC and is not the one that stands there.
OTHER = {
    "model": {
        "size": "60m", "width": 64, "ffn_width": 64, "layers": 2, "heads": 2, "kv_heads": 2,
        "tied_embeddings": True, "rope_theta": 5e5, "norm_eps": 1e-5, "init_std": 0.01, "embedding_init_std": 0.632,
    },
    "data": {
        "corpus": "c4", "tokenizer": "bytes", "vocabulary": 301, "rows": "pad", "sequence_length": 128,
        "validation_fraction": 0.1, "max_train_tokens": 1000, "folder": "texts",
    },
    "train": {
        "steps": 101, "batch_size": 16, "micro_batch_size": 8, "learning_rate": 3e-4, "schedule": "linear",
        "warmup_steps": 5, "min_lr_ratio": 0.0, "optimizer": "adamw", "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6,
        "weight_decay": 0.1, "gradient_clipping": 1.0, "precision": "bf16-mixed", "compile": True, "kernels": "fused",
        "deterministic": False, "cuda_graphs": True,
        "activation_checkpointing": True, "sharding": "fsdp", "log_every": 5, "evaluate_every": 50,
        "evaluation_batch_size": 4, "evaluation_tokens": 1000, "test_share": 0.5, "save_every": 50, "keep_every": 50,
        "select": "best", "average_last": 2, "average_every": 5,
    },
}  # fmt: skip
ONLY_ONE_VALUE = {("model", "family")}  # no other model yet
NOT_PART_OF_THE_ID = {
    *(("train", key) for key in ("save_every", "keep_every", "sharding", "kernels", "cuda_graphs")),
    ("data", "folder"),
}
ALL_SETTINGS = [
    (section, key)
    for section, kind in (("model", ModelSettings), ("data", DataSettings), ("train", TrainSettings))
    for key in kind.model_fields
]
WITH_IT = {
    "corpus": {"max_train_tokens": 5, "validation_fraction": None},
    "tokenizer": {"vocabulary": None},
    "folder": {"corpus": "wikitext-103", "validation_fraction": None},
    "select": {"evaluate_every": 50},
    "average_last": {"average_every": 5},
    "average_every": {"average_last": 2},
    "cuda_graphs": {"compile": True},
}  # what a value needs beside it


def with_setting(section: str, changes: dict) -> RunSpec:
    data = SPEC.model_dump(mode="json")
    data["settings"][section].update(changes)
    return RunSpec.model_validate_json(json.dumps(data))


@pytest.mark.parametrize(("section", "key"), ALL_SETTINGS)
def test_every_setting_that_can_change_a_number_is_part_of_the_id(section, key):
    if (section, key) in ONLY_ONE_VALUE:
        return
    beside = WITH_IT.get(key, {})
    changed = with_setting(section, {**beside, key: OTHER[section][key]})
    without = with_setting(section, beside) if key in ("corpus", "select", "folder", "cuda_graphs") else SPEC
    assert changed.settings != without.settings
    assert (changed.id == without.id) == ((section, key) in NOT_PART_OF_THE_ID)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"paper": "other"}, True),
        ({"table": "other"}, True),
        ({"row": "other"}, True),
        ({"column": "other"}, True),
        ({"scale": "paper"}, True),
        ({"point": {"train.learning_rate": 1}}, True),
        ({"command": "train-resnet"}, False),
        ({"seed": 2}, False),
        ({"method": {"name": "comt", "hidden": 3}}, False),
        ({"method": {"hidden": 2, "name": "comt"}}, True),  # the order of keys says nothing
        ({"data_fingerprint": "abd"}, True),  # whatever prepared it, the data is the same
        ({"data_content": "0124"}, False),
    ],
)
def test_labels_are_no_part_of_the_id_and_all_else_is(change, same):
    assert (SPEC.model_copy(update=change).id == SPEC.id) is same


def test_no_field_of_a_run_was_forgotten_here():
    labels = {"paper", "table", "row", "column", "scale", "point", "changed"}
    assert set(RunSpec.model_fields) == labels | {
        "command", "seed", "method", "data_fingerprint", "data_content", "settings", "start",
    }  # fmt: skip


def test_what_is_asked_for_has_a_name_before_the_data_is_prepared():
    unprepared = SPEC.with_content(None)
    assert unprepared.id == unprepared.request == SPEC.request != SPEC.id
    assert unprepared.with_content("0123").id == SPEC.id
    assert SPEC.model_copy(update={"data_fingerprint": "abd"}).request != SPEC.request


def test_the_id_of_a_run_is_the_same_tomorrow():
    """Guards finished runs: whoever changes this on purpose raises SPEC_VERSION, and knows that all runs are new."""
    assert SPEC.id == SPEC_ID
    assert RunSpec.model_validate_json(SPEC.model_dump_json()).id == SPEC.id


def test_a_methods_defaults_are_part_of_the_id(small, load):
    short, full, other = (
        plan_on(load(small.replace("hidden: 4", text)), "smoke", lambda _: ("x", None), rows="gated")[0]
        for text in ("residual: pre-norm", "hidden: 2", "hidden: 3")
    )
    assert short.method == full.method
    assert short.method["hidden"] == 2
    assert short.id == full.id != other.id


def started(run: RunSpec = SPEC, **parts: tuple[str, ...]) -> RunSpec:
    """A run that starts from another one, of another seed."""
    return SPEC.model_copy(update={"seed": 5, "start": RunStart(run=run, **parts)})


def test_what_a_run_starts_from_is_part_of_its_id():
    plain, other = SPEC.model_copy(update={"seed": 5}), SPEC.model_copy(update={"seed": 6})
    runs = [
        plain,
        started(),
        started(other),
        started(started()),
        started(new=("head",)),
        started(drop=("head",)),
        started(SPEC.with_content("4567")),
    ]
    assert len({run.id for run in runs}) == len(runs)
    assert started(new=("a", "b")).id == started(new=("b", "a")).id
    assert started(SPEC.model_copy(update={"row": "other"})).id == started().id  # a label, there too
    assert started().id == "ce710b41b019"


def test_a_started_run_is_read_back_whole():
    run = started(started(), new=("head",))
    again = RunSpec.model_validate_json(run.model_dump_json())
    assert again == run
    assert [source.id for source in again.sources] == [SPEC.id, started().id]


def test_an_id_is_not_final_before_the_data_of_every_source_is_known():
    unknown = started(SPEC.with_content(None))
    assert unknown.id == unknown.request == started().request
    assert not unknown.is_known
    assert unknown.with_contents({"abc": "0123"}).id == started().id
    assert started().is_known


def test_sources_come_first_and_once():
    second = started().model_copy(update={"seed": 8})
    assert with_sources([started(), second, SPEC]) == [SPEC, started(), second, SPEC]
    assert with_sources([started(started())]) == [SPEC, started(), started(started())]


def test_saying_what_is_implied_makes_no_other_run():
    t5 = {"tokenizer": "t5", "vocabulary": None}
    assert with_setting("data", {**t5, "vocabulary": 32000}).id == with_setting("data", t5).id
    c4 = {**t5, "corpus": "c4", "max_train_tokens": 5, "validation_fraction": None}
    assert with_setting("data", c4).settings.data.validation_fraction is None
    assert TrainSettings(steps=1, min_lr_ratio=0.1) == TrainSettings(steps=1)
    constant = TrainSettings(steps=1, schedule="constant")
    assert TrainSettings.model_validate(constant.model_dump()) == constant  # as spec.json is read back


@pytest.mark.parametrize("field", ["paper", "table", "row", "column", "scale"])
@pytest.mark.parametrize("name", ["../..", "/tmp/evil", "..", ""])
def test_a_strangers_spec_cannot_name_a_folder_outside(field, name):
    with pytest.raises(ValueError, match=field):
        RunSpec.model_validate({**SPEC.model_dump(), field: name})


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_strangers_seed_is_bounded(seed):
    with pytest.raises(ValueError, match="seed"):
        RunSpec.model_validate({**SPEC.model_dump(), "seed": seed})


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9+._/-]{0,20}", fullmatch=True)


@given(paper=NAMES, table=NAMES, row=NAMES, column=NAMES)
def test_a_run_stays_below_its_folder_whatever_the_names(paper, table, row, column):
    spec = SPEC.model_copy(update={"paper": paper, "table": table, "row": row, "column": column})
    path = spec.relative_path
    assert len(path.parts) == 5
    assert ".." not in path.parts
    assert not path.is_absolute()
    assert path.parts[-1] == f"seed1-{spec.id}"


@pytest.mark.parametrize("paper", ["by-id", "by/id", "BY-ID"])
def test_no_paper_can_take_the_folder_of_the_runs_themselves(paper):
    assert SPEC.model_copy(update={"paper": paper}).relative_path.parts[0] == f"paper-{paper.replace('/', '-')}"


def test_relative_path():
    assert SPEC.relative_path == Path("comt/table3/pre-ln+comt/c4-130m") / f"seed1-{SPEC.id}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e-3", 1e-3),
        ("3e4", 3e4),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("010", 10),
        ("0o10", 8),
        ("0x10", 16),
        ("12:30:45", "12:30:45"),
        ("2026-11-21", "2026-11-21"),
        ("'200'", "200"),
        ("[1, 2.0]", [1, 2.0]),
        ("{a: b}", {"a": "b"}),
    ],
)
def test_yaml_is_read_as_version_1_2(text, value):
    read = parse(f"key: {text}", "x").data["key"]
    assert read == value
    assert type(read) is type(value)


def test_lines(small):
    document = parse(small, "x")
    lines = small.splitlines()
    assert lines[document.line(("rows", "gated", "method", "hidden")) - 1] == "      hidden: 4"
    assert document.line(("rows", "gated", "nowhere")) == document.line(("rows", "gated"))
    assert document.line(("nowhere",)) is None
    for path, line in document.lines.items():
        if isinstance(path[-1], str):
            assert f"{path[-1]}:" in lines[line - 1]
    assert parse("\ufeffa: 1\r\nb: 2\r\n", "x").lines == {("a",): 1, ("b",): 2}


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
    assert plain.train.steps == 50  # the command line last
    assert plain.train.learning_rate == 3e-4
    assert plain.train.warmup_steps == 10
    assert plain.data.vocabulary == 300
    assert plain.data.sequence_length == 32
    paper = loaded.settings["paper"]
    assert set(paper) == {(row, column) for row in ("plain", "gated", "extra") for column in ("c4/130m", "c4/250m")}
    assert paper["plain", "c4/130m"].model.size == "130m"
    assert paper["plain", "c4/250m"].model.size == "250m"
    assert paper["plain", "c4/130m"].train.beta1 == 0.9


def test_an_override_says_nothing_about_other_scales(small, load):
    """Ten steps suit smoke; that they contradict the warm-up of another scale must not stop it."""
    text = small.replace("train: {batch_size: 4}", "train: {batch_size: 4, warmup_steps: 1}")
    loaded = load(text, "train.steps=5", scale="smoke")
    assert loaded.settings["smoke"]["plain", "tiny"].train.steps == 5
    assert loaded.settings["paper"]["plain", "c4/130m"].train.steps == 100


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


def test_compared_columns(small, load):
    loaded = load(small)
    assert loaded.compared_column("smoke", "tiny") == "c4/130m"
    assert loaded.compared_column("paper", "c4/250m") == "c4/250m"
    alone = load(small.replace("        compare_to: c4/130m\n", ""))
    assert alone.compared_column("smoke", "tiny") is None


def test_recipes_are_found_by_path_and_by_name(tmp_path, monkeypatch, small):
    shipped = find_recipe("table3.yaml").resolve()
    assert shipped.parts[-3:] == ("recipes", "comt", "table3.yaml")
    for name in ("table3", "comt/table3", "comt/table3.yaml"):
        assert find_recipe(name).resolve() == shipped
    monkeypatch.chdir(tmp_path)  # nothing here: those that came with the program
    assert find_recipe("comt/table3").resolve() == shipped
    assert "comt/table3" in available_recipes()
    mine = tmp_path / "recipes" / "mine" / "gates.v2.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text(small)
    assert find_recipe("mine/gates.v2").resolve() == mine
    assert list(available_recipes()) == sorted({"mine/gates.v2", *available_recipes()})
    assert available_recipes()["mine/gates.v2"].resolve() == mine
    own = tmp_path / "recipes" / "comt" / "table3.yaml"  # one's own comes before the program's
    own.parent.mkdir()
    own.write_text(small)
    assert find_recipe("table3").resolve() == available_recipes()["comt/table3"].resolve() == own
    (tmp_path / "table3").write_text(small)  # a file as it stands comes before any name
    assert find_recipe("table3") == Path("table3")
    assert load_recipe(Path("table3"), catalogue()).path == Path("table3")
