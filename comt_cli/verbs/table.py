"""The table that a selector names: its recipe, with changed settings and rows that its runs have. Torch-free."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from comt_cli.errors import UserError
from comt_cli.files import read_json
from comt_cli.methods import catalogue
from comt_cli.recipe.find import MARK, as_arguments, available_recipes, find_recipe, place_of, split_variant
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.report.run_list import RecipeOf
from comt_cli.runs.known import KnownRun, Place, known_runs
from comt_cli.runs.plan import CHANGED, RunSpec, plan, table_folder


def with_settings(name: str, overrides: Sequence[str] | None, runs: Path) -> tuple[Path, list[str]]:
    """The file of a recipe, and the `--set` arguments: with those of `table3@steps-12`, as they are kept beside its
    links. Raises `UserError` where there are no such runs."""
    recipe, variant = split_variant(name)
    path = find_recipe(recipe)
    if not variant:
        return path, list(overrides or ())
    paper, table = place_of(path)
    file = runs / table_folder(paper, f"{table}{MARK}{variant}") / CHANGED
    try:
        return path, [*as_arguments(dict(read_json(file))), *(overrides or ())]
    except (OSError, ValueError, TypeError):
        names = [f"{paper}/{each.parent.name}" for each in file.parent.parent.glob(f"{table}{MARK}*/{CHANGED}")]
        there = f"There are {', '.join(sorted(names))}; " if names else ""
        why = f"{file} is damaged" if file.exists() else f"no run of {paper}/{table} has settings called {variant}"
        raise UserError(why, f"{there}--set KEY=VALUE says them, too.") from None


def recipes_by_name(named: Iterable[str] = ()) -> RecipeOf:
    """A function that reads recipes by `paper/table`, each once: those that are `named`, and those that every name can
    reach."""
    paths = dict(available_recipes())
    for name in named:
        with contextlib.suppress(UserError):  # its runs are there, and it is gone
            path = find_recipe(split_variant(name)[0])
            paths["/".join(place_of(path))] = path

    @functools.cache
    def load(name: str, overrides: tuple[str, ...], scale: str | None) -> LoadedRecipe | None:
        try:
            return load_recipe(paths[name], catalogue(), overrides, scale)
        except (KeyError, UserError):
            return None

    return lambda name, overrides, scale: load(name, tuple(overrides), scale if overrides else None)


def dashed(name: str) -> str:
    """A name as the folder of a link is called."""
    return name.replace("/", "-")


@dataclass(frozen=True)
class SelectedTable:
    """The table that a selector names: its recipe, and its runs. `scales` have, at the scale that was asked for, or at
    every one, the settings that the selector says (`overrides`)."""

    loaded: LoadedRecipe
    known: Sequence[KnownRun]
    scales: dict[str, LoadedRecipe]
    overrides: Sequence[str]

    @classmethod
    def called(cls, text: str, runs: Path, scale: str | None, set_: Sequence[str] = ()) -> SelectedTable:
        """The table of a selector. Raises `UserError` where there is no such recipe, or no run with such settings."""
        name = text.partition(":")[0]
        path, changed = with_settings(name, set_, runs)
        loaded, scales = load_recipe(path, catalogue()), {}
        for each in map(str, loaded.recipe.scales):
            with contextlib.suppress(UserError):
                if scale in (None, each):
                    scales[each] = load_recipe(path, catalogue(), changed, each) if changed else loaded
        if changed and not scales:  # says what is wrong
            load_recipe(path, catalogue(), changed, scale or next(iter(loaded.recipe.scales)))
        return cls(loaded, known_runs(runs), scales, changed)

    @cached_property
    def planned(self) -> dict[str, RunSpec]:
        """By id, and by request, what the recipe with the settings of the selector asks for, with its own seeds and
        all that runs have."""
        found: dict[str, RunSpec] = {}
        for scale, loaded in self.scales.items():
            trials = loaded.grids[scale].seeds if scale in loaded.grids else ()
            seeds = {run.seed for run in self.known if run.seed is not None} | {*self.seeds(scale)}
            with contextlib.suppress(UserError):  # its data cannot be identified: nothing was trained on it here either
                specs = plan(loaded, scale, seeds=sorted(seeds - {*trials}))
                found |= {name: spec for spec in specs for name in (spec.id, spec.request)}
        return found

    def seeds(self, scale: str) -> Sequence[int]:
        """The seeds that the recipe has at a scale."""
        recipe = self.scales[scale].recipe
        return recipe.scales[scale].seeds or recipe.seeds

    def having(self, found: Sequence[KnownRun]) -> list[KnownRun]:
        """Runs with the settings that the selector says, or in its table; all of them where it says none."""
        names = {f"{self.loaded.folder}/{loaded.outputs(scale)}" for scale, loaded in self.scales.items()}
        return [run for run in found if not self.overrides or self.plans(run) or names & {*run.variants}]

    def plans(self, run: KnownRun) -> RunSpec | None:
        """The run of this table that `run` is; None where it is none, or of other settings."""
        return self.planned.get(run.id) or (self.planned.get(run.spec.request) if run.spec is not None else None)

    def places(self, run: KnownRun) -> list[Place]:
        """Places of `run` in this table. Of a link the names are the recipe's, if it has them."""
        paper, table = self.loaded.folder, self.loaded.stem
        found = [run.home] if run.home.recipe == self.loaded.name else []
        for place in run.elsewhere:
            if (place.paper, place.table) == (dashed(paper), dashed(table)):
                rows, columns = ({dashed(name): name for name in names} for names in self.names)
                names = rows.get(place.row, place.row), columns.get(place.column, place.column)
                found.append(Place(paper, table, *names))
        if (spec := self.plans(run)) is not None:
            found.append(Place(paper, table, spec.row, spec.column))
        return list(dict.fromkeys(found))

    @cached_property
    def names(self) -> tuple[list[str], list[str]]:
        """The recipe's rows, and the columns of all its scales."""
        columns = dict.fromkeys(column for scale in self.loaded.recipe.scales for column in self.loaded.columns(scale))
        return list(self.loaded.recipe.rows), list(columns)
