"""`--also`: rows that the command line adds to a recipe."""

from __future__ import annotations

import re

import pytest
from planning_on import plan_on

from comt_cli.commands.planning import also_rows, plan_recipe
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.load import load_recipe_text
from comt_cli.recipe.problems import RecipeError


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
    ("arguments", "message"),
    [
        ([""], "--also : should be METHOD or NAME=METHOD"),
        (["wide="], "--also wide=: should be METHOD or NAME=METHOD"),
        (["wide={hidden: 4}"], "--also wide={hidden: 4}: should be METHOD or NAME=METHOD"),
        (["[comt]"], "--also [comt]: should be METHOD or NAME=METHOD"),
        (["wide={name: comt"], "--also wide={name: comt: is not YAML"),
        (["wide={name: comt, name: dyt}"], "--also wide={name: comt, name: dyt}: line 1: name: stands twice"),
        (["comt", "comt={name: comt, hidden: 4}"], "--also comt={name: comt, hidden: 4}: there are two rows 'comt'"),
    ],
)
def test_arguments_of_no_form(arguments, message):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
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
    assert list(loaded(small, {"extra": "mix-ln"}).recipe.rows) == ["plain", "gated", "extra"]
    assert list(loaded(small, {"gated": {"name": "comt", "hidden": 4}}).recipe.rows) == ["plain", "gated", "extra"]


@pytest.mark.parametrize(
    ("also", "message"),
    [
        ({"mixln": "mixln"}, "--also mixln: no method is called 'mixln'; did you mean mix-ln?"),
        ({"mine": "mixln"}, "--also mine=mixln: no method is called 'mixln'; did you mean mix-ln?"),
        (
            {"wide": {"name": "comt", "hiden": 64}},
            "--also wide={name: comt, hiden: 64}: hiden: unknown key; did you mean hidden?",
        ),
        (
            {"wide": {"name": "comt", "hidden": "64"}},
            '--also wide={name: comt, hidden: 64}: hidden: "64" does not fit: should be a whole number',
        ),
        (
            {"gated": "comt"},
            "--also gated=comt: the recipe has another row 'gated'; give yours another name, for instance gated-2=",
        ),
        (
            {"a b": "comt"},
            "--also a b=comt: 'a b' cannot be the name of a row: use letters, digits and + . _ / -, a "
            "letter or digit first",
        ),
        ({"mine": 3}, "--also mine=3: is no method: give its name, or {name: ..., and its options}"),
    ],
)
def test_what_is_wrong_with_an_added_row_names_the_argument(small, also, message):
    with pytest.raises(RecipeError) as caught:
        loaded(small, also)
    assert [str(problem) for problem in caught.value.problems] == [message]


def test_added_rows_and_the_file_are_complained_of_together(small):
    with pytest.raises(RecipeError) as caught:
        loaded(small.replace("baseline: plain", "baseline: plan"), {"x": "y", "z": {"name": "comt", "a": 1}})
    assert len(caught.value.problems) == 3


def test_added_rows_are_planned():
    planned = plan_recipe("table3", "smoke", also=also_rows(["mine=rezero"]), rows="pre-ln,mine")
    assert [spec.row for spec in planned.specs] == ["pre-ln", "mine"]
    assert planned.specs[1].method == {"name": "rezero"}
