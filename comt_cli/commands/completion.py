"""Shell completion, torch-free: functions from the start of a word to the words that fit. Unreadable recipes offer
nothing."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer


def recipes(incomplete: str) -> list[str]:
    """Names of recipes: `transponder/table2.yaml`, and short names for recipes that need no paper."""
    from comt_cli.recipe.find import available_recipes

    return _fitting(_short(f"{name}.yaml" for name in available_recipes()), incomplete)


def scales(ctx: typer.Context, incomplete: str) -> list[str]:
    """The scales of the recipes on the line, or of the shipped recipes."""
    from comt_cli.recipe.schema import SCALES

    return _fitting(_names(ctx, "scales") or SCALES, incomplete)


def of_recipes(group: str) -> Callable[..., list[str]]:
    """Completion of the rows or columns of the recipes on the line, after the last comma."""
    return lambda ctx, incomplete: _listed(_names(ctx, group), incomplete)


def methods(incomplete: str) -> list[str]:
    """Methods, perhaps after `NAME=`."""
    from comt_cli.methods import methods as every_method

    before, equals, _ = incomplete.rpartition("=")
    return _fitting((f"{before}{equals}{name}" for name in every_method()), incomplete)


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """`train.steps=` and the other settings of the verb's task, or of all tasks."""
    from comt_cli.recipe.problems import every_key
    from comt_cli.tasks import tasks

    of = [task for command, task in tasks().items() if command == ctx.info_name] or tasks().values()
    keys = (f"{key}=" for task in of for key in every_key(task.settings))
    return _fitting(keys, incomplete) if "=" not in incomplete else []


def selectors(ctx: typer.Context, incomplete: str) -> list[str]:
    """Runs below `--runs`: `table3:`, `table3:pre-ln:python-docs/tiny:1`, ids and names."""
    from comt_cli.runs.known import known_runs

    runs = known_runs(Path(ctx.params.get("runs") or "runs"))
    places = [(place, run.seed) for run in runs for place in (run.home, *run.elsewhere)]
    names = [f"{place.recipe}:{place.row}:{place.column}:{seed}" for place, seed in places]
    if ":" not in incomplete:
        names = [f"{place.recipe}:" for place, _ in places]
    called = [name for run in runs if incomplete for name in (run.name, run.given_name or run.name)]
    return sorted(_fitting([*_short(names), *called], incomplete))


def listed(module: str, constant: str) -> Callable[[str], list[str]]:
    """Completion of the last name of a list from a constant of the program."""
    return lambda incomplete: _listed(getattr(importlib.import_module(f"comt_cli.{module}"), constant), incomplete)


def _names(ctx: typer.Context, group: str) -> list[str]:
    """The names in a group of the recipes on the line and of their scales. Recipes are not checked, to save time."""
    from comt_cli.errors import UserError
    from comt_cli.recipe.find import find_recipe, split_variant
    from comt_cli.recipe.problems import read

    # Words before an option without a value are left in `args`.
    given = next(filter(None, map(ctx.params.get, ("recipe", "recipe_", "recipes"))), None) or ctx.args
    found: list[Any] = []
    for name in [given] if isinstance(given, str) else given:
        with contextlib.suppress(UserError, OSError):
            data = read(find_recipe(split_variant(name)[0])).data
            for each in (data, *_group(data, "scales").values()):
                found += _group(each, group)
    return found


def _group(data: Any, key: str) -> dict[str, Any]:
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _short(names: Iterable[str]) -> list[str]:
    """Names that begin with a recipe, also without the paper if it is not needed."""
    from comt_cli.recipe.find import DEFAULT_PAPER

    return [each for name in names for each in (name.removeprefix(f"{DEFAULT_PAPER}/"), name)]


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _listed(names: Iterable[str], incomplete: str) -> list[str]:
    """Words with one of the unused names after the last comma."""
    before, comma, _ = incomplete.rpartition(",")
    taken = {name.strip() for name in before.split(",")}
    return _fitting((f"{before}{comma}{name}" for name in names if name not in taken), incomplete)
