"""Setups, the recipes that runs start from, and sweeps: what they come to, what wins, and errors by file and line."""
# ruff: noqa: E501 (a case is a line)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning_on import plan_on
from small_recipe import SMALL, assert_only_problem, load_recipe_text, problems_of

from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.plan import RunSpec, point_in_words

SETUP = """\
model: {size: tiny}
data: {vocabulary: 400}
train:
  batch_size: 2
  beta1: 0.5
  beta2: 0.6
"""


@pytest.fixture
def shelf(tmp_path, monkeypatch, small) -> Path:
    """A folder with `mine/table1.yaml`, the small recipe whose column of scale smoke has the setup `quick`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shelf" / "mine").mkdir(parents=True)
    (tmp_path / "shelf" / "setups").mkdir()
    text = small.replace("        compare_to: c4/130m", "        setup: quick\n        compare_to: c4/130m")
    (tmp_path / "shelf" / "mine" / "table1.yaml").write_text(text)
    (tmp_path / "shelf" / "setups" / "quick.yaml").write_text(SETUP)
    return tmp_path / "shelf"


def load(shelf: Path, *overrides: str) -> LoadedRecipe:
    return load_recipe(Path(shelf.name) / "mine" / "table1.yaml", catalogue(), overrides)


def problems(shelf: Path, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load(shelf, *overrides)
    return [str(problem) for problem in caught.value.problems]


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_a_setup_comes_just_before_the_settings_of_its_place(shelf):
    change(shelf / "mine/table1.yaml", "    seeds: [7]", "    seeds: [7]\n    settings: {train: {beta1: 0.1}}")
    loaded = load(shelf)
    smoke = loaded.settings["smoke"]["plain", "tiny"]
    assert smoke.data.vocabulary == 400  # recipe's settings < column's setup
    assert smoke.train.beta1 == 0.5  # scale's settings < column's setup
    assert smoke.train.batch_size == 4  # column's setup < column's settings
    assert (smoke.train.beta2, smoke.train.steps) == (0.6, 100)
    paper = loaded.settings["paper"]["plain", "c4/130m"]
    assert (paper.train.beta2, paper.data.vocabulary) == (0.999, 300)  # the paper's columns name no setup
    (shelf / "setups" / "quick.yaml").unlink()
    (missing,) = problems(shelf)
    assert missing.startswith("line 39: scales.smoke.columns.tiny.setup: ")
    change(shelf / "mine/table1.yaml", "setup: quick", "setup: smoke")  # the program's own
    assert load(shelf).settings["smoke"]["plain", "tiny"].data.vocabulary == 2048


@pytest.mark.parametrize(
    ("old", "new", "expected", "said"),
    [
        ("  beta1: 0.5", "  beta_1: 0.5", "line 5: train.beta_1", "beta1?"),
        ("beta1: 0.5", 'beta1: "0.5"', "line 5: train.beta1", "number"),
        ("beta1: 0.5", "beta1: *b", "line 5", "alias"),
        ("beta1: 0.5", "warmup_steps: 101", "line 5: train.warmup_steps", "100"),
    ],
)
def test_a_problem_in_a_setup_names_its_file_and_line_once(shelf, old, new, expected, said):
    """A combination that cannot work is blamed on the setup if that gave the value, though the rest is the recipe's."""
    change(shelf / "setups/quick.yaml", old, new)
    (only,) = problems(shelf)
    assert only.startswith(f"shelf/setups/quick.yaml, {expected}: ")
    assert said in only


@pytest.mark.parametrize("text", ["", "- a", "train: ["])
def test_a_file_that_is_no_setup(shelf, text):
    (shelf / "setups/quick.yaml").write_text(text)
    (only,) = problems(shelf)
    assert only.startswith("shelf/setups/quick.yaml")
    assert "is not" in only or "an object" in only


