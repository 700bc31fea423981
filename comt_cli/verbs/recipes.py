"""Recipes there are: listed, one of them in detail, and copied."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from comt_cli.errors import UserError
from comt_cli.files import write_text
from comt_cli.methods import catalogue
from comt_cli.recipe.find import also_called, available_recipes, find_recipe, recipe_roots
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.report.terminal import console_for
from comt_cli.words import plural


def list_recipes(words: Sequence[str], *, as_json: bool) -> None:
    """Print the recipe that a single word names, in detail, or a line for all that have every word.

    Raises:
        UserError: none has them.
    """
    listed = _listed(words)
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
        return
    if words and not listed:
        raise UserError(f"no recipe has {' and '.join(words)}", "comt recipes lists them all.")
    if words and len(listed) == 1:
        _print_details(listed[0])
        if len(words) == 1 and (others := also_called(words[0])) is not None:
            typer.echo(others)
        return
    _print_lines(listed)
    if not listed:
        typer.echo("There are no recipes: neither ./recipes nor the program has any.")


def _listed(words: Sequence[str]) -> list[dict[str, Any]]:
    paths = available_recipes()
    if len(words) == 1:
        try:
            path = find_recipe(words[0])
            name = next((name for name, each in paths.items() if each.resolve() == path.resolve()), words[0])
            paths, words = {name: path}, []
        except UserError:
            pass  # it is a word to look for
    listed: list[dict[str, Any]] = []
    for name, path in paths.items():
        try:
            described = _described(name, load_recipe(path, catalogue()))
        except UserError as error:
            described = {"name": name, "path": str(path), "error": error.message}
        if all(_has(described, word) for word in words):
            listed.append(described)
    return listed


def _has(recipe: dict[str, Any], word: str) -> bool:
    """Whether a paper, a verb, a part of the name, of the title, or of a row or method is `word`."""
    text = word.casefold().removesuffix(".yaml")
    named = (recipe["name"], recipe.get("title", ""), *recipe.get("rows", ()), *recipe.get("methods", ()))
    return text == recipe.get("command") or any(text in each.casefold() for each in named)


def _described(name: str, loaded: LoadedRecipe) -> dict[str, Any]:
    recipe = loaded.recipe
    scales = {}
    for scale, settings in recipe.scales.items():
        grid = loaded.grids.get(scale)
        scales[scale] = {
            "description": settings.description,
            "rows": len(recipe.rows),
            "columns": len(loaded.columns(scale)),
            "seeds": len(settings.seeds or recipe.seeds),
            **({} if grid is None else {"points": len(grid.points)}),
            **({"trial_seeds": len(grid.seeds)} if grid is not None and grid.seeds else {}),
            "column_names": list(loaded.columns(scale)),
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
    """A line a recipe, cut at the edge of a terminal; those of one folder of recipes under its path."""
    wide = console_for().width if sys.stdout.isatty() else None
    roots = [str(root) for root in recipe_roots()]
    width = max((len(recipe["name"]) for recipe in listed), default=0) + len(".yaml")

    def root_of(recipe: dict[str, Any]) -> str:
        return next((root for root in roots if recipe["path"] == f"{root}/{recipe['name']}.yaml"), "elsewhere")

    under: str | None = None
    for recipe in sorted(listed, key=lambda recipe: (root_of(recipe), recipe["name"])):
        if (root := root_of(recipe)) != under:
            under = root
            typer.echo(f"in {root}:")
        said = "broken" if "error" in recipe else f"{recipe['command']:<12}  {_title(recipe)}"
        line = f"  {recipe['name'] + '.yaml':<{width}}  {said}"
        typer.echo(line if wide is None or len(line) <= wide else f"{line[: wide - 3]}...")
        for reason in recipe.get("error", "").splitlines():
            typer.echo(f"    {reason}")


def _title(recipe: dict[str, Any]) -> str:
    return f"{'figure: ' if recipe['kind'] == 'figure' else ''}{recipe['title']}"


def _print_details(recipe: dict[str, Any]) -> None:
    if "error" in recipe:
        typer.echo(f"{recipe['name']}  broken\n{textwrap.indent(recipe['error'], '  ')}")
        return
    typer.echo(f"{recipe['name']}  {_title(recipe)}\n  {recipe['path']}")
    typer.echo(f"  comt {recipe['command']} --recipe {recipe['name']}")
    for heading in ("rows", "ablations"):
        if names := recipe[heading]:
            text = f"{heading}: {', '.join(names)}"
            typer.echo(textwrap.fill(text, 78, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))
    typer.echo(f"  {recipe['metric']}, against the row {recipe['baseline']}")
    for name, scale in recipe["scales"].items():
        shape = " x ".join(plural(scale[f"{noun}s"], noun) for noun in ("row", "column", "seed"))
        points = plural(scale["points"], "point") if "points" in scale else ""
        if "trial_seeds" in scale:
            shape += f", after a sweep of {points} x {plural(scale['trial_seeds'], 'seed')}"
        elif points:
            shape += f" x {points} of a grid"
        typer.echo(f"  {name}: {shape} ({', '.join(scale['column_names'])})")
        typer.echo(textwrap.fill(scale["description"], 78, initial_indent="    ", subsequent_indent="    "))


def copy_recipe(name: str, file: str) -> None:
    """Write a copy of a recipe that is right where it is to lie. Raises `UserError` where it cannot be."""
    source, target = find_recipe(name), Path(file)
    if target.suffix not in (".yaml", ".yml"):
        raise UserError(f"{target}: a recipe's file ends in .yaml", f"for instance {target}.yaml")
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} is there already: nothing was written", "Give the copy another name.")
    load_recipe(source, catalogue())
    text = f"# Copied from {source.parent.name}/{source.name}.\n{source.read_text(encoding='utf-8')}"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, text)
    try:
        copied = load_recipe(target, catalogue())  # only now is it known whether its setups are found from there
    except UserError:
        target.unlink()
        raise
    typer.echo(f"wrote {target}, a copy of {source}; its runs and results are called {copied.name}")
    typer.echo(f"  comt show {target}")
