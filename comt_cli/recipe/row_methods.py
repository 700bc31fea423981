"""The methods of a recipe's rows, and the rows that the command line adds to them: `--also METHOD`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest
from comt_cli.recipe.schema import NAME_FORM, NAME_PATTERN, Catalogue, TaskOptions
from comt_cli.recipe.validate import LineOf, validate
from comt_cli.recipe.yaml_lines import Document

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
    """`document` with the rows of `also` at the end of its own, and `methods` with theirs.

    Problems name the argument. A row that the recipe has already,
    with the same method, is not added again, so that one argument can serve many recipes.
    """
    rows = document.data.get("rows")
    if not also or not isinstance(rows, dict):
        return document
    added: dict[str, Any] = {}
    for name, given in also.items():
        argument = _shown(name, given)
        found: list[Problem] = []
        if not re.fullmatch(NAME_PATTERN, name):
            found.append(Problem("", f"{name!r} cannot be the name of a row: use {NAME_FORM}"))
        method = _resolved(given, (), lambda _: None, catalogue, task, found)
        if method is None and not found:
            found.append(Problem("", "is no method: give its name, or {name: ..., and its options}"))
        if name in methods and not found and methods[name] != method:
            found.append(Problem("", f"the recipe has another row {name!r}; {_free_name(name, rows)}"))
        problems.extend(
            Problem(argument, f"{problem.key}: {problem.message}" if problem.key else problem.message)
            for problem in found
        )
        if method is not None and not found and name not in rows:
            added[name] = {"method": given, "in_paper": False}
            methods[name] = method
    arguments = {f"rows.{name}": _shown(name, also[name]) for name in added}
    data = {**document.data, "rows": {**rows, **added}}
    return replace(document, data=data, arguments=document.arguments | arguments)


def _free_name(name: str, rows: Mapping[str, Any]) -> str:
    """A phrase that proposes a name which no row has."""
    free = next(candidate for number in range(2, len(rows) + 3) if (candidate := f"{name}-{number}") not in rows)
    return f"give yours another name, for instance {free}="


def _shown(name: str, given: Any) -> str:
    """The argument as it may have been written."""
    if isinstance(given, dict):
        options = ", ".join(f"{key}: {json.dumps(value).replace(chr(34), '')}" for key, value in given.items())
        return f"--also {name}={{{options}}}"
    return f"--also {given}" if given == name else f"--also {name}={given}"
