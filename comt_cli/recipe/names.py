"""Names within a recipe that must agree: the rows' methods, those of `--also METHOD` too, the baseline, the paper's
cells, the rows of an ablation, what is drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest
from comt_cli.recipe.schema import NAME_FORM, NAME_PATTERN, Ablation, Catalogue, Figure, Recipe, Row, TaskOptions
from comt_cli.recipe.settings import RunSettings
from comt_cli.recipe.validate import LineOf, validate
from comt_cli.recipe.yaml_lines import Document

LADDER_SIZES = 3
"""Through fewer there is no line with an interval."""

Methods = Mapping[str, Mapping[str, Any]]
"""Every row's method with all its options; without the rows whose method is wrong."""

Settings = Mapping[str, Mapping[tuple[str, str], RunSettings]]
"""By scale, then by row and column."""

Wrong = Iterator[tuple[KeyPath, str]]
"""Where something is wrong, and what."""


def disagreements(
    recipe: Recipe, methods: Methods, catalogue: Catalogue, task: TaskOptions, document: Document
) -> Iterator[Problem]:
    """Everything in `recipe` that names what is not there, or says what contradicts something else."""
    for path, message in _disagreements(recipe, methods, catalogue, task, document):
        yield document.problem(path, message)


def _disagreements(
    recipe: Recipe, methods: Methods, catalogue: Catalogue, task: TaskOptions, document: Document
) -> Wrong:
    has_paper = document.data.get("paper") is not None  # one that is no name is reported elsewhere
    if recipe.command not in catalogue.tasks:
        yield ("command",), _not_one_of(recipe.command, catalogue.tasks)
    else:
        for path, place in recipe.places():
            metric = getattr(place, "metric", None)
            if metric is not None and metric not in task.metrics:
                yield (*path, "metric"), _not_one_of(metric, task.metrics)
    if recipe.baseline not in recipe.rows:
        yield ("baseline",), f"there is no row {recipe.baseline!r}; {nearest(recipe.baseline, recipe.rows)}"
    if not has_paper and recipe.table is not None:
        yield ("table",), "says which table of a paper it is, but the recipe has no `paper`"
    for name, row in recipe.rows.items():
        for key, message in _printed(row, recipe) if has_paper else _without_paper(row):
            yield ("rows", name, *key), message
        for scale in row.notes:
            if scale not in recipe.scales:
                yield ("rows", name, "notes", scale), _not_one_of(scale, recipe.scales)
    for ablation_name, ablation in recipe.ablations.items():
        yield from _ablation(("ablations", ablation_name), ablation, recipe, methods)
    yield from _compared_columns(recipe, has_paper=has_paper)
    yield from ((("ladder",), message) for message in _ladder(recipe))


def _not_one_of(given: str, names: Iterable[str]) -> str:
    options = list(names)
    return f"{given!r} is not one of {', '.join(options)}; {nearest(given, options)}"


def _ladder(recipe: Recipe) -> Iterator[str]:
    """What keeps a scale of a ladder from having a line of gain against compute."""
    if not recipe.ladder:
        return
    if recipe.figure is not None:
        yield "is of a table, and this recipe is a figure; leave one of them out"
    if len(recipe.rows) < 2:
        yield "compares rows with the baseline, and there is no other row"
    for scale in recipe.scales:
        columns = recipe.columns_at(scale)
        if len(columns) < LADDER_SIZES:
            count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
            yield f"takes {LADDER_SIZES} columns or more, one a size; scale {scale} has {count}"
        if len(shown := dict.fromkeys(recipe.metric_at(scale, column) for column in columns)) > 1:
            yield f"compares one metric over all sizes; the columns of scale {scale} show {', '.join(shown)}"


def _compared_columns(recipe: Recipe, *, has_paper: bool) -> Wrong:
    for scale_name, scale in recipe.scales.items():
        for name, column in (scale.columns or {}).items():
            path: KeyPath = ("scales", scale_name, "columns", name)
            paper = column.compare_to
            if paper is None:
                continue
            if paper not in recipe.columns:
                yield (*path, "compare_to"), _no_column(paper, recipe)
            elif not has_paper:
                yield (*path, "compare_to"), "names a column of a paper's, but the recipe has no `paper`"
            elif column.metric not in (None, theirs := recipe.columns[paper].metric or recipe.metric):
                yield (*path, "metric"), f"cannot stand beside the paper's column {paper}, which has {theirs}"
    for name, column in recipe.columns.items():
        if column.compare_to is not None:
            yield ("columns", name, "compare_to"), "belongs to the columns of a scale: this is the paper's own"


