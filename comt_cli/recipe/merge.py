"""What a run is told: the recipe's settings, then the scale's, the column's, the row's, then the command line's.

The later wins, key by key. Each key remembers where it came from, so that a combination that cannot work is blamed on
the line that made it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, dotted, nearest
from comt_cli.recipe.schema import PartialSettings, Recipe
from comt_cli.recipe.settings import Settings
from comt_cli.recipe.validate import valid_keys, validate
from comt_cli.recipe.yaml_lines import Document, parse


@dataclass
class Overrides:
    """`--set` arguments, parsed and typed; `origin[section, key]` is the argument as it was written."""

    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    origin: dict[KeyPath, str] = field(default_factory=dict)


def parse_overrides(arguments: Sequence[str], problems: list[Problem]) -> Overrides:
    """Turn `train.steps=200` into settings; problems name the argument."""
    overrides = Overrides()
    sections = valid_keys(PartialSettings, ())
    for argument in arguments:
        key, equals, text = argument.partition("=")
        section, _, name = key.strip().partition(".")
        shown = f"--set {argument}"
        if not equals or not name:
            problems.append(Problem(shown, "write SECTION.KEY=VALUE, for instance train.steps=200"))
            continue
        if section not in sections:
            problems.append(Problem(shown, f"there is no section {section!r}; {nearest(section, sections)}"))
            continue
        try:
            document = parse(text, shown)
            if document.problems:
                raise RecipeError(shown, document.problems)
        except RecipeError as error:
            problems.extend(Problem(shown, str(replace(problem, line=None))) for problem in error.problems)
            continue
        value = document.data if text.strip() else None
        candidate = {section: {name: value}}
        found: list[Problem] = []
        validate(PartialSettings, candidate, (), lambda _: None, found)
        if found:
            problems.extend(Problem(shown, problem.message) for problem in found)
            continue
        overrides.values.setdefault(section, {})[name] = value
        overrides.origin[section, name] = shown
    return overrides


def merged_settings(
    recipe: Recipe,
    scale: str,
    document: Document,
    overrides: Overrides,
    problems: list[Problem],
    *,
    complete: bool = True,
) -> dict[tuple[str, str], Settings]:
    """The settings of every (row, column) of a scale; a problem that several cells share is told once.

    `complete` is False where broken parts of the recipe were left out: a missing key then proves nothing.
    """
    settings: dict[tuple[str, str], Settings] = {}
    seen: set[tuple[str, str]] = {(problem.key, problem.message) for problem in problems}
    chosen = recipe.scales[scale]  # type: ignore[index]
    in_scale = chosen.columns is not None
    for column_name, column in (chosen.columns or recipe.columns).items():
        column_path: KeyPath = ("scales", scale, "columns", column_name) if in_scale else ("columns", column_name)
        for row_name, row in recipe.rows.items():
            layers = [
                (recipe.settings, ("settings",)),
                (chosen.settings, ("scales", scale, "settings")),
                (column.settings, (*column_path, "settings")),
                (row.settings, ("rows", row_name, "settings")),
            ]
            merged, origin = _merge(layers, overrides)
            found: list[Problem] = []
            result = validate(Settings, merged, (), lambda _: None, found)
            for problem in found:
                if not complete and problem.key not in origin:
                    continue
                located = _locate(problem, origin, document, column_path)
                if (located.key, located.message) not in seen:
                    seen.add((located.key, located.message))
                    problems.append(located)
            if result is not None:
                settings[row_name, column_name] = result
    return settings


def _merge(
    layers: Iterable[tuple[PartialSettings, KeyPath]], overrides: Overrides
) -> tuple[dict[str, dict[str, Any]], dict[str, KeyPath | str]]:
    """Merged values, and for every dotted key the path (or the `--set` argument) that gave its value."""
    merged: dict[str, dict[str, Any]] = {"model": {}, "data": {}, "train": {}}
    origin: dict[str, KeyPath | str] = {}
    for partial, path in layers:
        for section, values in partial.model_dump(mode="json", exclude_unset=True).items():
            for key, value in (values or {}).items():
                merged[section][key] = value
                origin[f"{section}.{key}"] = (*path, section, key)
    for section, values in overrides.values.items():
        for key, value in values.items():
            merged[section][key] = value
            origin[f"{section}.{key}"] = overrides.origin[section, key]
    return merged, origin


def _locate(problem: Problem, origin: dict[str, KeyPath | str], document: Document, column: KeyPath) -> Problem:
    source = origin.get(problem.key)
    if isinstance(source, str):
        return Problem(source, problem.message)
    if source is not None:
        return Problem(dotted(source), problem.message, document.line(source))
    return Problem(problem.key, f"{problem.message} (needed by {dotted(column)})", document.line(column))
