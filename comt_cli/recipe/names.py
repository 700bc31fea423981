"""Names within a recipe that must agree: the baseline, the paper's cells, the rows of an ablation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest
from comt_cli.recipe.schema import Ablation, Catalogue, Recipe, Row, TaskOptions
from comt_cli.recipe.settings import RunSettings
from comt_cli.recipe.yaml_lines import Document

LADDER_SIZES = 3
"""Through fewer there is no line with an interval."""

Methods = Mapping[str, Mapping[str, Any]]
"""Every row's method with all its options; without the rows whose method is wrong."""

Settings = Mapping[str, Mapping[tuple[str, str], RunSettings]]
"""By scale, then by row and column."""


def disagreements(
    recipe: Recipe, methods: Methods, catalogue: Catalogue, task: TaskOptions, document: Document
) -> Iterator[Problem]:
    """Everything in `recipe` that names what is not there, or says what contradicts something else."""
    if recipe.command not in catalogue.tasks:
        yield _not_one_of(recipe.command, catalogue.tasks, ("command",), document)
    else:
        yield from _metrics(recipe, task, document)
    if recipe.baseline not in recipe.rows:
        message = f"there is no row {recipe.baseline!r}; {nearest(recipe.baseline, recipe.rows)}"
        yield Problem("baseline", message, document.line(("baseline",)))
    has_paper = document.data.get("paper") is not None  # one that is no name is reported elsewhere
    if not has_paper and recipe.table is not None:
        message = "says which table of a paper it is, but the recipe has no `paper`"
        yield Problem("table", message, document.line(("table",)))
    for name, row in recipe.rows.items():
        if has_paper:
            yield from _paper_cells(name, row, recipe, document)
            yield from _paper_increases(name, row, recipe, document)
        else:
            yield from _without_paper(name, row, document)
        for scale in row.notes:
            if scale not in recipe.scales:
                yield _not_one_of(scale, recipe.scales, ("rows", name, "notes", scale), document)
    for ablation_name, ablation in recipe.ablations.items():
        yield from _ablation(("ablations", ablation_name), ablation, recipe, methods, document)
    yield from _compared_columns(recipe, document, has_paper=has_paper)
    if recipe.ladder:
        yield from _ladder(recipe, document)


def _ladder(recipe: Recipe, document: Document) -> Iterator[Problem]:
    """What keeps a scale from having a line of gain against compute."""

    def problem(message: str) -> Problem:
        return Problem("ladder", message, document.line(("ladder",)))

    if recipe.figure is not None:
        yield problem("is of a table, and this recipe is a figure; leave one of them out")
    if len(recipe.rows) < 2:
        yield problem("compares rows with the baseline, and there is no other row")
    for scale in recipe.scales:
        columns = recipe.columns_at(scale)
        if len(columns) < LADDER_SIZES:
            count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
            yield problem(f"takes {LADDER_SIZES} columns or more, one a size; scale {scale} has {count}")
        if len(shown := dict.fromkeys(recipe.metric_at(scale, column) for column in columns)) > 1:
            yield problem(f"compares one metric over all sizes; the columns of scale {scale} show {', '.join(shown)}")


def _metrics(recipe: Recipe, task: TaskOptions, document: Document) -> Iterator[Problem]:
    named: dict[KeyPath, str | None] = {("metric",): recipe.metric}
    named |= {("columns", name, "metric"): column.metric for name, column in recipe.columns.items()}
    for scale_name, scale in recipe.scales.items():
        for name, column in (scale.columns or {}).items():
            named["scales", scale_name, "columns", name, "metric"] = column.metric
    for path, metric in named.items():
        if metric is not None and metric not in task.metrics:
            yield _not_one_of(metric, task.metrics, path, document)


def unmeasured(recipe: Recipe, task: TaskOptions, settings: Settings, document: Document) -> Iterator[Problem]:
    """Columns that show a metric which their runs have no number for."""
    for scale, cells in settings.items():
        columns = recipe.columns_at(scale)
        for name, column in columns.items():
            metric = recipe.metric_at(scale, name)
            own = (
                [cell for (_, of_column), cell in cells.items() if of_column == name] if metric in task.metrics else []
            )
            reasons = dict.fromkeys(reason for cell in own if (reason := task.lacks(cell, metric)) is not None)
            if reasons:
                in_scale: KeyPath = () if columns is recipe.columns else ("scales", scale)
                at: KeyPath = (*in_scale, "columns", name, *(["metric"] if column.metric else []))
                if document.argument("metric"):  # a sweep made it a metric of the test split
                    at = ("metric",)
                message = f"there is no {metric} at scale {scale}: {'; '.join(reasons)}"
                yield Problem(dotted(at), message, document.line(at))


def _not_one_of(given: str, names: Iterable[str], path: KeyPath, document: Document) -> Problem:
    options = list(names)
    message = f"{given!r} is not one of {', '.join(options)}; {nearest(given, options)}"
    return Problem(dotted(path), message, document.line(path))


