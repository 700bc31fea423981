"""`comt recipes`: what tables and figures there are, one of them in detail, and a copy to change."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import completion
from comt_cli.errors import UserError


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="A recipe, for its details; or words that a recipe must have: a paper, a verb, a part of its title or "
            "of the name of a method.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Write a copy of a recipe: comt recipes --copy RECIPE FILE.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a recipe.")] = False,
) -> None:
    """List the recipes, one a line. With each stand its file, the verb that runs it, and its title.

    A recipe by its name is shown with its rows, its ablations, and its scales with rows x columns x seeds. A recipe
    file that is broken is listed with what is wrong with it.

    A copy is a recipe of its own: its runs and results go by its file, and do not mix with those of the original. A
    file that is there already stays as it is.

    Examples:

      comt recipes

      comt recipes transponder

      comt recipes train-resnet cifar

      comt recipes table3

      comt recipes --copy table3 my-table.yaml
    """
    from comt_cli.verbs.recipes import copy_recipe, list_recipes

    given = words or []
    if not copy:
        list_recipes(given, as_json=as_json)
    elif len(given) == 2:
        copy_recipe(*given)
    else:
        raise UserError("--copy takes a recipe and the file to write", "comt recipes --copy table3 my-table.yaml")
