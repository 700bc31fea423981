"""`sweep`: the runs that it plans, what takes it away, and what can be wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from planning_on import plan_on
from small_recipe import SMALL, assert_only_problem, problems_of

from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, load_recipe, load_recipe_text
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.plan import RunSpec, point_in_words

GRID = """\
sweep:
  settings:
    train.learning_rate: [3e-4, 1e-3]
  metric: perplexity
"""
GRIDDED = SMALL.replace("settings:\n  data", f"{GRID}settings:\n  data", 1)


def load(text: str, *overrides: str, scale: str | None = None) -> LoadedRecipe:
    return load_recipe_text(text, catalogue(), overrides, scale)


def planned(text: str, *overrides: str, scale: str = "paper", **selection: Any) -> list[RunSpec]:
    return plan_on(load(text, *overrides, scale=scale), scale, lambda _: ("print", "content"), **selection)


def test_every_cell_has_a_run_for_every_point_and_seed():
    specs = planned(GRIDDED)
    assert len(specs) == 3 * 2 * 2 * 2
    assert len({spec.id for spec in specs}) == len(specs)
    for spec in specs:
        assert spec.point == {"train.learning_rate": spec.settings.train.learning_rate}
    places = [(spec.column, spec.seed, spec.point["train.learning_rate"], spec.row) for spec in specs]
    assert places[:6] == [("c4/130m", 1, rate, row) for rate in (3e-4, 1e-3) for row in ("plain", "gated", "extra")]


def test_several_keys_are_all_combinations_and_shares_are_whole_steps():
    text = GRIDDED.replace("1e-3]", "1e-3]\n    train.warmup_steps: [0.25, 5]\n    model.width: [288, null]")
    points = [spec.point for spec in planned(text, "model.layers=2", rows="plain", columns="c4/130m", seeds=[1])]
    assert [tuple(point.values()) for point in points] == [
        (rate, warm_up, width) for rate in (3e-4, 1e-3) for warm_up in (25, 5) for width in (288, None)
    ]
    assert point_in_words(points[0]) == "learning_rate 0.0003, warmup_steps 25, width 288"


def test_a_point_is_the_run_that_setting_its_values_gives():
    """So ids say nothing of a grid, and what was trained by hand is not trained again."""
    of_grid = planned(GRIDDED)
    by_hand = [spec for rate in ("3e-4", "1e-3") for spec in planned(SMALL, f"train.learning_rate={rate}")]
    assert {spec.id for spec in of_grid} == {spec.id for spec in by_hand}
    assert not any(spec.point or "point" in spec.model_dump() for spec in by_hand)
    assert all(RunSpec.model_validate(spec.model_dump(mode="json")) == spec for spec in (of_grid[0], by_hand[0]))
    assert of_grid[0].model_dump(mode="json")["point"] == {"train.learning_rate": 3e-4}


def test_it_wins_over_the_settings_of_files_and_loses_to_the_command_line():
    text = GRIDDED.replace("published", "published\n    settings: {train: {learning_rate: 0.5}}")
    rates = [spec.settings.train.learning_rate for spec in planned(text, rows="extra", columns="c4/130m", seeds=[1])]
    assert rates == [3e-4, 1e-3]
    fixed = planned(text, "train.learning_rate=3e-4")
    assert {spec.id for spec in fixed} == {spec.id for spec in planned(SMALL, "train.learning_rate=3e-4")}
    assert not any(spec.point for spec in fixed)
    two_keys = text.replace("1e-3]", "1e-3]\n    train.weight_decay: [0.1, 0.2]")
    assert {tuple(spec.point) for spec in planned(two_keys, "train.weight_decay=0.3")} == {("train.learning_rate",)}
    other_scale = load(text, "train.learning_rate=3e-4", scale="smoke")
    assert set(other_scale.grids) == {"paper"}


def test_a_row_or_a_column_cannot_give_a_key_of_its_grid():
    """Nor is it silently overridden: setups and settings of the whole table can, and hold where there is no grid."""
    text = GRIDDED.replace("    in_paper: false", "    in_paper: false\n    settings: {train: {learning_rate: 0.5}}")
    text = text.replace("{batch_size: 4}", "{batch_size: 4, learning_rate: 0.4}")
    text = text.replace("model: {size: 250m}", "model: {size: 250m}\n      train:\n        learning_rate: 0.3")
    said = {problem.split(": ")[1]: problem for problem in problems_of(text, load)}
    assert [*said] == [
        "rows.extra.settings.train.learning_rate",
        "columns.c4/250m.settings.train.learning_rate",
        "scales.smoke.columns.tiny.settings.train.learning_rate",
    ]
    for key, scale in zip(said, ("smoke", "paper", "smoke"), strict=True):
        line = int(said[key].split(":")[0].removeprefix("line "))
        assert "learning_rate: 0." in text.splitlines()[line - 1]
        assert f"scale {scale}" in said[key]
    with pytest.raises(RecipeError):  # the file is as wrong where an argument takes the key from the grid
        load(text, "train.learning_rate=3e-4")
    elsewhere = GRIDDED.replace("    seeds: [7]", "    sweep: null")
    elsewhere = elsewhere.replace("{batch_size: 4}", "{batch_size: 4, learning_rate: 0.4}")
    (spec,) = planned(elsewhere, scale="smoke", rows="plain", seeds=[1])
    assert spec.settings.train.learning_rate == 0.4


@pytest.mark.parametrize(
    ("scales", "points"),
    [
        ("sweep: null", 1),
        ("sweep: {settings: {train.weight_decay: [0, 0.1, 0.2]}, metric: bits_per_byte}", 3),
        ("seeds: [7]", 2),
    ],
)
def test_a_scale_has_its_own_or_the_recipes(scales, points):
    text = GRIDDED.replace("    seeds: [7]", f"    {scales}")
    smoke = planned(text, scale="smoke", rows="plain", seeds=[1])
    assert len(smoke) == points
    assert len(planned(text, rows="plain", columns="c4/130m", seeds=[1])) == 2


WRONG = {
    "unknown key": ("  metric: perp", "  metrics: a\n  metric: perp", "line 10: sweep.metrics -> metric"),
    "no metric": ("  metric: perplexity\n", "", "line 7: sweep.metric"),
    "empty settings": ("settings:\n    train.learning_rate: [3e-4, 1e-3]", "settings: {}", "line 8: sweep.settings"),
    "no list": ("[3e-4, 1e-3]", "3e-4", "line 9: sweep.settings.train.learning_rate"),
    "empty list": ("[3e-4, 1e-3]", "[]", "line 9: sweep.settings.train.learning_rate"),
    "a value twice": ("1e-3]", "1e-3, 3.0e-4]", "line 9: sweep.settings.train.learning_rate[2]"),
    "a value of another type": ("1e-3]", "fast]", "line 9: sweep.settings.train.learning_rate[1]"),
    "unknown setting": (
        "train.learning_rate", "train.learning_rat",
        "line 9: sweep.settings.train.learning_rat -> learning_rate",
    ),
    "unknown section": ("train.learn", "trian.learn", "line 9: sweep.settings.trian.learning_rate -> train"),
    "no section": ("train.learning_rate", "learning_rate", "line 9: sweep.settings.learning_rate"),
    "data": (
        "train.learning_rate: [3e-4, 1e-3]", "data.vocabulary: [300, 400]",
        "line 9: sweep.settings.data.vocabulary",
    ),
    "what changes no number": (
        "train.learning_rate: [3e-4, 1e-3]", "train.kernels: [fused, reference]",
        "line 9: sweep.settings.train.kernels",
    ),
    "unknown metric": ("metric: perplexity", "metric: perplexty", "line 10: sweep.metric -> perplexity"),
    "shares of one step": (
        "train.learning_rate: [3e-4, 1e-3]", "train.warmup_steps: [0.1, 0.101]", "line 8: sweep.settings",
    ),
    "what cannot work": (
        "train.learning_rate: [3e-4, 1e-3]", "train.warmup_steps: [10, 101]",
        "line 9: sweep.settings.train.warmup_steps[1]",
    ),
    "too many points": (
        "[3e-4, 1e-3]", f"[{', '.join(f'{n}e-6' for n in range(1, 402))}]", "line 31: columns",
    ),
    "a figure": ("rows:", "figure: {draw: residual-stream}\nrows:", "line 7: sweep"),
    "ablations": ("scales:", "ablations: {hidden-size: {}}\nscales:", "line 7: sweep"),
    "at a scale": (
        "    seeds: [7]", "    sweep: {settings: {train.learning_rate: []}, metric: perplexity}",
        "line 39: scales.smoke.sweep.settings.train.learning_rate",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_told_once_with_its_line(old, new, expected):
    assert_only_problem(GRIDDED, old, new, expected, load)


@pytest.mark.parametrize("metric", ["test_bleu", "unseen_bleu", "last_test_bleu"])
def test_test_data_decide_nothing(metric):
    text = f"""\
