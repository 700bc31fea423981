"""`comt recipes`: the list of recipes, or one recipe in detail."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from comt_cli.commands import completion, options
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.find import also_called, available_recipes, find_recipe, recipe_roots
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.words import plural


def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            help="A recipe, to show its details; or words to search for in name, command, title, rows and methods.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the recipes. Each line has the file, the command that trains the recipe, and the title.

    One recipe is shown with its file, rows, ablations, and its scales with rows x columns x seeds. A broken recipe is
    listed with its errors. A copy of a recipe file is a recipe of its own: its runs and results do not mix with those
    of the original.

    Examples:
      comt recipes table3
      comt recipes train-resnet cifar
    """
    listed = _listed(words or [])
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
    elif words and not listed:
        raise UserError(f"no recipe contains {' and '.join(words)}", "comt recipes lists all recipes.")
    elif words and len(listed) == 1:
        _print_details(listed[0])
        if others := also_called(words[0]):
            typer.echo(others)
    else:
        _print_lines(listed)


def _listed(words: Sequence[str]) -> list[dict[str, Any]]:
    """The named recipe, or all recipes with every word in name, command, title, rows or methods. A broken one has an
    `error`."""
    paths, wanted = available_recipes(), [word.casefold().removesuffix(".yaml") for word in words]
    with contextlib.suppress(UserError):  # else it is a word to search for
        if len(words) == 1:
            path = find_recipe(words[0])
            name = next((name for name, each in paths.items() if each.resolve() == path.resolve()), words[0])
            paths, wanted = {name: path}, []
    listed: list[dict[str, Any]] = []
    for name, path in paths.items():
        try:
            found = _described(name, load_recipe(path, catalogue()))
        except UserError as error:
            found = {"name": name, "path": str(path), "error": error.message}
        text = json.dumps([found.get(key) for key in ("name", "command", "title", "rows", "methods")]).casefold()
        if all(word in text for word in wanted):
            listed.append(found)
    return listed


def _described(name: str, loaded: LoadedRecipe) -> dict[str, Any]:
    recipe, scales = loaded.recipe, {}
    for scale, settings in recipe.scales.items():
        grid = loaded.grids.get(scale)
        scales[scale] = {
            "description": settings.description,
            "rows": len(recipe.rows),
            "columns": len(loaded.recipe.columns_at(scale)),
            "seeds": len(settings.seeds or recipe.seeds),
            **({} if grid is None else {"points": len(grid.points)}),
            **({"trial_seeds": len(grid.seeds)} if grid is not None and grid.seeds else {}),
            "column_names": list(loaded.recipe.columns_at(scale)),
        }
    return {
        "name": name,
        "path": str(loaded.path),
        "command": recipe.command,
        "kind": "table" if recipe.figure is None else "figure",
        "title": recipe.title,
        "metric": recipe.metric,
        "baseline": recipe.baseline,
        "rows": list(recipe.rows),
        "methods": sorted({method["name"] for method in loaded.methods.values()}),
        "ablations": list(recipe.ablations),
        "scales": scales,
    }


def _print_lines(listed: Sequence[dict[str, Any]]) -> None:
    """Print one line per recipe, grouped by folder."""
    width = max((len(recipe["name"]) for recipe in listed), default=0) + len(".yaml")
    for root in recipe_roots():
        here = [each for each in listed if each["path"] == f"{root}/{each['name']}.yaml"]
        if here:
            typer.echo(f"in {root}:")
        for recipe in here:
            text = "broken" if "error" in recipe else f"{recipe['command']:<12}  {_title(recipe)}"
            typer.echo(f"  {recipe['name'] + '.yaml':<{width}}  {text}")
            if "error" in recipe:
                typer.echo(textwrap.indent(recipe["error"], "    "))


def _title(recipe: dict[str, Any]) -> str:
    return f"{'figure: ' if recipe['kind'] == 'figure' else ''}{recipe['title']}"


def _print_details(recipe: dict[str, Any]) -> None:
    if "error" in recipe:
        typer.echo(f"{recipe['name']}  broken\n{textwrap.indent(recipe['error'], '  ')}")
        return
    typer.echo(f"{recipe['name']}  {_title(recipe)}\n  {recipe['path']}")
    typer.echo(f"  comt {recipe['command']} --recipe {recipe['name']}")
    for heading in ("rows", "ablations"):
        if recipe[heading]:
            _print_wrapped(f"{heading}: {', '.join(recipe[heading])}", "  ")
    typer.echo(f"  metric: {recipe['metric']}; baseline: {recipe['baseline']}")
    for name, scale in recipe["scales"].items():
        shape = " x ".join(plural(scale[f"{noun}s"], noun) for noun in ("row", "column", "seed"))
        points = plural(scale["points"], "configuration") if "points" in scale else ""
        if "trial_seeds" in scale:
            shape += f", after a sweep of {points} x {plural(scale['trial_seeds'], 'seed')}"
        elif points:
            shape += f" x {points}"
        typer.echo(f"  {name}: {shape} ({', '.join(scale['column_names'])})")
        _print_wrapped(scale["description"], "    ")


def _print_wrapped(text: str, indent: str) -> None:
    typer.echo(textwrap.fill(text, 78, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False))
