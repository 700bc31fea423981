"""`grid`: settings of which every cell of a table tries several values, to show the runs of the best.

Each combination of values is a point. Which point a cell shows is decided by a metric of validation, for every cell by
itself, once all its runs have ended (`report.collect`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comt_cli.recipe.merge import Arguments, Origin, Origins, Point
from comt_cli.recipe.overrides import Overrides
from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest
from comt_cli.recipe.schema import Grid, Recipe, TaskOptions
from comt_cli.recipe.settings import RunSettings
from comt_cli.recipe.validate import valid_keys, validate
from comt_cli.recipe.yaml_lines import Document

OF_TEST = ("test_", "unseen_", "last_")
"""How the names of metrics begin that are of other splits than validation."""


@dataclass(frozen=True)
class LoadedGrid:
    """The grid of a scale: by dotted key the values, each with where it stands; `path` is the grid's own place."""

    path: KeyPath
    metric: str
    values: Mapping[str, Sequence[tuple[Any, Origin]]]

    @property
    def points(self) -> list[Point]:
        """All combinations of the values, the last key's changing first."""
        return [dict(zip(self.values, each, strict=True)) for each in itertools.product(*self.values.values())]

    def of(self, settings: RunSettings) -> dict[str, Any]:
        """The values that a run has of the grid's keys, as plain data; moments are whole steps there."""
        said = settings.model_dump(mode="json")
        return {key: said[section][name] for key in self.values for section, _, name in [key.partition(".")]}

    def without(self, arguments: Arguments) -> LoadedGrid | None:
        """The grid of the keys that `--set` leaves open; None where it leaves none."""
        open_keys = {
            key: given for key, given in self.values.items() if tuple(key.split(".", 1)) not in arguments.origin
        }
        return replace(self, values=open_keys) if open_keys else None


def load_grids(
    recipe: Recipe, task: TaskOptions, kind: type[Overrides], document: Document, problems: list[Problem]
) -> dict[str, LoadedGrid]:
    """The grid of every scale that has one. What is wrong in grids becomes problems, and is left out."""
    places: dict[KeyPath, Grid | None] = {("grid",): recipe.grid}
    places |= {("scales", name, "grid"): scale.grid for name, scale in recipe.scales.items()}
    checked = {
        path: _checked(grid, path, recipe, task, kind, document, problems)
        for path, grid in places.items()
        if grid is not None
    }
    for path in checked:
        if recipe.figure is not None:
            message = "a figure is drawn of runs that are known before any has ended; leave the grid out"
            problems.append(Problem(dotted(path), message, document.line(path)))
        elif recipe.ablations:
            message = "rows of ablations are compared under the same settings; leave the grid out, or the ablations"
            problems.append(Problem(dotted(path), message, document.line(path)))
    found: dict[str, LoadedGrid] = {}
    for name, scale in recipe.scales.items():
        path = ("scales", name, "grid") if "grid" in scale.model_fields_set else ("grid",)
        if path in checked:
            found[name] = checked[path]
    return found


def _checked(
    grid: Grid,
    path: KeyPath,
    recipe: Recipe,
    task: TaskOptions,
    kind: type[Overrides],
    document: Document,
    problems: list[Problem],
) -> LoadedGrid:
    def report(at: KeyPath, message: str) -> None:
        whole = (*path, *at)
        name = dotted(whole)
        if not any(f"{problem.key}.".startswith((f"{name}.", f"{name}[")) for problem in problems):
            problems.append(Problem(name, message, document.line(whole)))

    values: dict[str, list[tuple[Any, Origin]]] = {}
    if not grid.settings:
        report(("settings",), "has no keys: say what is tried, for instance train.learning_rate: [3e-4, 1e-3]")
    for key, given in grid.settings.items():
        wrong = _wrong_key(key, task, kind) or ("is empty: give the values to try" if not given else None)
        if wrong is not None:
            report(("settings", key), wrong)
            continue
        section, _, name = key.partition(".")
        kept: list[tuple[Any, Origin]] = []
        for number, value in enumerate(given):
            at: KeyPath = ("settings", key, number)
            found: list[Problem] = []
            validate(kind, {section: {name: value}}, (), lambda _: None, found)
            for problem in found:
                report(at, problem.message)
            if value in [other for other, _ in kept]:
                report(at, f"{json.dumps(value)} stands twice")
            elif not found:
                kept.append((value, Origin((*path, *at), document)))
        if kept:
            values[key] = kept
    validation = [name for name in task.metrics if not name.startswith(OF_TEST)]
    if recipe.command == task.command and grid.metric not in validation:  # a wrong command is reported elsewhere
        if grid.metric in task.metrics:
            message = (
                f"{grid.metric} is not computed on validation data, and other data must decide nothing; choose by "
            )
            report(("metric",), f"{message}{', '.join(validation)}")
        else:
            message = f"{grid.metric!r} is not one of {', '.join(validation)}; {nearest(grid.metric, validation)}"
            report(("metric",), message)
    return LoadedGrid(path, grid.metric, values)


def _wrong_key(key: str, task: TaskOptions, kind: type[Overrides]) -> str | None:
    """Why no grid can have the key; None where it can."""
    section, _, name = key.partition(".")
    if not name:
        return "write SECTION.KEY, for instance train.learning_rate"
    if section not in kind.model_fields:
        return f"there is no section {section!r}; {nearest(section, kind.model_fields)}"
    known = valid_keys(kind, (section,))
    if name not in known:
        return f"unknown key; {nearest(name, known)}"
    if section == "data":
        return "other data have another validation set, on which nothing can be compared; make columns of them"
    if name in task.runtime_keys.get(section, ()):
        return "changes no number, so there is nothing to choose"
    return None


def overridden(
    recipe: Recipe, grids: Mapping[str, LoadedGrid], given: Mapping[KeyPath, Overrides], document: Document
) -> Iterator[Problem]:
    """Keys of a grid that a row's or a column's own settings give, which the grid would override: each once.

    Setups, and the settings of the recipe and its scales, may give them: they hold where a scale has no grid.
    """
    places: dict[KeyPath, str] = {}
    for scale, grid in grids.items():
        columns: KeyPath = ("columns",) if recipe.scales[scale].columns is None else ("scales", scale, "columns")  # type: ignore[index]
        owners = [*((*columns, name) for name in recipe.columns_at(scale)), *(("rows", name) for name in recipe.rows)]
        for key in grid.values:
            section, _, name = key.partition(".")
            for owner in owners:
                settings = getattr(given.get((*owner, "settings")), section, None)
                if settings is not None and name in settings.model_fields_set:
                    places.setdefault((*owner, "settings", section, name), scale)
    for path, scale in places.items():
        message = f"the grid of scale {scale} tries values of this key, and would override it; leave it out here"
        yield Problem(dotted(path), message, document.line(path))


def same_runs(
    grids: Mapping[str, LoadedGrid],
    settings: Mapping[str, Mapping[tuple[str, str], Sequence[tuple[RunSettings, Origins]]]],
    document: Document,
) -> Iterator[Problem]:
    """Points of different values that a run's settings do not tell apart, such as shares of the same whole step: for
    each grid the first cell. `settings` are those of every point by scale and cell."""
    found: set[KeyPath] = set()
    for scale, grid in grids.items():
        for (row, column), points in settings[scale].items():
            told_apart = {each.model_dump_json() for each, _ in points}
            if len(told_apart) < len(points) and grid.path not in found:
                found.add(grid.path)
                path = (*grid.path, "settings")
                message = f"two of its points are the same run: {row} under {column} has the same settings there"
                yield Problem(dotted(path), message, document.line(path))
