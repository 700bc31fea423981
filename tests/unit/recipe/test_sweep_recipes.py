"""A sweep with trials: what it plans, what the command line gives, and what can be wrong with it."""

from __future__ import annotations

import pytest
from planning_on import plan_on
from small_recipe import SMALL, assert_only_problem, problems_of

from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, load_recipe

TUNED = (
    SMALL.replace("command: train-lm\n", "command: train-lm\nmetric: test_perplexity\n")
    .replace(
        "settings:\n  data",
        """\
sweep:
  settings:
    train.learning_rate: [1e-3, 2e-3, 4e-3]
  metric: perplexity
  seeds: [101, 102]
settings:
  data""",
        1,
    )
    .replace("  train:\n    steps: 100", "  train:\n    test_share: 0.5\n    steps: 100", 1)
)


def planned(loaded: LoadedRecipe, **selection):
    return plan_on(loaded, "smoke", lambda _: ("print", "content"), **selection)


def test_every_row_has_the_same_trials_and_runs_at_the_recipes_own_rate(load):
    specs = planned(load(TUNED), rows="plain,gated")
    rate = "train.learning_rate"
    for row in ("plain", "gated"):
        own = [(spec.seed, spec.point[rate]) for spec in specs if spec.row == row]
        assert own == [(seed, value) for seed in (101, 102) for value in (1e-3, 2e-3, 4e-3)] + [(7, 1e-3)]


def test_a_row_may_have_a_rate_of_its_own_which_is_the_recipes(load):
    text = TUNED.replace("    method: pre-ln\n", "    method: pre-ln\n    settings: {train: {learning_rate: 0.5}}\n", 1)
    rates = {spec.seed: spec.settings.train.learning_rate for spec in planned(load(text), rows="plain")}
    assert rates == {101: 4e-3, 102: 4e-3, 7: 0.5}


def test_trials_are_the_runs_that_the_same_settings_ask_for(load):
    by_hand = load(TUNED.replace("sweep:", "sweep: null\nunused:").split("unused:")[0] + TUNED.split("102]\n")[1],
                   "train.learning_rate=4e-3")  # fmt: skip
    ids = {spec.id for spec in planned(by_hand, rows="plain", seeds=[101])}
    assert ids < {spec.id for spec in planned(load(TUNED), rows="plain")}


def test_seeds_of_the_command_line_are_none_of_the_trials(load):
    with pytest.raises(UserError, match="seed 102 is one of the sweep's trials"):
        planned(load(TUNED), seeds=[1, 102])


WRONG = {
    "a seed of the table": ("[101, 102]", "[101, 7]", "line 12: sweep.seeds"),
    "too few values": ("2e-3, 4e-3]", "2e-3]", "line 10: sweep.settings.train.learning_rate"),
    "no numbers": (
        "train.learning_rate: [1e-3, 2e-3, 4e-3]", "train.schedule: [cosine, linear, constant]",
        "line 10: sweep.settings.train.schedule",
    ),
    "chosen by the test": ("  metric: perplexity", "  metric: test_perplexity", "line 11: sweep.metric"),
    "its old name": ("sweep:", "grid:", "line 8: grid"),
    "a seed twice": ("[101, 102]", "[101, 101]", "line 12: sweep.seeds"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_said_with_its_line(load, old, new, expected):
    assert_only_problem(TUNED, old, new, expected, load)


def test_what_chooses_is_not_what_is_shown(load):
    found = problems_of(TUNED.replace("metric: test_perplexity", "metric: perplexity", 1), load)
    assert {problem.split(": ")[1] for problem in found} == {"sweep"}
    found = problems_of(TUNED.replace("    test_share: 0.5\n", "", 1), load)
    assert all("train.test_share" in problem for problem in found)


def swept(text: str, tmp_path, *arguments: str) -> LoadedRecipe:
    path = tmp_path / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path, catalogue(), ["train.test_share=0.25"], "smoke", sweep=arguments)


def test_the_command_line_gives_any_recipe_a_sweep(tmp_path):
    loaded = swept(SMALL, tmp_path, "train.learning_rate=1e-3,2e-3,4e-3")
    assert loaded.recipe.metric_at("smoke", "tiny") == "test_perplexity"
    assert {spec.seed for spec in planned(loaded)} == {101, 102, 7}
    assert set(loaded.recipe.scales) == {"smoke"}


def test_the_command_line_keeps_metric_and_seeds_of_the_recipes_sweep(tmp_path):
    text = TUNED.replace("metric: perplexity\n", "metric: bits_per_byte\n").replace("[101, 102]", "[500]")
    grid = swept(text, tmp_path, "train.learning_rate=1,2,3,4").grids["smoke"]
    assert (grid.metric, grid.seeds, len(grid.points)) == ("bits_per_byte", (500,), 4)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        *((argument, "KEY=VALUE,VALUE") for argument in ("train.steps", "train.steps=", "train.steps=[1,2")),
        ("train.lr=1,2,3", "did you mean learning_rate?"),
        ("train.learning_rate=1e-3,2e-3", "only 2"),
        ("train.learning_rate=a,2,3", "number"),
        ("train.warmup_steps=1,5000,9", "5000 steps"),
        ("train.steps=3,20,30", "train.warmup_steps (line "),
    ],
)
def test_a_wrong_argument_is_said(tmp_path, argument, message):
    with pytest.raises(UserError) as raised:
        swept(SMALL, tmp_path, argument)
    assert f"--sweep {argument}: " in str(raised.value)
    assert message in str(raised.value)
    assert raised.value.exit_status == 2


def test_a_key_is_given_once(tmp_path):
    with pytest.raises(UserError, match="is given twice"):
        swept(SMALL, tmp_path, "train.learning_rate=1,2,3", "train.learning_rate=4,5,6")