def _without_paper(row: Row) -> Wrong:
    """A paper's numbers given by a row of a recipe that has no paper."""
    for key in ("paper", "paper_increase"):
        if getattr(row, key):
            yield (key,), "has values, but the recipe has no `paper` that prints them"
    if "in_paper" in row.model_fields_set and row.in_paper:
        yield ("in_paper",), "is true, but the recipe has no `paper`"


def _printed(row: Row, recipe: Recipe) -> Wrong:
    """What a row says of the paper's columns."""
    given: dict[str, Mapping[str, object]] = {"paper": row.paper, "paper_increase": row.paper_increase}
    for key, cells in given.items():
        for column in cells:
            if column not in recipe.columns:
                yield (key, column), _no_column(column, recipe)
        if cells and not row.in_paper:
            yield (key,), "has values, but the row says in_paper: false"
    if not row.in_paper:
        return
    if missing := [column for column in recipe.columns if column not in row.paper]:
        mend = "give the paper's (null where it prints none), or say in_paper: false"
        yield ("paper",), f"has no value for {', '.join(missing)}: {mend}"
    if row.published is not None:
        yield ("published",), "is of other papers, and the row is in this one's: use paper"


def _no_column(column: str, recipe: Recipe) -> str:
    return f"there is no column {column!r}; {nearest(column, recipe.columns)}"


def _ablation(path: KeyPath, ablation: Ablation, recipe: Recipe, methods: Methods) -> Wrong:
    rows = ablation.rows if ablation.rows is not None else list(recipe.rows)
    for position, row in enumerate(rows):
        if row not in recipe.rows:
            yield (*path, "rows", position), f"there is no row {row!r}; {nearest(row, recipe.rows)}"
    # Where a row's method is wrong, that is reported, and nothing is known of its options.
    if ablation.option is None or any(row not in methods for row in rows):
        return
    option, at = ablation.option, (*path, "option")
    values = [methods[row][option] for row in rows if option != "name" and option in methods[row]]
    if len(values) < 2:
        options = dict.fromkeys(key for row in rows for key in methods[row] if key != "name")
        count = "none" if not values else "one"
        hint = nearest(option, options) if option not in options else "name rows that have it"
        yield at, f"{option!r} is an option of {count} of the rows; {hint}"
    elif all(value == values[0] for value in values):
        yield at, f"{option!r} has the same value in every row that has it; name the option that varies, or null"


def unmeasured(recipe: Recipe, task: TaskOptions, settings: Settings, document: Document) -> Iterator[Problem]:
    """Columns that show a metric which their runs have no number for."""
    for scale, cells in settings.items():
        for name, column in recipe.columns_at(scale).items():
            metric = recipe.metric_at(scale, name)
            if metric not in task.metrics:
                continue
            own = [cell for (_, of_column), cell in cells.items() if of_column == name]
            reasons = dict.fromkeys(reason for cell in own if (reason := task.lacks(cell, metric)) is not None)
            if reasons:
                at = (*recipe.column_path(scale, name), *(["metric"] if column.metric else []))
                if document.argument("metric"):  # a sweep made it a metric of the test split
                    at = ("metric",)
                yield document.problem(at, f"there is no {metric} at scale {scale}: {'; '.join(reasons)}")


def undrawable(
    recipe: Recipe, task: TaskOptions, methods: Methods, settings: Settings, document: Document
) -> Iterator[Problem]:
    """Everything that keeps the recipe's figure, where it is one, from being drawn."""
    if recipe.figure is not None:
        for key, message in _undrawable(recipe, recipe.figure, task, methods.get(recipe.baseline, {}), settings):
            yield document.problem(("figure", key), message)


def _undrawable(
    recipe: Recipe, figure: Figure, task: TaskOptions, method: Mapping[str, Any], settings: Settings
) -> Iterator[tuple[str, str]]:
    draw, drawing = figure.draw, task.drawings.get(figure.draw)
    if drawing is None:
        yield "draw", f"{draw} is not drawn of what {task.command} trains; {nearest(draw, task.drawings)}"
        return
    if drawing.from_log is not None:
        section, _, name = drawing.from_log.partition(".")
        for scale, cells in settings.items():
            without = {at for (_, at), cell in cells.items() if getattr(getattr(cell, section), name) is None}
            for column in dict.fromkeys(at for _, at in cells if at in without):
                where = f"set {drawing.from_log} (scale {scale}, column {column})"
                yield "draw", f"{draw} are drawn from a log that training keeps: {where}"
    if drawing.of_method is not None and method and method["name"] != drawing.of_method:
        other = f"the row {recipe.baseline} has another"
        yield "draw", f"{draw} are those of the method {drawing.of_method}; {other}"
    sites = method.get("sites")
    if figure.site is not None and not drawing.takes_site:
        yield "site", f"{draw} has no use for it; leave the key out"
    elif figure.site is None and drawing.takes_site:
        yield "site", f"is missing: {draw} are drawn of one site"
    elif figure.site is not None and isinstance(sites, list) and figure.site not in sites:
        none = f"the row {recipe.baseline} has no gate there"
        yield "site", f"{none}: {figure.site!r}; {nearest(figure.site, sites)}"
    if figure.text is not None and not drawing.takes_text:
        yield "text", f"{draw} reads none; leave the key out"


