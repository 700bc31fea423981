"""`comt recipes`: what tables and figures there are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from comt_cli.recipe.load import LoadedRecipe


def recipes(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a recipe.")] = False,
) -> None:
    """List the recipes: title, how each is run, the ablations it holds, and the scales with rows x columns x seeds.

    A recipe file that is broken is listed with what is wrong with it.

    Examples:

      comt recipes
    """
    from comt_cli.errors import UserError
    from comt_cli.methods import methods
    from comt_cli.recipe.load import available_recipes, load_recipe

    listed: list[dict[str, Any]] = []
    for name, path in available_recipes().items():
        try:
            listed.append(_described(name, load_recipe(path, methods())))
        except UserError as error:
            listed.append({"name": name, "path": str(path), "error": error.message})
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
        return
    for recipe in listed:
        _print(recipe)
    if not listed:
        typer.echo("There are no recipes: neither ./recipes nor the program has any.")


def _described(name: str, loaded: LoadedRecipe) -> dict[str, Any]:
    recipe = loaded.recipe
    scales = {
        scale: {
            "description": settings.description,
            "rows": len(recipe.rows),
            "columns": len(loaded.columns(scale)),
            "seeds": len(settings.seeds or recipe.seeds),
        }
        for scale, settings in recipe.scales.items()
    }
    return {
        "name": name,
        "path": str(loaded.path),
        "command": recipe.command,
        "kind": "table" if recipe.figure is None else "figure",
        "title": recipe.title,
        "ablations": list(recipe.ablations),
        "scales": scales,
    }


def _print(recipe: dict[str, Any]) -> None:
    if "error" in recipe:
        typer.echo(f"{recipe['name']}  broken")
        for line in recipe["error"].splitlines():
            typer.echo(f"  {line}")
        return
    from comt_cli.report import format

    figure = "figure: " if recipe["kind"] == "figure" else ""
    typer.echo(f"{recipe['name']}  {figure}{recipe['title']}")
    typer.echo(f"  comt {recipe['command']} --recipe {recipe['name']}")
    if recipe["ablations"]:
        typer.echo(f"  ablations: {', '.join(recipe['ablations'])}")
    for name, scale in recipe["scales"].items():
        shape = " x ".join(format.plural(scale[f"{noun}s"], noun) for noun in ("row", "column", "seed"))
        typer.echo(f"  {name:<6} {shape:<32} {scale['description']}")
