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
        ({"wide": {"name": "comt", "hiden": 64}}, "wide={name: comt, hiden: 64}: hiden", "did you mean hidden?"),
        ({"gated": "comt"}, "gated=comt", "gated-2="),
        ({"a b": "comt"}, "a b=comt", "'a b'"),
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
