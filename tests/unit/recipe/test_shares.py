"""Warm-up and milestones as shares of the steps: what they come to, and that a run never hears of them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_on import plan_on
from small_recipe import assert_only_problem

from comt_cli.methods import catalogue
from comt_cli.recipe.find import available_recipes
from comt_cli.recipe.load import load_recipe
from comt_cli.recipe.problems import RecipeError
from comt_cli.recipe.settings import steps_of
from comt_cli.tasks.settings.language import TrainSettings

WHOLE_STEPS = {
    ("smoke", "comt/table3"): (480, 48, None),
    ("small", "comt/table3"): (240, 24, None),
    ("smoke", "transponder/table2"): (480, 48, None),
    ("smoke", "comt/table1"): (500, 100, ()),
    ("smoke", "comt/table1-standard"): (500, 100, ()),
    ("smoke", "comt/table2"): (500, 100, ()),
    ("small", "comt/table2"): (2000, 22, ()),
    ("smoke", "sas/table4"): (600, 100, (300, 450)),
    ("small", "sas/table4"): (2000, 40, (1000, 1500)),
    ("paper", "sas/table4"): (64000, 400, (32000, 48000)),
}
"""Steps, warm-up and milestones of shipped recipes before their setups had shares: these are in the runs' ids."""


@pytest.mark.parametrize(("scale", "name"), WHOLE_STEPS)
def test_shipped_setups_come_to_the_steps_that_their_ids_were_made_of(scale, name):
    for settings in _shipped(name).settings[scale].values():
        train = settings.train
        assert (train.steps, train.warmup_steps, getattr(train, "milestones", None)) == WHOLE_STEPS[scale, name]


@pytest.mark.parametrize("name", available_recipes())
def test_the_number_of_steps_can_be_overridden_alone(name):
    for scale in ("smoke", "evening", "small"):
        loaded = _shipped(name, "train.steps=10", scale=scale)
        found = loaded.settings.get(scale, {})
        assert bool(found) == (scale in loaded.recipe.scales)
        assert all(settings.train.steps == 10 for settings in found.values())


def test_numbers_that_a_paper_prints_are_not_changed_in_silence():
    with pytest.raises(RecipeError, match=r"train.warmup_steps.* 400 steps .* 10 steps"):
        _shipped("sas/table4", "train.steps=10", scale="paper")


def test_a_share_and_the_steps_it_comes_to_are_one_run(small, load):
    by_share = plan_on(load(small.replace("warmup_steps: 10", "warmup_steps: 0.1")), "paper", lambda _: ("print", None))
    by_steps = plan_on(load(small), "paper", lambda _: ("print", None))
    assert by_share == by_steps  # settings, and with them ids
    assert load(small, "train.warmup_steps=0.25").settings["smoke"]["plain", "tiny"].train.warmup_steps == 25


def test_an_override_of_the_steps_moves_shares_and_leaves_whole_steps(small, load):
    train = load(small.replace("warmup_steps: 10", "warmup_steps: 0.1"), "train.steps=40").settings["smoke"]
    assert train["plain", "tiny"].train.warmup_steps == 4
    assert load(small, "train.steps=40").settings["smoke"]["plain", "tiny"].train.warmup_steps == 10


@given(st.integers(1, 10**6), st.integers(1, 9999))
def test_a_share_is_the_nearest_whole_step_and_at_least_one(steps, hundredths_of_per_cent):
    share = hundredths_of_per_cent / 10_000
    found = steps_of(share, steps)
    exact = Fraction(hundredths_of_per_cent, 10_000) * steps
    assert 1 <= found <= steps
    assert found == 1 or abs(found - exact) <= Fraction(1, 2)
    assert TrainSettings(steps=steps, warmup_steps=share).warmup_steps == found  # type: ignore[arg-type]


def test_a_half_is_rounded_up_whatever_its_binary_fraction():
    assert 0.29 * 50 < 14.5  # in binary
    assert steps_of(0.29, 50) == 15


@pytest.mark.parametrize("wrong", ["1.5", "10.0", "-3", "ten", "true"])
def test_what_is_neither_steps_nor_a_share_is_told_with_its_line(small, load, wrong):
    assert_only_problem(small, "steps: 10\n", f"steps: {wrong}\n", "line 11: settings.train.warmup_steps", load)


def test_a_share_of_wrong_steps_is_no_second_problem(small, load):
    with pytest.raises(RecipeError) as error:
        load(small.replace("steps: 100", "steps: 0").replace("warmup_steps: 10", "warmup_steps: 0.1"))
    assert [problem.key for problem in error.value.problems] == ["settings.train.steps"]


def test_milestones_may_be_shares_and_steps_together():
    loaded = _shipped("sas/table4", "train.steps=200", "train.milestones=[40, 0.5]", scale="smoke")
    assert all(settings.train.milestones == (40, 100) for settings in loaded.settings["smoke"].values())
    with pytest.raises(RecipeError, match=r"1\.5"):
        _shipped("sas/table4", "train.milestones=[40, 1.5]", scale="smoke")
    with pytest.raises(RecipeError, match="rising order"):
        _shipped("sas/table4", "train.milestones=[0.75, 0.5]", scale="smoke")


def _shipped(name, *overrides, scale=None):
    return load_recipe(available_recipes()[name], catalogue(), overrides, scale)
