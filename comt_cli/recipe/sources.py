"""The other files that a recipe names: setups, `setups/NAME.yaml`, and the recipes whose runs its own start from.

A problem in one is reported with its own file and line, once, however many places name it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from comt_cli.errors import UserError
from comt_cli.recipe.find import SETUPS, find_recipe, recipe_roots
from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, nearest
from comt_cli.recipe.schema import Catalogue, Recipe, Start, TaskOptions
from comt_cli.recipe.settings import Overrides, overrides_of
from comt_cli.recipe.validate import salvage, validate
from comt_cli.recipe.yaml_lines import Document, read

if TYPE_CHECKING:
    from comt_cli.recipe.load import LoadedRecipe


@dataclass(frozen=True)
class Setup:
    """Settings with the file that they stand in. Broken parts were left out, and reported as problems."""

    path: Path
    settings: Overrides
    document: Document


def load_setups(
    recipe: Recipe, path: Path, document: Document, catalogue: Catalogue, task: TaskOptions, problems: list[Problem]
) -> dict[str, Setup]:
    """Every setup that `recipe`, the file at `path` of `task`, names. Those that are not there, or broken, or of
    another task, become problems."""
    folders = _folders(path)
    found: dict[str, Setup | None] = {}
    for place_path, place in recipe.places():
        name, key = getattr(place, "setup", None), (*place_path, "setup")
        if name is None or name in found:
            continue
        found[name] = None
        file = next((folder / f"{name}.yaml" for folder in folders if (folder / f"{name}.yaml").is_file()), None)
        if file is None:
            known = dict.fromkeys(other.stem for folder in folders for other in sorted(folder.glob("*.yaml")))
            hint = nearest(name, known) if known else f"there are none in {', '.join(map(str, folders)) or 'reach'}"
            problems.append(document.problem(key, f"no setup is called {name!r}; {hint}"))
            continue
        try:
            found[name] = _setup(file, task, catalogue, problems)
        except LookupError as other:
            message = f"{name} is a setup of {other.args[0]}; this recipe is for {task.command}"
            problems.append(document.problem(key, message))
    return {name: setup for name, setup in found.items() if setup is not None}


def _folders(path: Path) -> list[Path]:
    """Where setups are looked up: beside the folder of the recipe, then among the recipe roots; each once."""
    beside = [Path(os.path.normpath(path.parent / ".." / SETUPS))] if path.is_file() else []
    folders = [*beside, *(root / SETUPS for root in recipe_roots())]
    return list({folder.resolve(): folder for folder in reversed(folders) if folder.is_dir()}.values())[::-1]


def _setup(path: Path, task: TaskOptions, catalogue: Catalogue, problems: list[Problem]) -> Setup | None:
    """The setup of the file; None where nothing can be made of it. Raises `LookupError` with the command of the other
    task that it is a setup of."""
    kind, source = overrides_of(task.settings), str(path)
    try:
        document = read(path)
        if not isinstance(document.data, dict) or not document.data:
            raise RecipeError(path, [Problem("", "is not a setup: it has none of the groups model, data and train")])
    except RecipeError as error:
        problems.extend(replace(problem, source=source) for problem in error.problems)
        return None
    found = list(document.problems)
    settings = validate(kind, document.data, (), document.line, found)
    if settings is None:
        for other, others in catalogue.tasks.items():
            if validate(overrides_of(others.settings), document.data, (), document.line, []) is not None:
                raise LookupError(other)
    problems.extend(replace(problem, source=source) for problem in found)
    return Setup(path, settings or salvage(kind, document.data, {}) or kind(), document)


# ---- what runs start from


@dataclass(frozen=True)
class LoadedStart:
    """The cell of another recipe whose run is started from; `seed` is None where it is the started run's own. `path` is
    where the recipe says so."""

    source: LoadedRecipe
    row: str
    column: str
    seed: int | None
    new: tuple[str, ...]
    drop: tuple[str, ...]
    path: KeyPath


Starts = dict[str, dict[tuple[str, str], LoadedStart]]
"""By scale, then by row and column, those that have one."""


@dataclass
class StartedFrom:
    """The recipes that `start` names in one file, each read once by `load`. Its own file is `path`; `started` are the
    files whose runs start from this one's, and itself. What is wrong becomes problems: of the key where no recipe is
    found, of its own file where that has some."""

    document: Document
    path: Path
    started: tuple[Path, ...]
    load: Callable[[Path], LoadedRecipe]
    problems: list[Problem]
    _known: dict[str, LoadedRecipe | None] = field(default_factory=dict)

    def starts(self, recipe: Recipe, problems: list[Problem]) -> Starts:
        """The start of every cell that has one; the row's wins over the column's, and this over the recipe's."""
        found: Starts = {scale: {} for scale in recipe.scales}
        for scale in recipe.scales:
            for column_name, column in recipe.columns_at(scale).items():
                for row_name, row in recipe.rows.items():
                    places = ((("rows", row_name), row), (recipe.column_path(scale, column_name), column), ((), recipe))
                    given = ((path, each.start) for path, each in places if "start" in each.model_fields_set)
                    path, start = next(given, ((), None))
                    path = (*path, "start")
                    source = self._source(start.recipe, (*path, "recipe")) if start is not None else None
                    if start is None or source is None:
                        continue
                    theirs = _column(start, source, scale, column_name)
                    wrong = [
                        self.document.problem((*path, key), message)
                        for key, message in _wrong(start, source, scale, row_name, column_name, theirs)
                    ]
                    problems.extend(problem for problem in wrong if problem not in problems)
                    if not wrong and theirs is not None:
                        found[scale][row_name, column_name] = LoadedStart(
                            source, start.row or row_name, theirs, start.seed, start.new, start.drop, path
                        )
        return found

    def _source(self, name: str, key: KeyPath) -> LoadedRecipe | None:
        """The recipe called `name` at `key`: a file beside the one at hand, else as `find_recipe` finds it."""
        if name not in self._known:
            self._known[name] = self._read(name, key)
        return self._known[name]

    def _read(self, name: str, key: KeyPath) -> LoadedRecipe | None:
        beside = self.path.parent / name
        try:
            path = beside if beside.is_file() else find_recipe(name)
        except UserError as error:
            message = f"{error.message}; {error.hint}" if error.hint else error.message
            self.problems.append(self.document.problem(key, message))
            return None
        if path.resolve() in self.started:
            files = [file.name for file in (*self.started, path)]
            message = f"goes round in a circle: {' -> '.join(files[self.started.index(path.resolve()) :])}"
            self.problems.append(self.document.problem(key, message))
            return None
        try:
            return self.load(path)
        except RecipeError as error:
            theirs = (replace(problem, source=problem.source or str(path)) for problem in error.problems)
            self.problems.extend(problem for problem in theirs if problem not in self.problems)
            return None


