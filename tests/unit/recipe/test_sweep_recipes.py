"""A sweep with trials: what it plans, what the command line gives, and what can be wrong with it."""

from __future__ import annotations

import pytest
from planning_on import plan_on
from small_recipe import SMALL

from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, load_recipe, load_recipe_text
from comt_cli.recipe.problems import RecipeError

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
    "a seed of the table": ("[101, 102]", "[101, 7]", "line 12: sweep.seeds: 7 is a seed of the table at scale smoke"),
    "too few values": ("2e-3, 4e-3]", "2e-3]", "line 10: sweep.settings.train.learning_rate: are only 2"),
    "no numbers": (
        "train.learning_rate: [1e-3, 2e-3, 4e-3]", "train.schedule: [cosine, linear, constant]",
        "line 10: sweep.settings.train.schedule: are not all numbers",
    ),
    "reported on what chooses": (
        "metric: test_perplexity", "metric: perplexity",
        "line 8: sweep: chooses on the validation data that perplexity of column tiny is of; show one of test_",
    ),
    "no test split": ("    test_share: 0.5\n", "", "there is no test_perplexity at scale smoke: train.test_share"),
    "chosen by the test": ("  metric: perplexity", "  metric: test_perplexity", "is not computed on validation data"),
    "its old name": ("sweep:", "grid:", "line 8: grid: was renamed to sweep"),
    "an unknown key": ("  seeds:", "  sedes:", "line 12: sweep.sedes: unknown key; did you mean seeds?"),
    "a seed twice": ("[101, 102]", "[101, 101]", "line 12: sweep.seeds: a seed stands twice"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_with_its_line(load, wrong):
    old, new, message = WRONG[wrong]
    assert TUNED.count(old) >= 1
    with pytest.raises(RecipeError) as raised:
        load(TUNED.replace(old, new, 1))
    assert message in str(raised.value)
    assert raised.value.exit_status == 2


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
        ("train.learning_rate", "--sweep train.learning_rate: should be SECTION.KEY=VALUE,VALUE,..."),
        ("train.learning_rate=", "should be SECTION.KEY=VALUE,VALUE,..."),
        ("train.learning_rate=[1,2", "should be SECTION.KEY=VALUE,VALUE,..."),
        ("train.learning_rat=1,2,3", "  --sweep train.learning_rat=1,2,3: unknown key; did you mean learning_rate?"),
        ("train.learning_rate=1e-3,2e-3", "  --sweep train.learning_rate=1e-3,2e-3: are only 2"),
        ("train.lr=1,2,3", "  --sweep train.lr=1,2,3: unknown key; did you mean learning_rate?"),
        ("train.learning_rate=a,2,3", '  --sweep train.learning_rate=a,2,3: "a" does not fit: should be a number'),
        ("train.warmup_steps=1,5000,9", "  --sweep train.warmup_steps=1,5000,9: warm-up of 5000 steps is longer"),
        ("train.steps=3,20,30", "  --sweep train.steps=3,20,30: train.warmup_steps (line "),
    ],
)
def test_a_wrong_argument_is_said(tmp_path, argument, message):
    with pytest.raises(UserError) as raised:
        swept(SMALL, tmp_path, argument)
    assert message in str(raised.value)
    assert raised.value.exit_status == 2


def test_a_key_is_given_once(tmp_path):
    with pytest.raises(UserError, match="is given twice"):
        swept(SMALL, tmp_path, "train.learning_rate=1,2,3", "train.learning_rate=4,5,6")


def test_without_the_key_a_language_models_identity_is_what_it_was(load):
    spec = planned(load_recipe_text(SMALL, catalogue()))[0]
    assert "test_share" not in spec.identity["train"]
