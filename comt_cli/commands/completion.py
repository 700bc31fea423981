"""What the shell offers to complete, torch-free: nothing here may take longer than a person waits for a key.

Each function gets what was typed of a word and returns the words that fit. A recipe that cannot be read offers nothing:
there is no place for an error on a line that is being typed.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer


class _Whole(str):
    """A word that typer offers though it does not begin with what was typed: it asks each word whether it does."""

    __slots__ = ()

    def startswith(self, *_: Any) -> bool:
        """Always."""
        return True


def recipes(incomplete: str) -> list[str]:
    """Names of recipes: `comt/table3.yaml`, and by its short name those of other papers that are called so, too."""
    from comt_cli.recipe.find import DEFAULT_PAPER, available_recipes

    found: dict[str, None] = {}
    for name in available_recipes():
        paper, _, short = name.partition("/")
        if f"{short}.yaml".startswith(incomplete):
            # All by their whole names, too, so that no shell takes the letters that they share for what was meant.
            found |= dict.fromkeys((*[f"{short}.yaml"] * (paper == DEFAULT_PAPER), f"{name}.yaml"))
        elif f"{name}.yaml".startswith(incomplete):
            found[f"{name}.yaml"] = None
    return [_Whole(name) for name in found]


def scales(ctx: typer.Context, incomplete: str) -> list[str]:
    """The scales of the recipes on the line, without recipes those of the shipped ones."""
    from comt_cli.recipe.schema import SCALES

    own = dict.fromkeys(scale for data in _recipes_on(ctx) for scale in _group(data, "scales"))
    return [name for name in own or SCALES if name.startswith(incomplete)]


def _names_of(module: str, constant: str) -> Callable[[str], list[str]]:
    """What completes the last name of a list by those that a module of the program has."""
    return lambda incomplete: _listed(getattr(importlib.import_module(f"comt_cli.{module}"), constant), incomplete)


sites = _names_of("methods.base", "PROJECTIONS")
metrics = _names_of("scoring.metrics", "METRICS")
standings = _names_of("runs.known", "Standing")
trackers = _names_of("training.trackers", "TRACKERS")


def rows(ctx: typer.Context, incomplete: str) -> list[str]:
    """Rows of the recipe on the line, and those that `--also` adds there, after the last comma."""
    added = [argument.partition("=")[0] for argument in ctx.params.get("also") or ()]
    return _listed([*(row for data in _recipes_on(ctx) for row in _group(data, "rows")), *added], incomplete)


def columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Columns of the recipe on the line, at the scale on the line."""
    scale = ctx.params.get("scale") or "smoke"
    groups = [_group(data, "scales", scale, "columns") or _group(data, "columns") for data in _recipes_on(ctx)]
    return _listed([name for group in groups for name in group], incomplete)


def methods(ctx: typer.Context, incomplete: str) -> list[str]:
    """Methods that the recipe's command can train, after `NAME=` where a name is given."""
    from comt_cli.methods import methods as every_method
    from comt_cli.tasks import task_of

    before, equals, typed = incomplete.rpartition("=")
    sites = [task_of(command).sites for command in _commands_on(ctx) if "{" not in before]
    fitting = [name for name, kind in every_method().items() if any(map(kind.fits, sites))]
    return [f"{before}{equals}{name}" for name in fitting if name.startswith(typed)]


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """`train.steps=` and the other keys of the settings that the recipe's command has."""
    from comt_cli.recipe.validate import every_key
    from comt_cli.tasks import task_of

    commands = () if "=" in incomplete else sorted(_commands_on(ctx))
    keys = dict.fromkeys(f"{key}=" for command in commands for key in every_key(task_of(command).settings))
    return [key for key in keys if key.startswith(incomplete)]


def selectors(ctx: typer.Context, incomplete: str) -> list[str]:
    """Runs below `--runs`: `table3:pre-ln`, part by part, and the ids of those that begin as was typed."""
    found = _selectors(incomplete, Path(ctx.params.get("runs") or "runs"))
    if os.environ.get("_COMT_COMPLETE") == "complete_bash":  # it has what stands before the last colon already
        return [_Whole(each.rpartition(":")[2]) if ":" in incomplete else each for each in found]
    return found


def join_colons() -> None:
    """Give words back what bash took apart: it takes a colon for a word, and `table3:pre` for three. Changes what bash
    left in the environment."""
    said, position = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
    if os.environ.get("_COMT_COMPLETE") != "complete_bash" or not position.isdigit():
        return
    separator = "\n" if "\n" in said else " "
    words = [*said.split(separator), *[""] * int(position)][: int(position) + 1]
    joined = re.sub(rf"(?:^|{separator})(:+)(?:{separator}|$)", r"\1", separator.join(words))
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = joined, str(joined.count(separator))


def _selectors(typed: str, runs: Path) -> list[str]:
    from comt_cli.recipe.find import DEFAULT_PAPER, MARK, full_name, split_variant
    from comt_cli.runs.known import known_runs

    head, colon, _ = typed.partition(":")
    recipe, variant = split_variant(head)
    table, count = full_name(recipe), typed.count(":") + 1
    found: set[str] = set()
    for run in known_runs(runs):
        if not colon:
            names = [
                each.removeprefix(prefix)
                for each in (*run.tables, *run.variants)
                for prefix in ("", f"{DEFAULT_PAPER}/")
            ]
            found |= {f"{name}:" for name in names} | ({run.name} if typed else set())
        elif count <= 4 and (not variant or f"{table}{MARK}{variant}" in run.variants):
            places = [place for place in (run.home, *run.elsewhere) if place.recipe == table]
            found |= {":".join((head, place.row, place.column, str(run.seed))[:count]) for place in places}
    return sorted(each for each in found if each.startswith(typed))


def _recipes_on(ctx: typer.Context) -> list[dict[str, Any]]:
    """The recipes that the line names, unchecked. To read all that there are would take too long."""
    from comt_cli.errors import UserError
    from comt_cli.recipe.find import find_recipe, split_variant
    from comt_cli.recipe.yaml_lines import read

    found = []
    for name in _named_on(ctx):
        try:
            found.append(read(find_recipe(split_variant(name)[0])).data)
        except (UserError, OSError):
            continue
    return [data for data in found if isinstance(data, dict)]


def _named_on(ctx: typer.Context) -> list[str]:
    # What stands before an option that has no value yet is left in `args`.
    given = next(filter(None, map(ctx.params.get, ("recipe", "recipe_", "recipes"))), None) or ctx.args
    return [given] if isinstance(given, str) else [*given]


def _commands_on(ctx: typer.Context) -> set[str]:
    """The commands whose settings and methods the line can name: the verb's, the recipes', else all that train."""
    from comt_cli.tasks import tasks

    said = [ctx.info_name, *(data.get("command") for data in _recipes_on(ctx))]
    return {command for command in tasks() if command in said} or set(tasks())


def _listed(names: Iterable[str], incomplete: str) -> list[str]:
    """What can stand after the last comma of a list, with what stands before it; nothing twice."""
    before, comma, typed = incomplete.rpartition(",")
    taken = {name.strip() for name in before.split(",")}
    return [f"{before}{comma}{name}" for name in dict.fromkeys(names) if name.startswith(typed) and name not in taken]


def _group(data: Any, *keys: str) -> dict[str, Any]:
    """A group of keys within others; {} where it is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}
