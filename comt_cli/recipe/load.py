"""Read a recipe, and report everything that is wrong with it at once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from comt_cli.errors import UserError
from comt_cli.recipe.find import DEFAULT_PAPER, also_called, available_recipes, find_recipe, is_named, place_of
from comt_cli.recipe.grid import LoadedGrid, load_grids, overridden, same_runs, with_sweep
from comt_cli.recipe.merge import Arguments, Merger, Origins, changes, parse_arguments
from comt_cli.recipe.names import Also, Settings, disagreements, fits, row_methods, undrawable, unmeasured, with_rows
from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, nearest
from comt_cli.recipe.schema import Catalogue, Column, Recipe, TaskOptions
from comt_cli.recipe.settings import Overrides, RunSettings, overrides_of
from comt_cli.recipe.sources import LoadedStart, StartedFrom, Starts, load_setups
from comt_cli.recipe.validate import salvage, validate
from comt_cli.recipe.variant import as_arguments, table_name
from comt_cli.recipe.yaml_lines import UNREADABLE, Document, parse, read

Cell = tuple[str, str]
"""A row and a column."""


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe that passed every check, with the command line's overrides applied.

    Attributes:
        task: what the runs are of.
        methods: by row the method's name and all its options, defaults included.
        points: by scale, then by cell (row, column), the settings at each point of the scale's grid
            (`LoadedGrid.planned`); the only ones where it has none.
        origins: by scale and cell, where each of the settings was given.
        starts: by scale, the cells that start from a run of another recipe.
        grids: by scale.
        document: the file.
        changes: by scale the settings that `--set` changed, by dotted key (`merge.changes`).
        added: the rows of `--also`.
    """

    path: Path
    recipe: Recipe
    task: TaskOptions
    methods: dict[str, dict[str, Any]]
    points: dict[str, dict[Cell, tuple[RunSettings, ...]]]
    origins: dict[str, dict[Cell, Origins]]
    starts: Starts
    grids: dict[str, LoadedGrid]
    document: Document
    changes: dict[str, dict[str, Any]]
    added: tuple[str, ...]

    @functools.cached_property
    def settings(self) -> Settings:
        """The settings of every cell by scale; where there is a grid, those of its first point."""
        return _first(self.points)

    @property
    def folder(self) -> str:
        """The folder of its runs and results: `comt`, and `own` for a file outside the recipe roots."""
        return place_of(self.path)[0]

    @property
    def stem(self) -> str:
        """What its runs and results are called within that folder: `table3`."""
        return place_of(self.path)[1]

    @property
    def name(self) -> str:
        """Folder and stem, `comt/table3`."""
        return "/".join(place_of(self.path))

    def outputs(self, scale: str) -> str:
        """What the files of its results are called at a scale: `table3`, with changed settings `table3@steps-12`."""
        return table_name(self.stem, self.changes.get(scale, {}), self.task.settings)

    def changed(self, scale: str) -> tuple[str, ...]:
        """The `--set` arguments that changed settings at a scale, in the order of their keys."""
        return as_arguments(self.changes.get(scale, {}))

    @property
    def file(self) -> str:
        """The file for people, in a line: `comt/table3.yaml`, or `my-table.yaml` of a file of one's own."""
        shown = f"{self.folder}/{self.path.resolve().name}" if is_named(self.path) else self.path.name
        return "".join(letter if letter.isprintable() else " " for letter in shown)

    @property
    def origin(self) -> str:
        """The file beyond doubt: as `file` where it goes by name, else its whole path, `~` for the home folder."""
        if is_named(self.path):
            return self.file
        whole, home = self.path.resolve(), Path.home()
        return f"~/{whole.relative_to(home)}" if whole.is_relative_to(home) else str(whole)

    @property
    def is_published(self) -> bool:
        """Whether the recipe has any published number to compare ours with."""
        rows = self.recipe.rows.values()
        return any(value is not None for row in rows for value in row.paper.values()) or any(
            row.paper_increase for row in rows
        )

    def columns(self, scale: str) -> dict[str, Column]:
        """The columns of a scale: its own, or the paper's."""
        return self.recipe.columns_at(scale)

    def has_trials(self, scale: str) -> bool:
        """Whether it has a sweep at this scale whose trials have seeds of their own."""
        return scale in self.grids and bool(self.grids[scale].seeds)

    def compared_column(self, scale: str, column: str) -> str | None:
        """The paper's column that `column` is compared with; None if there is none."""
        if self.recipe.scales[scale].columns is None:
            return column
        return self.columns(scale)[column].compare_to

    def printed_increase(self, scale: str, row: str, column: str) -> str | None:
        """The increase of the number of parameters that the paper prints for a cell, such as `<1%`, None for none."""
        compared = self.compared_column(scale, column)
        return None if compared is None else self.recipe.rows[row].paper_increase.get(compared)


