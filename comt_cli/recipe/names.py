"""Names within a recipe that must agree: the rows' methods, those of `--also METHOD` too, the baseline, the paper's
cells, the rows of an ablation, what is drawn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from comt_cli.recipe.grid import Wrong
from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest
from comt_cli.recipe.schema import NAME_FORM, NAME_PATTERN, Ablation, Catalogue, Figure, Place, Recipe, Row, TaskOptions
from comt_cli.recipe.settings import RunSettings
from comt_cli.recipe.validate import LineOf, validate
from comt_cli.recipe.yaml_lines import Document

LADDER_SIZES = 3
"""Through fewer there is no line with an interval."""

Methods = Mapping[str, Mapping[str, Any]]
"""Every row's method with all its options; without the rows whose method is wrong."""

Settings = Mapping[str, Mapping[tuple[str, str], RunSettings]]
"""By scale, then by row and column."""


def disagreements(
    recipe: Recipe, methods: Methods, catalogue: Catalogue, task: TaskOptions, *, has_paper: bool
) -> Wrong:
    """Everything in `recipe` that names what is not there, or says what contradicts something else."""
    metrics: Iterable[str] | None = task.metrics
    if recipe.command not in catalogue.tasks:
        yield ("command",), _none("command", recipe.command, catalogue.tasks)
        metrics = None
    if recipe.baseline not in recipe.rows:
        yield ("baseline",), _none("row", recipe.baseline, recipe.rows)
    if not has_paper and recipe.table is not None:
        yield ("table",), "says which table of a paper it is, but the recipe has no `paper`"
    for name, row in recipe.rows.items():
        for key, message in _printed(row, recipe, has_paper=has_paper):
            yield ("rows", name, *key), message
        for scale in row.notes:
            if scale not in recipe.scales:
                yield ("rows", name, "notes", scale), _none("scale", scale, recipe.scales)
    for ablation_name, ablation in recipe.ablations.items():
        yield from _ablation(("ablations", ablation_name), ablation, recipe, methods)
    for path, place in recipe.places():
        yield from _shown(path, place, recipe, metrics, has_paper=has_paper)
    if recipe.ladder:
        yield from _ladder(recipe)


def _none(what: str, name: str, names: Iterable[str]) -> str:
    return f"there is no {what} {name!r}; {nearest(name, names)}"


def _shown(path: KeyPath, place: Place, recipe: Recipe, metrics: Iterable[str] | None, *, has_paper: bool) -> Wrong:
    """Problems of the metric that a place's cells show, and of the column that they are compared to."""
    metric, paper = getattr(place, "metric", None), getattr(place, "compare_to", None)
    if metrics is not None and metric is not None and metric not in metrics:
        yield (*path, "metric"), _none("metric", metric, metrics)
    if paper is None:
        return
    if path[0] == "columns":
        yield (*path, "compare_to"), "belongs to the columns of a scale: this is the paper's own"
    elif paper not in recipe.columns:
        yield (*path, "compare_to"), _none("column", paper, recipe.columns)
    elif not has_paper:
        yield (*path, "compare_to"), "names a column of a paper's, but the recipe has no `paper`"
    elif metric not in (None, theirs := recipe.columns[paper].metric or recipe.metric):
        yield (*path, "metric"), f"cannot stand beside the paper's column {paper}, which has {theirs}"


def _ladder(recipe: Recipe) -> Wrong:
    """Reasons why a scale of a ladder has no line of gain against compute."""
    at = ("ladder",)
    if recipe.figure is not None:
        yield at, "is of a table, and this recipe is a figure; leave one of them out"
    if len(recipe.rows) < 2:
        yield at, "compares rows with the baseline, and there is no other row"
    for scale in recipe.scales:
        columns = recipe.columns_at(scale)
        if len(columns) < LADDER_SIZES:
            yield at, f"takes {LADDER_SIZES} columns or more, one a size; scale {scale} has {len(columns)} columns"
        if len(shown := dict.fromkeys(recipe.metric_at(scale, column) for column in columns)) > 1:
            yield at, f"compares one metric over all sizes; the columns of scale {scale} show {', '.join(shown)}"


