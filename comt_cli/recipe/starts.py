"""`start`: which run of another recipe each run starts from, and everything in it that names what is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from comt_cli.recipe.problems import KeyPath, Problem, nearest
from comt_cli.recipe.schema import Recipe, Start
from comt_cli.recipe.yaml_lines import Document

if TYPE_CHECKING:
    from comt_cli.recipe.load import LoadedRecipe


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


def load_starts(
    recipe: Recipe, document: Document, load: Callable[[str, KeyPath], LoadedRecipe | None], problems: list[Problem]
) -> Starts:
    """The start of every cell that has one; the row's `start` wins over the column's, and this over the recipe's.

    `load` reads a recipe by the name that stands at a key, once however many cells name it, and reports what is wrong
    with it; None where something is.
    """
    found: Starts = {}
    found_wrong: list[Problem] = []
    for scale in recipe.scales:
        found[scale] = {}
        for column_name, column in recipe.columns_at(scale).items():
            for row_name, row in recipe.rows.items():
                places = ((("rows", row_name), row), (recipe.column_path(scale, column_name), column), ((), recipe))
                path, start = next(
                    (((*path, "start"), place.start) for path, place in places if "start" in place.model_fields_set),
                    ((), None),
                )
                source = load(start.recipe, (*path, "recipe")) if start is not None else None
                if start is None or source is None:
                    continue
                theirs = _column(start, source, scale, column_name)
                wrong = [
                    document.problem((*path, key), message)
                    for key, message in _wrong(start, source, scale, row_name, column_name, theirs)
                ]
                found_wrong.extend(problem for problem in wrong if problem not in found_wrong)
                if not wrong and theirs is not None:
                    found[scale][row_name, column_name] = LoadedStart(
                        source, start.row or row_name, theirs, start.seed, start.new, start.drop, path
                    )
    problems.extend(found_wrong)
    return found


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