STARTED = """\
title: A table that starts from another
command: train-lm
baseline: plain
seeds: [3, 4]
start: {recipe: source.yaml, new: [head]}
settings:
  model: {size: tiny}
  data: {vocabulary: 300}
  train: {steps: 50}
rows:
  plain: {method: pre-ln}
  gated: {method: {name: comt, hidden: 4}}
columns:
  one: {}
scales:
  smoke: {description: quick}
"""


def write(folder: Path, started: str = STARTED, source: str = SMALL) -> Path:
    (folder / "source.yaml").write_text(source, encoding="utf-8")
    path = folder / "started.yaml"
    path.write_text(started, encoding="utf-8")
    return path


def load_started(folder: Path, started: str = STARTED, source: str = SMALL, **options: Any) -> LoadedRecipe:
    return load_recipe(write(folder, started, source), catalogue(), **options)


def plan(loaded: LoadedRecipe, scale: str = "smoke") -> list[RunSpec]:
    return plan_on(loaded, scale, lambda settings: ("print", "content"))


def test_runs_start_from_the_run_of_their_row_and_seed(tmp_path):
    every = plan(load_started(tmp_path))
    assert [(run.row, run.seed) for run in every] == [("plain", 3), ("gated", 3), ("plain", 4), ("gated", 4)]
    for run in every:
        (source,) = run.sources
        assert (source.table, source.row, source.column, source.seed) == ("source", run.row, "tiny", run.seed)
        assert (source.scale, source.method, run.start.new) == ("smoke", run.method, ("head",))
    source = load_recipe(tmp_path / "source.yaml", catalogue())
    (same,) = plan_on(source, "smoke", lambda _: ("print", "content"), rows="plain", seeds=[3])
    assert same.id == every[0].start.run.id  # trained for either table, it is trained once


def test_what_is_named_of_a_start_counts_and_rows_win_over_columns(tmp_path):
    text = STARTED.replace("one: {}", "one: {start: {recipe: source.yaml, row: extra, seed: 1, drop: [c]}}")
    text = text.replace("plain: {method: pre-ln}", "plain: {method: pre-ln, start: {recipe: source.yaml, drop: [r]}}")
    loaded = load_started(tmp_path, text.replace("columns:\n", "  bare: {method: pre-ln, start: null}\ncolumns:\n"))
    starts = {row: (start.row, start.seed, start.drop) for (row, _), (_, start) in loaded.starts["smoke"].items()}
    assert starts == {"plain": ("plain", None, ("r",)), "gated": ("extra", 1, ("c",))}


def test_what_is_set_is_not_for_the_source_and_added_rows_are(tmp_path):
    loaded = load_started(
        tmp_path, overrides=["train.steps=20"], also={"dyt": "dyt", "wide": {"name": "comt", "hidden": 8}}
    )
    every = {run.row: run for run in plan(loaded)}
    assert {run.settings.train.steps for run in every.values()} == {20}
    assert {run.sources[0].settings.train.steps for run in every.values()} == {100}
    assert every["wide"].sources[0].method == every["wide"].method