def _printed(row: Row, recipe: Recipe, *, has_paper: bool) -> Wrong:
    """Problems of what a row says of the paper's columns."""
    given: dict[str, Mapping[str, object]] = {"paper": row.paper, "paper_increase": row.paper_increase}
    for key, cells in given.items():
        if cells and not has_paper:
            yield (key,), "has values, but the recipe has no `paper` that prints them"
            continue
        for column in cells:
            if column not in recipe.columns:
                yield (key, column), _none("column", column, recipe.columns)
        if cells and not row.in_paper:
            yield (key,), "has values, but the row says in_paper: false"
    if not has_paper:
        if "in_paper" in row.model_fields_set and row.in_paper:
            yield ("in_paper",), "is true, but the recipe has no `paper`"
    elif row.in_paper:
        if missing := [column for column in recipe.columns if column not in row.paper]:
            mend = "give the paper's (null where it prints none), or say in_paper: false"
            yield ("paper",), f"has no value for {', '.join(missing)}: {mend}"
        if row.published is not None:
            yield ("published",), "is of other papers, and the row is in this one's: use paper"


def _ablation(path: KeyPath, ablation: Ablation, recipe: Recipe, methods: Methods) -> Wrong:
    rows = ablation.rows if ablation.rows is not None else list(recipe.rows)
    for position, row in enumerate(rows):
        if row not in recipe.rows:
            yield (*path, "rows", position), _none("row", row, recipe.rows)
    # Where a row's method is wrong, that is reported, and nothing is known of its options.
    if ablation.option is None or any(row not in methods for row in rows):
        return
    option, at = ablation.option, (*path, "option")
    values = [methods[row][option] for row in rows if option != "name" and option in methods[row]]
    if len(values) < 2:
        options = dict.fromkeys(key for row in rows for key in methods[row] if key != "name")
        hint = nearest(option, options) if option not in options else "name rows that have it"
        yield at, f"{option!r} is an option of {len(values) or 'none'} of the rows; {hint}"
    elif all(value == values[0] for value in values):
        yield at, f"{option!r} has the same value in every row that has it; name the option that varies, or null"


def unmeasured(recipe: Recipe, task: TaskOptions, settings: Settings, document: Document) -> Wrong:
    """Columns that show a metric which their runs have no number for."""
    for scale, cells in settings.items():
        for name, column in recipe.columns_at(scale).items():
            metric = recipe.metric_at(scale, name)
            own = [cell for (_, at), cell in cells.items() if at == name and metric in task.metrics]
            reasons = dict.fromkeys(reason for cell in own if (reason := task.lacks(cell, metric)) is not None)
            if reasons:
                at = (*recipe.column_path(scale, name), *(["metric"] if column.metric else []))
                if document.argument("metric"):  # a sweep made it a metric of the test split
                    at = ("metric",)
                yield at, f"there is no {metric} at scale {scale}: {'; '.join(reasons)}"