def load_recipe(
    path: Path,
    catalogue: Catalogue,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    also: Also | None = None,
    *,
    also_fits_all: bool = True,
    sweep: Sequence[str] = (),
) -> LoadedRecipe:
    """Read and check the recipe at `path`. `overrides` are `--set` arguments such as `train.steps=200`.

    They apply to `scale` alone if it is given: steps that suit `smoke` may contradict the warm-up of `paper`.
    `also` adds rows that the paper does not have, as if they stood at the end of `rows`. One whose method is for
    another task is a problem, or, where not `also_fits_all`, left out: it is meant for other recipes of the same call.
    `sweep` are `--sweep` arguments (`sweep_argument`), for `scale`.

    Raises:
        RecipeError: with every problem of the file, of its setups, of the overrides and of `also`, each with its line
            and dotted key, or the argument.
    """
    return check_recipe(read(path), path, catalogue, overrides, scale, also, also_fits_all=also_fits_all, sweep=sweep)


def load_recipe_text(
    text: str,
    catalogue: Catalogue,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    also: Also | None = None,
) -> LoadedRecipe:
    """Like `load_recipe`, from text."""
    return check_recipe(parse(text, "recipe"), Path("recipe"), catalogue, overrides, scale, also)


_STAND_INS: dict[str, Any] = {
    "title": "x",
    "baseline": "x",
    "seeds": [0],
    "settings": {},
    "method": "x",
    "description": "x",
}
"""For keys that are missing or wrong, while the rest of the recipe is checked. Each fits the key that it stands for."""


def check_recipe(
    document: Document,
    path: Path,
    catalogue: Catalogue,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    also: Also | None = None,
    *,
    also_fits_all: bool = True,
    started: tuple[Path, ...] = (),
    sweep: Sequence[str] = (),
) -> LoadedRecipe:
    """All checks, in two stages: the shape of the file, then what only the whole shows.

    The second stage also sees a file that failed the first, without its broken parts, and reports what does not merely
    follow from them: all problems come at once. `started` are the recipes whose runs start from this one's.
    """
    if not isinstance(document.data, dict) or not document.data:
        raise RecipeError(path, [Problem("", "is not a recipe: the file has no keys")])
    sections = {name for task in catalogue.tasks.values() for name in task.settings.model_fields}
    if set(document.data) <= sections:
        message = "is a setup, not a recipe: a recipe names it, as `setup` of a column or at its top"
        raise RecipeError(path, [Problem("", message)])
    problems, found = list(document.problems), list[Problem]()
    task, also = catalogue.task(document.data.get("command")), also or {}
    if not also_fits_all:
        also = {name: given for name, given in also.items() if fits(given, task, catalogue)}
    resolved = row_methods(document, catalogue, task, problems)
    document = with_rows(document, also, catalogue, task, resolved, problems)
    if sweep and scale is not None:
        document = with_sweep(document, sweep, scale, task, overrides)
    unreadable = {problem.key for problem in problems if problem.message == UNREADABLE}
    shape: list[Problem] = []
    data = {"metric": task.metric, **document.data}
    recipe = validate(Recipe, data, (), document.line, shape)
    whole = recipe or salvage(Recipe, data, {**_STAND_INS, "command": task.command, "metric": task.metric})
    kind = overrides_of(task.settings)
    given = {} if whole is None else _typed_settings(whole, kind, document, shape)
    grids = {} if whole is None else load_grids(whole, task, kind, document, shape)
    problems.extend(problem for problem in shape if problem.key not in unreadable)
    arguments = parse_arguments(overrides, kind, problems)
    if whole is None or (many := _too_many_cells(whole, document)):
        every = problems if whole is None else [*problems, *many]
        raise RecipeError(path, [document.blamed(problem) for problem in every])
    setups = load_setups(whole, path, document, catalogue, task, problems)
    found.extend(disagreements(whole, resolved, catalogue, task, document))
    found.extend(overridden(whole, grids, given, document))
    changed = {str(name): arguments if scale in (None, name) else Arguments() for name in whole.scales}
    merger = Merger(whole, task.settings, given, document, setups, grids, complete=not problems)
    merged = {name: merger.settings(name, theirs, found) for name, theirs in changed.items()}
    tried = {name: left for name, grid in grids.items() if (left := grid.without(changed[name])) is not None}
    found.extend(same_runs(tried, merged, document))
    points = {
        name: {cell: tuple(each for each, _ in every) for cell, every in cells.items()}
        for name, cells in merged.items()
    }
    settings = _first(points)
    found.extend(undrawable(whole, task, resolved, settings, document))
    found.extend(unmeasured(whole, task, settings, document))
    started = (*started, path.resolve())

    def source(theirs: Path) -> LoadedRecipe:
        """`--set` is not for it. Rows of `--also` are, since a run starts from the row of its own name."""
        return check_recipe(read(theirs), theirs, catalogue, also=also, also_fits_all=False, started=started)

    starts = StartedFrom(document, path, started, source, problems).starts(whole, found)
    problems.extend([problem for problem in found if not _follows(problem, problems)])
    if recipe is None or problems:
        raise RecipeError(path, [document.blamed(problem) for problem in problems])
    origins = {name: {cell: where for cell, (_, where) in cells.items()} for name, cells in _first(merged).items()}
    new = {name: changes(theirs, task, functools.partial(merger.settings, name)) for name, theirs in changed.items()}
    return LoadedRecipe(path, recipe, task, resolved, points, origins, starts, tried, document, new, tuple(also))