def _compared_columns(recipe: Recipe, document: Document, *, has_paper: bool) -> Iterator[Problem]:
    for scale_name, scale in recipe.scales.items():
        for name, column in (scale.columns or {}).items():
            if column.compare_to is not None and column.compare_to not in recipe.columns:
                path = ("scales", scale_name, "columns", name, "compare_to")
                yield _no_column(column.compare_to, path, recipe, document)
            elif column.compare_to is not None and not has_paper:
                path = ("scales", scale_name, "columns", name, "compare_to")
                message = "names a column of a paper's, but the recipe has no `paper`"
                yield Problem(dotted(path), message, document.line(path))
            elif column.compare_to is not None and column.metric is not None:
                theirs = recipe.columns[column.compare_to].metric or recipe.metric
                if column.metric != theirs:
                    path = ("scales", scale_name, "columns", name, "metric")
                    message = f"cannot stand beside the paper's column {column.compare_to}, which has {theirs}"
                    yield Problem(dotted(path), message, document.line(path))
    for name, column in recipe.columns.items():
        if column.compare_to is not None:
            at: KeyPath = ("columns", name, "compare_to")
            yield Problem(dotted(at), "belongs to the columns of a scale: this is the paper's own", document.line(at))


def _without_paper(name: str, row: Row, document: Document) -> Iterator[Problem]:
    """A paper's numbers given by a row of a recipe that has no paper."""
    given: dict[str, object] = {"paper": row.paper, "paper_increase": row.paper_increase}
    for key, values in given.items():
        if values:
            path: KeyPath = ("rows", name, key)
            yield Problem(
                dotted(path), "has values, but the recipe has no `paper` that prints them", document.line(path)
            )
    if "in_paper" in row.model_fields_set and row.in_paper:
        path = ("rows", name, "in_paper")
        yield Problem(dotted(path), "is true, but the recipe has no `paper`", document.line(path))


def _paper_cells(name: str, row: Row, recipe: Recipe, document: Document) -> Iterator[Problem]:
    path: KeyPath = ("rows", name, "paper")
    yield from _unknown_columns(row.paper, path, recipe, document)
    if row.in_paper:
        missing = [column for column in recipe.columns if column not in row.paper]
        if missing:
            message = (
                f"has no value for {', '.join(missing)}: give the paper's (null where it prints none), "
                "or say in_paper: false"
            )
            yield Problem(dotted(path), message, document.line(path))
        if row.published is not None:
            at: KeyPath = ("rows", name, "published")
            yield Problem(dotted(at), "is of other papers, and the row is in this one's: use paper", document.line(at))
    elif row.paper:
        yield Problem(dotted(path), "has values, but the row says in_paper: false", document.line(path))


def _paper_increases(name: str, row: Row, recipe: Recipe, document: Document) -> Iterator[Problem]:
    path: KeyPath = ("rows", name, "paper_increase")
    yield from _unknown_columns(row.paper_increase, path, recipe, document)
    if row.paper_increase and not row.in_paper:
        yield Problem(dotted(path), "has values, but the row says in_paper: false", document.line(path))


def _unknown_columns(columns: Iterable[str], path: KeyPath, recipe: Recipe, document: Document) -> Iterator[Problem]:
    for column in columns:
        if column not in recipe.columns:
            yield _no_column(column, (*path, column), recipe, document)


def _no_column(column: str, path: KeyPath, recipe: Recipe, document: Document) -> Problem:
    message = f"there is no column {column!r}; {nearest(column, recipe.columns)}"
    return Problem(dotted(path), message, document.line(path))


def _ablation(
    path: KeyPath, ablation: Ablation, recipe: Recipe, methods: Methods, document: Document
) -> Iterator[Problem]:
    rows = ablation.rows if ablation.rows is not None else list(recipe.rows)
    for position, row in enumerate(rows):
        if row not in recipe.rows:
            at: KeyPath = (*path, "rows", position)
            yield Problem(dotted(at), f"there is no row {row!r}; {nearest(row, recipe.rows)}", document.line(at))
    # Where a row's method is wrong, that is reported, and nothing is known of its options.
    if ablation.option is None or any(row not in methods for row in rows):
        return
    option, at = ablation.option, (*path, "option")
    values = [methods[row][option] for row in rows if option != "name" and option in methods[row]]
    if len(values) < 2:
        options = dict.fromkeys(key for row in rows for key in methods[row] if key != "name")
        count = "none" if not values else "one"
        hint = nearest(option, options) if option not in options else "name rows that have it"
        yield Problem(dotted(at), f"{option!r} is an option of {count} of the rows; {hint}", document.line(at))
    elif all(value == values[0] for value in values):
        message = f"{option!r} has the same value in every row that has it; name the option that varies, or null"
        yield Problem(dotted(at), message, document.line(at))
