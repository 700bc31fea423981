"""`start`: which run of another recipe each run starts from, and everything in it that names what is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest
from comt_cli.recipe.schema import Column, Recipe, Start
from comt_cli.recipe.yaml_lines import Document


class SourceRecipe(Protocol):
    """What must be known of the recipe that a run starts from (`load.LoadedRecipe`)."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def file(self) -> str: ...
    @property
    def grids(self) -> Mapping[str, object]: ...
    def columns(self, scale: str) -> dict[str, Column]: ...


R = TypeVar("R", bound=SourceRecipe)


@dataclass(frozen=True)
class LoadedStart(Generic[R]):
    """The cell of another recipe whose run is started from; `seed` is None where it is the started run's own. `path` is
    where the recipe says so."""

    source: R
    row: str
    column: str
    seed: int | None
    new: tuple[str, ...]
    drop: tuple[str, ...]
    path: KeyPath


Starts = dict[str, dict[tuple[str, str], LoadedStart[R]]]
"""By scale, then by row and column, those that have one."""


def load_starts(
    recipe: Recipe, document: Document, load: Callable[[str, KeyPath], R | None], problems: list[Problem]
) -> Starts[R]:
    """The start of every cell that has one; the row's `start` wins over the column's, and this over the recipe's.

    `load` reads a recipe by the name that stands at a key, once however many cells name it, and reports what is wrong
    with it; None where something is.
    """
    found: Starts[R] = {}
    found_wrong: list[Problem] = []
    for scale in recipe.scales:
        found[scale] = {}
        in_scale = recipe.scales[scale].columns is not None
        for column_name, column in recipe.columns_at(scale).items():
            above: KeyPath = ("scales", scale) if in_scale else ()
            column_path: KeyPath = (*above, "columns", column_name)
            for row_name, row in recipe.rows.items():
                places = ((("rows", row_name), row), (column_path, column), ((), recipe))
                path, start = next(
                    (((*path, "start"), place.start) for path, place in places if "start" in place.model_fields_set),
                    ((), None),
                )
                source = load(start.recipe, (*path, "recipe")) if start is not None else None
                if start is None or source is None:
                    continue
                wrong = list(_wrong(start, path, source, scale, row_name, column_name, document))
                found_wrong.extend(problem for problem in wrong if problem not in found_wrong)
                if not wrong:
                    theirs = _column(start, source, scale, column_name)
                    assert theirs is not None
                    found[scale][row_name, column_name] = LoadedStart(
                        source, start.row or row_name, theirs, start.seed, start.new, start.drop, path
                    )
    problems.extend(found_wrong)
    return found


def _column(start: Start, source: SourceRecipe, scale: str, own: str) -> str | None:
    """The source's column: the one that is named, else the one of the same name, else its only one."""
    columns = list(source.columns(scale))
    if start.column is not None or own in columns:
        return start.column or own
    return columns[0] if len(columns) == 1 else None


def _wrong(
    start: Start, path: KeyPath, source: SourceRecipe, scale: str, row: str, column: str, document: Document
) -> Iterator[Problem]:
    def problem(key: str, message: str) -> Problem:
        at = (*path, key)
        return Problem(dotted(at), message, document.line(at))

    if scale not in source.recipe.scales:
        has = ", ".join(source.recipe.scales)
        yield problem("recipe", f"{source.file} has no scale {scale}, which this recipe has; there it has {has}")
        return
    if scale in source.grids:
        which = "which of its runs are the best is known only after them: name one of its values in a recipe of its own"
        yield problem("recipe", f"{source.file} has a sweep at scale {scale}; {which}")
        return
    rows, columns = source.recipe.rows, source.columns(scale)
    wanted = start.row or row
    if wanted not in rows:
        own = "" if start.row is not None else ", which this recipe has: name the row to start from"
        yield problem("row", f"{source.file} has no row {wanted!r}{own}; {nearest(wanted, rows)}")
    theirs = _column(start, source, scale, column)
    if theirs is None:
        message = f"is missing: {source.file} has no column {column!r} at scale {scale}, and several others"
        yield problem("column", f"{message}; {nearest(column, columns)}")
    elif theirs not in columns:
        yield problem("column", f"{source.file} has no column {theirs!r} at scale {scale}; {nearest(theirs, columns)}")