RECIPE = "recipe: source.yaml"
SMOKE = "  smoke: {description: quick}"
WRONG = {
    "no such recipe": ("source.yaml", "sorce.yaml", "line 5: start.recipe"),
    "no such row": (RECIPE, "recipe: source.yaml, row: plan", "line 5: start.row -> plain"),
    "a row of another name": ("  gated:", "  gatd:", "line 5: start.row -> gated"),
    "several columns": (SMOKE, f"{SMOKE}\n  paper: {{description: slow}}", "line 5: start.column"),
    "in a row": (
        "method: pre-ln", "method: pre-ln, start: {recipe: source.yaml, seed: -1}",
        "line 11: rows.plain.start.seed",
    ),
    "in a column": (
        "one: {}", "one: {start: {recipe: source.yaml, row: gate}}", "line 14: columns.one.start.row -> gated",
    ),
    "a part twice": ("[head]", "[head, head]", "line 5: start.new"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_told_once_with_its_line(old, new, expected, tmp_path):
    assert_only_problem(STARTED, old, new, expected, lambda text: load_started(tmp_path, text))


def test_what_is_wrong_in_the_source_is_told_with_its_file(tmp_path):
    def only(started: str = STARTED, source: str = SMALL) -> str:
        with pytest.raises(RecipeError) as error:
            load_started(tmp_path, started, source)
        (problem,) = error.value.problems
        return str(problem)

    broken = only(source=SMALL.replace("method: mix-ln", "method: mixln"))
    assert broken.startswith(f"{tmp_path}/source.yaml, line 25: rows.extra.method: ")
    circle = only(source=SMALL.replace("seeds: [1, 2]", "seeds: [1, 2]\nstart: {recipe: started.yaml}"))
    assert circle.startswith(f"{tmp_path}/source.yaml, line 7: start.recipe: ")
    assert circle.endswith("started.yaml -> source.yaml -> started.yaml")
    assert only(STARTED.replace("source.yaml", "started.yaml")).startswith("line 5: start.recipe: ")


# ---- sweeps


RATE = "train.learning_rate"
GRID = "sweep:\n  settings:\n    train.learning_rate: [3e-4, 1e-3]\n  metric: perplexity\n"
GRIDDED = SMALL.replace("settings:\n  data", f"{GRID}settings:\n  data", 1)
TUNED = (
    GRIDDED.replace(
        "[3e-4, 1e-3]\n  metric: perplexity\n", "[1e-3, 2e-3, 4e-3]\n  metric: perplexity\n  seeds: [101, 102]\n"
    )
    .replace("command: train-lm\n", "command: train-lm\nmetric: test_perplexity\n")
    .replace("  train:\n    steps: 100", "  train:\n    test_share: 0.5\n    steps: 100", 1)
)


def load_swept(text: str, *overrides: str, scale: str | None = None) -> LoadedRecipe:
    return load_recipe_text(text, catalogue(), overrides, scale)


def planned(text: str, *overrides: str, scale: str = "paper", **selection: Any) -> list[RunSpec]:
    return plan_on(load_swept(text, *overrides, scale=scale), scale, lambda _: ("print", "content"), **selection)


def ids(text: str, *overrides: str, **selection: Any) -> set[str]:
    return {spec.id for spec in planned(text, *overrides, **selection)}


def test_every_cell_has_a_run_for_every_point_and_seed():
    specs = planned(GRIDDED)
    assert len({spec.id for spec in specs}) == len(specs) == 3 * 2 * 2 * 2
    assert all(spec.point == {RATE: spec.settings.train.learning_rate} for spec in specs)
    places = [(spec.column, spec.seed, spec.point[RATE], spec.row) for spec in specs]
    assert places[:6] == [("c4/130m", 1, rate, row) for rate in (3e-4, 1e-3) for row in ("plain", "gated", "extra")]
    by_hand = [spec for rate in ("3e-4", "1e-3") for spec in planned(SMALL, f"{RATE}={rate}")]
    assert {spec.id for spec in specs} == {spec.id for spec in by_hand}, "ids say nothing of a grid"
    assert not any(spec.point or "point" in spec.model_dump() for spec in by_hand)


def test_it_wins_over_the_settings_of_files_and_loses_to_the_command_line():
    text = GRIDDED.replace("published", "published\n    settings: {train: {learning_rate: 0.5}}")
    rates = [spec.settings.train.learning_rate for spec in planned(text, rows="extra", columns="c4/130m", seeds=[1])]
    assert rates == [3e-4, 1e-3]
    fixed = planned(text, f"{RATE}=3e-4")
    assert {spec.id for spec in fixed} == ids(SMALL, f"{RATE}=3e-4")
    assert not any(spec.point for spec in fixed)
    two_keys = text.replace("1e-3]", "1e-3]\n    train.warmup_steps: [0.25, 5]")
    assert {tuple(spec.point) for spec in planned(two_keys, "train.warmup_steps=2")} == {(RATE,)}
    assert set(load_swept(text, f"{RATE}=3e-4", scale="smoke").grids) == {"paper"}
    every = planned(two_keys, rows="plain", columns="c4/130m", seeds=[1])
    assert [tuple(spec.point.values()) for spec in every] == [(r, w) for r in (3e-4, 1e-3) for w in (25, 5)]
    assert point_in_words(every[0].point) == "learning_rate 0.0003, warmup_steps 25"


def test_a_row_or_a_column_cannot_give_a_key_of_its_grid():
    """Nor is it silently overridden: setups and settings of the whole table can, and hold where there is no grid."""
    text = GRIDDED.replace("    in_paper: false", "    in_paper: false\n    settings: {train: {learning_rate: 0.5}}")
    text = text.replace("{batch_size: 4}", "{batch_size: 4, learning_rate: 0.4}")
    assert [problem.split(": ")[1] for problem in problems_of(text, load_swept)] == [
        "rows.extra.settings.train.learning_rate", "scales.smoke.columns.tiny.settings.train.learning_rate",
    ]  # fmt: skip


WRONG_SWEEP = {
    "empty settings": ("settings:\n    train.learning_rate: [3e-4, 1e-3]", "settings: {}", "line 8: sweep.settings"),
    "a value twice": ("1e-3]", "1e-3, 3.0e-4]", "line 9: sweep.settings.train.learning_rate[2]"),
    "a value of another type": ("1e-3]", "fast]", "line 9: sweep.settings.train.learning_rate[1]"),
    "unknown setting": (RATE, "train.learning_rat", "line 9: sweep.settings.train.learning_rat -> learning_rate"),
    "unknown section": ("train.learn", "trian.learn", "line 9: sweep.settings.trian.learning_rate -> train"),
    "data": (f"{RATE}: [3e-4, 1e-3]", "data.vocabulary: [300, 400]", "line 9: sweep.settings.data.vocabulary"),
    "what changes no number": (f"{RATE}: [3e-4, 1e-3]", "train.kernels: [fused, reference]", "line 9: sweep.settings.train.kernels"),
    "unknown metric": ("metric: perplexity", "metric: perplexty", "line 10: sweep.metric -> perplexity"),
    "shares of one step": (f"{RATE}: [3e-4, 1e-3]", "train.warmup_steps: [0.1, 0.101]", "line 8: sweep.settings"),
    "a figure": ("rows:", "figure: {draw: residual-stream}\nrows:", "line 7: sweep"),
    "ablations": ("scales:", "ablations: {hidden-size: {}}\nscales:", "line 7: sweep"),
}  # fmt: skip
WRONG_TRIALS = {
    "a seed of the table": ("[101, 102]", "[101, 7]", "line 12: sweep.seeds"),
    "too few values": ("2e-3, 4e-3]", "2e-3]", "line 10: sweep.settings.train.learning_rate"),
    "no numbers": (f"{RATE}: [1e-3, 2e-3, 4e-3]", "train.schedule: [cosine, linear, constant]", "line 10: sweep.settings.train.schedule"),
    "chosen by the test": ("  metric: perplexity", "  metric: test_perplexity", "line 11: sweep.metric"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "case"),
    [*((GRIDDED, case) for case in WRONG_SWEEP.values()), *((TUNED, case) for case in WRONG_TRIALS.values())],
    ids=[*WRONG_SWEEP, *WRONG_TRIALS],
)
def test_what_is_wrong_with_a_sweep_is_told_once_with_its_line(text, case):
    assert_only_problem(text, *case, load_swept)


def test_test_data_decide_nothing_and_what_chooses_is_not_shown():
    translators = (
        "title: Translators\ncommand: train-mt\nbaseline: plain\nseeds: [1]\nsetup: mt-smoke\n"
        "sweep: {settings: {train.learning_rate: [3e-4, 1e-3]}, metric: METRIC}\nrows:\n  plain: {method: post-ln}\n"
        "columns:\n  one: {}\nscales:\n  smoke: {description: quick}\n"
    )
    for metric in ("test_bleu", "unseen_bleu", "last_test_bleu"):
        (found,) = problems_of(translators.replace("METRIC", metric), load_swept)
        assert found.startswith(f"line 6: sweep.metric: {metric} ")
    assert load_swept(translators.replace("METRIC", "bleu")).grids["smoke"].metric == "bleu"
    found = problems_of(TUNED.replace("metric: test_perplexity", "metric: perplexity", 1), load_swept)
    assert {problem.split(": ")[1] for problem in found} == {"sweep"}
    assert all(
        "train.test_share" in problem for problem in problems_of(TUNED.replace("    test_share: 0.5\n", ""), load_swept)
    )


# ---- with trials


def test_every_row_has_the_same_trials_and_runs_at_its_own_rate():
    text = TUNED.replace("    method: pre-ln\n", "    method: pre-ln\n    settings: {train: {learning_rate: 0.5}}\n", 1)
    specs = planned(text, scale="smoke", rows="plain,gated")
    for row, rate in (("plain", 0.5), ("gated", 1e-3)):
        own = [(spec.seed, spec.point[RATE]) for spec in specs if spec.row == row]
        assert own == [(seed, value) for seed in (101, 102) for value in (1e-3, 2e-3, 4e-3)] + [(7, rate)]
        assert all(spec.point[RATE] == spec.settings.train.learning_rate for spec in specs)


def test_trials_are_the_runs_that_the_same_settings_ask_for():
    by_hand = TUNED.replace("sweep:", "sweep: null\nunused:").split("unused:")[0] + TUNED.split("102]\n")[1]
    assert ids(by_hand, f"{RATE}=4e-3", scale="smoke", rows="plain", seeds=[101]) < ids(
        TUNED, scale="smoke", rows="plain"
    )
    with pytest.raises(UserError, match="seed 102 is a seed of the sweep's trials"):
        planned(TUNED, seeds=[1, 102])


def swept(text: str, tmp_path, *arguments: str) -> LoadedRecipe:
    path = tmp_path / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path, catalogue(), ["train.test_share=0.25"], "smoke", sweep=arguments)


def test_the_command_line_gives_any_recipe_a_sweep(tmp_path):
    loaded = swept(SMALL, tmp_path, f"{RATE}=1e-3,2e-3,4e-3")
    assert loaded.recipe.metric_at("smoke", "tiny") == "test_perplexity"
    assert {spec.seed for spec in plan_on(loaded, "smoke", lambda _: ("print", "content"))} == {101, 102, 7}
    assert set(loaded.recipe.scales) == {"smoke"}
    text = TUNED.replace("metric: perplexity\n", "metric: bits_per_byte\n").replace("[101, 102]", "[500]")
    grid = swept(text, tmp_path, f"{RATE}=1,2,3,4").grids["smoke"]
    assert (grid.metric, grid.seeds, len(grid.points)) == ("bits_per_byte", (500,), 4), "metric and seeds stay"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        *((argument, "KEY=VALUE,VALUE") for argument in ("train.steps=", "train.steps=[1,2")),
        ("train.learning_rate=1e-3,2e-3", "only 2"),
        ("train.warmup_steps=1,5000,9", "5000 steps"),
        ("train.steps=3,20,30", "settings.train.warmup_steps: "),
    ],
)
def test_a_wrong_argument_is_said(tmp_path, argument, message):
    with pytest.raises(UserError) as raised:
        swept(SMALL, tmp_path, argument)
    assert f"--sweep {argument}: " in str(raised.value)
    assert message in str(raised.value)
    assert raised.value.exit_status == 2