Also = Mapping[str, Any]
"""Name of the row -> its method, as a recipe's row would say it: a name, or a group with `name` and options."""


def row_methods(
    document: Document, catalogue: Catalogue, task: TaskOptions, problems: list[Problem]
) -> dict[str, dict[str, Any]]:
    """Every row's method, its options filled in. Works on the raw data, so that a broken row hides no other."""
    rows = document.data.get("rows")
    found: dict[str, dict[str, Any]] = {}
    for name, row in rows.items() if isinstance(rows, dict) else ():
        given = row.get("method") if isinstance(row, dict) else None
        method = _resolved(given, ("rows", name, "method"), document.line, catalogue, task, problems)
        if method is not None:
            found[name] = method
    return found


def fits(given: Any, task: TaskOptions, catalogue: Catalogue) -> bool:
    """Whether a method, as a row says it, is for the task, or is none at all, which is reported elsewhere."""
    name = given.get("name") if isinstance(given, dict) else given
    return not isinstance(name, str) or name not in catalogue.methods or catalogue.methods[name].fits(task.sites)


def _resolved(
    given: Any, path: KeyPath, line_of: LineOf, catalogue: Catalogue, task: TaskOptions, problems: list[Problem]
) -> dict[str, Any] | None:
    """A method as a row says it, with its name and all its options; None where something is wrong."""
    if isinstance(given, dict) and not isinstance(given.get("name"), str):
        problems.append(Problem(dotted((*path, "name")), "is missing: say which method", line_of(path)))
        return None
    if not isinstance(given, str | dict):
        return None  # missing or of a wrong type: the schema says so
    options = dict(given) if isinstance(given, dict) else {"name": given}
    name = options.pop("name")
    if name not in catalogue.methods or not catalogue.methods[name].fits(task.sites):
        fitting = [each for each, kind in catalogue.methods.items() if kind.fits(task.sites)]
        is_other = name in catalogue.methods
        wrong = f"the method {name} is not for {task.command}" if is_other else f"no method is called {name!r}"
        problems.append(Problem(dotted(path), f"{wrong}; {nearest(name, fitting)}", line_of(path)))
        return None
    config = validate(catalogue.methods[name], options, path, line_of, problems)
    if config is None:
        return None
    absent = config.absent(task.sites)
    problems += [Problem(dotted((*path, key)), text, line_of((*path, key))) for key, text in absent.items()]
    return None if absent else {"name": name, **config.stored()}


def with_rows(
    document: Document,
    also: Also,
    catalogue: Catalogue,
    task: TaskOptions,
    methods: dict[str, dict[str, Any]],
    problems: list[Problem],
) -> Document:
    """`document` with the rows of `also` at the end of its own, and `methods` with theirs. Problems name the argument.
    A row that the recipe has already, with the same method, is not added again: one argument can serve many recipes.
    """
    rows = document.data.get("rows")
    if not also or not isinstance(rows, dict):
        return document
    added: dict[str, Any] = {}
    arguments = dict(document.arguments)
    for name, given in also.items():
        found: list[Problem] = []
        if not re.fullmatch(NAME_PATTERN, name):
            found.append(Problem("", f"{name!r} cannot be the name of a row: use {NAME_FORM}"))
        method = _resolved(given, (), lambda _: None, catalogue, task, found)
        if method is None and not found:
            found.append(Problem("", "is no method: give its name, or {name: ..., and its options}"))
        if name in methods and not found and methods[name] != method:
            free = next(each for number in range(2, len(rows) + 3) if (each := f"{name}-{number}") not in rows)
            message = f"the recipe has another row {name!r}; give yours another name, for instance {free}="
            found.append(Problem("", message))
        problems.extend(Problem(_shown(name, given), str(problem)) for problem in found)
        if method is not None and not found and name not in rows:
            added[name], methods[name] = {"method": given, "in_paper": False}, method
            arguments[f"rows.{name}"] = _shown(name, given)
    return replace(document, data={**document.data, "rows": {**rows, **added}}, arguments=arguments)


def _shown(name: str, given: Any) -> str:
    """The argument as it may have been written."""
    if isinstance(given, dict):
        options = ", ".join(f"{key}: {json.dumps(value).replace(chr(34), '')}" for key, value in given.items())
        return f"--also {name}={{{options}}}"
    return f"--also {given}" if given == name else f"--also {name}={given}"
