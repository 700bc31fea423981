"""From what the user typed to the runs it means: shared by the verbs that work on recipes. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from comt_cli.data import fingerprint
from comt_cli.methods import methods
from comt_cli.recipe.load import LoadedRecipe, find_recipe, load_recipe
from comt_cli.recipe.plan import RunSpec, parse_seeds, plan


@dataclass(frozen=True)
class Planned:
    """A checked recipe at a scale, and the runs selected of it."""

    loaded: LoadedRecipe
    scale: str
    specs: list[RunSpec]


def plan_recipe(
    recipe: str | Path,
    scale: str,
    overrides: list[str] | None = None,
    *,
    rows: str | None = None,
    columns: str | None = None,
    seeds: str | None = None,
) -> Planned:
    """Find, check and expand a recipe. Raises `UserError` (`RecipeError`) with everything that is wrong."""
    path = recipe if isinstance(recipe, Path) else find_recipe(recipe)
    return plan_loaded(
        load_recipe(path, methods(), overrides or (), scale), scale, rows=rows, columns=columns, seeds=seeds
    )


def plan_loaded(
    loaded: LoadedRecipe, scale: str, *, rows: str | None = None, columns: str | None = None, seeds: str | None = None
) -> Planned:
    """Expand a recipe that was read and checked. Raises `UserError` where the selection or the scale is not in it."""
    specs = plan(loaded, scale, fingerprint, rows=rows, columns=columns, seeds=parse_seeds(seeds))
    return Planned(loaded, scale, specs)
