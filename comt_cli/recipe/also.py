"""Rows that the command line adds to a recipe: `--also METHOD`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from comt_cli.recipe.problems import Problem
from comt_cli.recipe.schema import NAME_FORM, NAME_PATTERN
from comt_cli.recipe.yaml_lines import Document

Also = Mapping[str, Any]
"""Name of the row -> its method, as a recipe's row would say it: a name, or a group with `name` and options."""


def with_rows(
    document: Document,
    also: Also,
    resolve: Callable[[Any, list[Problem]], dict[str, Any] | None],
    methods: dict[str, dict[str, Any]],
    problems: list[Problem],
) -> Document:
    """`document` with the rows of `also` at the end of its own, and `methods` with theirs.

    `resolve` checks a method and fills in its options. Problems name the argument. A row that the recipe has already,
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
        method = resolve(given, found)
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