title: Translators
command: train-mt
baseline: plain
seeds: [1]
setup: mt-smoke
sweep: {{settings: {{train.learning_rate: [3e-4, 1e-3]}}, metric: {metric}}}
rows:
  plain: {{method: post-ln}}
columns:
  one: {{}}
scales:
  smoke: {{description: quick}}
"""
    (found,) = problems_of(text, load)
    assert found.startswith(f"line 6: sweep.metric: {metric} ")
    assert load(text.replace(metric, "bleu")).grids["smoke"].metric == "bleu"


def test_nothing_starts_from_a_recipe_with_a_grid_and_one_with_a_grid_starts(tmp_path):
    started = SMALL.replace("settings:\n  data", "start: {recipe: source.yaml}\nsettings:\n  data", 1)
    (tmp_path / "started.yaml").write_text(started, encoding="utf-8")
    (tmp_path / "source.yaml").write_text(GRIDDED, encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        load_recipe(tmp_path / "started.yaml", catalogue())
    assert [(problem.line, problem.key) for problem in error.value.problems] == [(7, "start.recipe")] * 2
    (tmp_path / "source.yaml").write_text(SMALL, encoding="utf-8")
    gridded = started.replace("start:", f"{GRID}start:", 1)
    (tmp_path / "started.yaml").write_text(gridded, encoding="utf-8")
    loaded = load_recipe(tmp_path / "started.yaml", catalogue())
    specs = plan_on(loaded, "smoke", lambda _: ("print", "content"), rows="plain")
    assert len({spec.id for spec in specs}) == 2
    assert len({spec.sources[0].id for spec in specs}) == 1
    assert not specs[0].sources[0].point