T = TypeVar("T")


def _first(points: Mapping[str, Mapping[Cell, Sequence[T]]]) -> dict[str, dict[Cell, T]]:
    """By scale and cell, what the first point has."""
    return {scale: {cell: every[0] for cell, every in cells.items()} for scale, cells in points.items()}


def _typed_settings(
    recipe: Recipe, kind: type[Overrides], document: Document, problems: list[Problem]
) -> dict[KeyPath, Overrides]:
    """The settings of every place of `recipe` that has some, by that place. What is wrong in them becomes problems, and
    is left out."""
    typed: dict[KeyPath, Overrides] = {}
    for place_path, place in recipe.places():
        if place.settings is not None:
            path = (*place_path, "settings")
            checked = validate(kind, place.settings, path, document.line, problems)
            typed[path] = checked or salvage(kind, place.settings, {}) or kind()
    return typed


MAX_CELLS = 3_000
"""Rows x columns of all scales, times the points of their grids; each is checked by itself, in a millisecond or two.
No published table has more than a few hundred."""


def _too_many_cells(recipe: Recipe, document: Document) -> list[Problem]:
    """What would keep a command busy for minutes before it says anything."""
    cells = 0
    for name, scale in recipe.scales.items():
        rows, columns, sweep = len(recipe.rows), len(recipe.columns_at(name)), recipe.sweep_at(name)
        points = 1 if sweep is None else sweep.size
        cells += rows * columns * points
        if cells > MAX_CELLS:
            key: KeyPath = ("scales", name, "columns") if scale.columns else ("columns",)
            times = f" x {points:,} points of its grid" if points > 1 else ""
            message = f"{rows:,} rows x {columns:,} columns{times} are too many"
            return [document.problem(key, f"{message}: at most {MAX_CELLS:,} cells in all scales; divide the table")]
    return []


def _follows(problem: Problem, earlier: Iterable[Problem]) -> bool:
    """Whether `problem` is about a key, or a section of settings, that something is already known to be wrong with."""
    section = _settings_section(problem)
    for other in earlier:
        outer, inner = sorted((other.key, problem.key), key=len)
        is_within = inner == outer or inner.startswith((f"{outer}.", f"{outer}["))
        if is_within and problem.source == other.source:
            return True
        if problem.key.endswith(".paper") and other.key.startswith(f"{problem.key.removesuffix('paper')}in_paper"):
            return True
        if section and _settings_section(other) in (section, "all"):
            return True
    return False


def _settings_section(problem: Problem) -> str | None:
    """`train` for `columns.c4.settings.train.steps`, and for a setup's `train.steps`; `all` for the whole of the
    settings; None elsewhere."""
    if problem.source is not None:
        return problem.key.partition(".")[0] or "all"
    found = re.search(r"(?:^|\.)settings(?:\.(\w+))?", problem.key)
    return (found[1] or "all") if found else None


def select(names: str | None, available: Iterable[str], what: str) -> list[str]:
    """The names of a comma-separated selection, in the table's order; all of them for None.

    Raises:
        UserError: a name is not there; the hint names the nearest.
    """
    order = list(available)
    if names is None:
        return order
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in order:
            raise UserError(f"there is no {what} {name!r}", nearest(name, order))
    if not wanted:
        raise UserError(f"no {what} was selected", f"there are {', '.join(order)}")
    return [name for name in order if name in wanted]


__all__ = [
    "DEFAULT_PAPER",
    "LoadedRecipe",
    "LoadedStart",
    "also_called",
    "available_recipes",
    "find_recipe",
    "load_recipe",
    "load_recipe_text",
    "select",
]