def _column(start: Start, source: LoadedRecipe, scale: str, own: str) -> str | None:
    """The source's column: the one that is named, else the one of the same name, else its only one."""
    columns = list(source.columns(scale)) if scale in source.recipe.scales else []
    if start.column is not None or own in columns:
        return start.column or own
    return columns[0] if len(columns) == 1 else None


def _wrong(
    start: Start, source: LoadedRecipe, scale: str, row: str, column: str, theirs: str | None
) -> Iterator[tuple[str, str]]:
    """The keys of a start that are wrong, and what is; `theirs` is the source's column."""
    if scale not in source.recipe.scales:
        has = ", ".join(source.recipe.scales)
        yield "recipe", f"{source.file} has no scale {scale}, which this recipe has; there it has {has}"
        return
    if scale in source.grids:
        which = "which of its runs are the best is known only after them: name one of its values in a recipe of its own"
        yield "recipe", f"{source.file} has a sweep at scale {scale}; {which}"
        return
    rows, columns = source.recipe.rows, source.columns(scale)
    wanted = start.row or row
    if wanted not in rows:
        own = "" if start.row is not None else ", which this recipe has: name the row to start from"
        yield "row", f"{source.file} has no row {wanted!r}{own}; {nearest(wanted, rows)}"
    if theirs is None:
        message = f"is missing: {source.file} has no column {column!r} at scale {scale}, and several others"
        yield "column", f"{message}; {nearest(column, columns)}"
    elif theirs not in columns:
        yield "column", f"{source.file} has no column {theirs!r} at scale {scale}; {nearest(theirs, columns)}"
