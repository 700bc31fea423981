"""`--also`: rows that the command line adds to a recipe."""

from __future__ import annotations

import re

import pytest
from planning_on import plan_on

from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.load import load_recipe_text
from comt_cli.recipe.problems import RecipeError
from comt_cli.verbs.plan import also_rows, plan_recipe


def loaded(text: str, also):
    return load_recipe_text(text, catalogue(), also=also)


def test_added_rows_are_always_among_the_selected(small):
    recipe = loaded(small, {"half": "comt", "plain": "pre-ln"})  # the recipe has the second already
    specs = plan_on(recipe, "smoke", lambda _: ("feed", None), rows="gated")
    assert {spec.row for spec in specs} == {"plain", "gated", "half"}
    assert {spec.row for spec in plan_on(loaded(small, {}), "smoke", lambda _: ("feed", None), rows="gated")} == {
        "gated"
    }


def test_arguments():
    assert also_rows(None) == also_rows([]) == {}
    assert also_rows(["comt", "other=comt", "wide={name: comt, hidden: 64}", "{name: mix-ln, fraction: 0.5}"]) == {
        "comt": "comt",
        "other": "comt",
        "wide": {"name": "comt", "hidden": 64},
        "mix-ln": {"name": "mix-ln", "fraction": 0.5},
    }
    assert also_rows(["comt", "comt"]) == {"comt": "comt"}


@pytest.mark.parametrize(
    "arguments",
    [[""], ["wide="], ["wide={hidden: 4}"], ["[comt]"], ["wide={name: comt"], ["wide={name: comt, name: dyt}"],
     ["comt", "comt={name: comt, hidden: 4}"]],
    ids=str,
)  # fmt: skip
def test_arguments_of_no_form(arguments):
    with pytest.raises(UserError, match=re.escape(f"--also {arguments[-1]}: ")) as caught:
        also_rows(arguments)
    assert caught.value.exit_status == 2
    assert caught.value.hint


def test_added_rows_stand_at_the_end_and_are_in_no_paper(small):
    also = {"mine": "sandwich-ln", "wide": {"name": "comt", "hidden": 64}}
    recipe = loaded(small, also)
    assert list(recipe.recipe.rows) == ["plain", "gated", "extra", "mine", "wide"]
    assert not recipe.recipe.rows["mine"].in_paper
    written = small.replace(
        "columns:\n  c4",
        "  mine: {method: sandwich-ln, in_paper: false}\n"
        "  wide: {method: {name: comt, hidden: 64}, in_paper: false}\ncolumns:\n  c4",
    )
    assert plan_on(recipe, "smoke", lambda _: ("x", "content")) == plan_on(
        loaded(written, {}), "smoke", lambda _: ("x", "content")
    )


def test_a_row_that_is_there_already_is_not_added_again(small):
    for also in ({"extra": "mix-ln"}, {"gated": {"name": "comt", "hidden": 4}}):
        assert list(loaded(small, also).recipe.rows) == ["plain", "gated", "extra"]


@pytest.mark.parametrize(
    ("also", "argument", "said"),
    [
        ({"mixln": "mixln"}, "mixln", "did you mean mix-ln?"),
        ({"mine": "mixln"}, "mine=mixln", "did you mean mix-ln?"),
        ({"wide": {"name": "comt", "hiden": 64}}, "wide={name: comt, hiden: 64}: hiden", "did you mean hidden?"),
        ({"wide": {"name": "comt", "hidden": "64"}}, "wide={name: comt, hidden: 64}: hidden", "whole number"),
        ({"gated": "comt"}, "gated=comt", "gated-2="),
        ({"a b": "comt"}, "a b=comt", "'a b'"),
        ({"mine": 3}, "mine=3", "method"),
    ],
)
def test_what_is_wrong_with_an_added_row_names_the_argument(small, also, argument, said):
    with pytest.raises(RecipeError) as caught:
        loaded(small, also)
    (only,) = map(str, caught.value.problems)
    assert only.startswith(f"--also {argument}: ")
    assert said in only


def test_added_rows_and_the_file_are_complained_of_together(small):
    with pytest.raises(RecipeError) as caught:
        loaded(small.replace("baseline: plain", "baseline: plan"), {"x": "y", "z": {"name": "comt", "a": 1}})
    assert len(caught.value.problems) == 3


def test_added_rows_are_planned():
    planned = plan_recipe("table3", "smoke", also=also_rows(["mine=rezero"]), rows="pre-ln,mine")
    assert [spec.row for spec in planned.specs] == ["pre-ln", "mine"]
    assert planned.specs[1].method == {"name": "rezero"}