def undrawable(
    recipe: Recipe, figure: Figure, task: TaskOptions, method: Mapping[str, Any], settings: Settings
) -> Wrong:
    """Everything that keeps the recipe's figure from being drawn; `method` is the baseline's."""
    draw, drawing = figure.draw, task.drawings.get(figure.draw)
    if drawing is None:
        yield ("figure", "draw"), _none(f"drawing of what {task.command} trains called", draw, task.drawings)
        return
    if drawing.from_log is not None:
        section, _, name = drawing.from_log.partition(".")
        for scale, cells in settings.items():
            without = (at for (_, at), cell in cells.items() if getattr(getattr(cell, section), name) is None)
            for column in dict.fromkeys(without):
                yield (
                    ("figure", "draw"),
                    f"set {drawing.from_log} (scale {scale}, column {column}): it is drawn of that",
                )
    if drawing.of_method is not None and method and method["name"] != drawing.of_method:
        yield ("figure", "draw"), f"is of the method {drawing.of_method}; the row {recipe.baseline} has another"
    sites = method.get("sites")
    if (figure.site is not None) != drawing.takes_site:
        message = f"is missing: {draw} are drawn of one site" if drawing.takes_site else f"{draw} has no use for it"
        yield ("figure", "site"), message
    elif figure.site is not None and isinstance(sites, list) and figure.site not in sites:
        yield ("figure", "site"), _none(f"gate in the row {recipe.baseline} at", figure.site, sites)
    if figure.text is not None and not drawing.takes_text:
        yield ("figure", "text"), f"{draw} reads none; leave the key out"


Also = Mapping[str, Any]
"""Name of the row -> its method, as a recipe's row would say it: a name, or a group with `name` and options."""


def fits(given: Any, task: TaskOptions, catalogue: Catalogue) -> bool:
    """Whether a method, as a row says it, is for the task, or is none at all, which is reported elsewhere."""
    name = given.get("name") if isinstance(given, dict) else given
    return not isinstance(name, str) or name not in catalogue.methods or catalogue.methods[name].fits(task.sites)


def resolved(
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
        problems.append(Problem(dotted(path), _none(f"method for {task.command} called", name, fitting), line_of(path)))
        return None
    config = validate(catalogue.methods[name], options, path, line_of, problems)
    absent = {} if config is None else config.absent(task.sites)
    problems += [Problem(dotted((*path, key)), text, line_of((*path, key))) for key, text in absent.items()]
    return None if config is None or absent else {"name": name, **config.stored()}


def with_rows(
    document: Document, also: Also, catalogue: Catalogue, task: TaskOptions, problems: list[Problem]
) -> tuple[Document, dict[str, dict[str, Any]]]:
    """`document` with the rows of `also` at the end of its own, and every row's method, its options filled in. Works on
    the raw data, so that a broken row hides no other. A row that the recipe has already, with the same method, is not
    added again: one argument can serve many recipes."""
    rows = document.data.get("rows")
    methods: dict[str, dict[str, Any]] = {}
    for name, row in rows.items() if isinstance(rows, dict) else ():
        said = row.get("method") if isinstance(row, dict) else None
        method = resolved(said, ("rows", name, "method"), document.line, catalogue, task, problems)
        methods |= {} if method is None else {name: method}
    if not also or not isinstance(rows, dict):
        return document, methods
    added: dict[str, Any] = {}
    arguments = dict(document.arguments)
    for name, given in also.items():
        found: list[Problem] = []
        shown = f"--also {name}={given}"
        if isinstance(given, dict):
            options = ", ".join(f"{key}: {json.dumps(value).replace(chr(34), '')}" for key, value in given.items())
            shown = f"--also {name}={{{options}}}"
        elif given == name:
            shown = f"--also {name}"
        if not re.fullmatch(NAME_PATTERN, name):
            found.append(Problem("", f"{name!r} cannot be the name of a row: use {NAME_FORM}"))
        method = resolved(given, (), lambda _: None, catalogue, task, found)
        if method is None and not found:
            found.append(Problem("", "is no method: give its name, or {name: ..., and its options}"))
        if name in methods and not found and methods[name] != method:
            free = next(each for number in range(2, len(rows) + 3) if (each := f"{name}-{number}") not in rows)
            found.append(Problem("", f"the recipe has another row {name!r}; give yours another name: {free}="))
        problems.extend(Problem(shown, str(problem)) for problem in found)
        if method is not None and not found and name not in rows:
            added[name], methods[name] = {"method": given, "in_paper": False}, method
            arguments[f"rows.{name}"] = shown
    return replace(document, data={**document.data, "rows": {**rows, **added}}, arguments=arguments), methods
