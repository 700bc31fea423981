"""`sweep`: settings of which every cell of a table tries several values, to show the runs of the best.

Each combination of values is a point of the sweep's grid. Which point a cell shows is decided by a metric of
validation, for every cell by itself, once all its runs have ended (`report.collect`). With seeds of its own a sweep has
trials, and the table's runs are trained at the points that these choose (`report.sweep`). `with_sweep` gives a recipe
the sweep of the command line: `--sweep train.learning_rate=1e-3,2e-3,4e-3`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comt_cli.errors import UserError
from comt_cli.recipe.merge import Arguments, Given, Merged, Origin
from comt_cli.recipe.problems import KeyPath, Problem, RecipeError, dotted, known_as, nearest, unknown_key
from comt_cli.recipe.schema import Recipe, Sweep, TaskOptions
from comt_cli.recipe.settings import Overrides, RunSettings
from comt_cli.recipe.validate import every_key, valid_keys, validate
from comt_cli.recipe.yaml_lines import Document, parse

OF_TEST = ("test_", "unseen_", "last_")
"""How the names of metrics begin that are of other splits than validation."""
TRIAL_SEEDS = (101, 102)
"""Of the trials of a sweep that the command line gives, and the recipe does not have."""


@dataclass(frozen=True)
class LoadedGrid:
    """The grid of a scale: by dotted key the values, each with where it stands; `path` is the sweep's own place.
    `seeds` are those of its trials, () where the table's own seeds try the values."""

    path: KeyPath
    metric: str
    values: Mapping[str, Sequence[tuple[Any, Origin]]]
    seeds: tuple[int, ...] = ()

    @property
    def points(self) -> list[Given]:
        """All combinations of the values, the last key's changing first."""
        return [dict(zip(self.values, each, strict=True)) for each in itertools.product(*self.values.values())]

    @property
    def planned(self) -> list[Given]:
        """The points that runs can have: with trials the recipe's own values, as the point of number 0, and `points`
        from 1 on; without trials `points`."""
        return [{}, *self.points] if self.seeds else self.points

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
    places: dict[KeyPath, Sweep | None] = {("sweep",): recipe.sweep}
    places |= {("scales", name, "sweep"): scale.sweep for name, scale in recipe.scales.items()}
    checked = {
        path: _checked(grid, path, recipe, task, kind, document, problems)
        for path, grid in places.items()
        if grid is not None
    }
    for path in checked:
        if recipe.figure is not None:
            message = "a figure is drawn of runs that are known before any has ended; leave the sweep out"
            problems.append(document.problem(path, message))
        elif recipe.ablations:
            message = "rows of ablations are compared under the same settings; leave the sweep out, or the ablations"
            problems.append(document.problem(path, message))
    found: dict[str, LoadedGrid] = {}
    for name, scale in recipe.scales.items():
        path = ("scales", name, "sweep") if "sweep" in scale.model_fields_set else ("sweep",)
        if path in checked:
            found[name] = checked[path]
            if found[name].seeds:
                problems.extend(_unfair(recipe, name, task, found[name], document))
    return found


def _checked(
    sweep: Sweep,
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
    if not sweep.settings:
        report(("settings",), "has no keys: say what is tried, for instance train.learning_rate: [3e-4, 1e-3]")
    for key, given in sweep.settings.items():
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
                kept.append((value, Origin((*path, *at), document, argument=document.argument(dotted((*path, *at))))))
        if kept:
            values[key] = kept
        if sweep.seeds and len(kept) == len(given) and (wrong := _no_order(given)):
            report(("settings", key), wrong)
    validation = [name for name in task.metrics if not name.startswith(OF_TEST)]
    if recipe.command == task.command and sweep.metric not in validation:  # a wrong command is reported elsewhere
        message = f"{sweep.metric!r} is not one of {', '.join(validation)}; {nearest(sweep.metric, validation)}"
        if sweep.metric in task.metrics:
            said = f"{sweep.metric} is not computed on validation data, and other data must decide nothing"
            message = f"{said}; choose by {', '.join(validation)}"
        report(("metric",), message)
    return LoadedGrid(path, sweep.metric, values, tuple(sweep.seeds or ()))


def _no_order(given: Sequence[Any]) -> str | None:
    """Why it cannot be said of these values whether the best lies within them; None where it can."""
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in given):
        return "are not all numbers: of others it cannot be said whether the best is at the edge; leave seeds out"
    if len(given) < 3:
        return f"are only {len(given)}: the best is at the edge, and nothing can be chosen; give 3 or more"
    return None


def _unfair(recipe: Recipe, scale: str, task: TaskOptions, grid: LoadedGrid, document: Document) -> Iterator[Problem]:
    """Trials that are not apart from what the table shows: by their seeds, or by the data that chooses."""
    path = (*grid.path, "seeds")
    shown = set(recipe.scales[scale].seeds or recipe.seeds)
    if shared := sorted(shown & set(grid.seeds)):
        message = f"{shared[0]} is a seed of the table at scale {scale} too; give others, such as 101"
        yield document.problem(path, message)
    for column in recipe.columns_at(scale):
        metric = recipe.metric_at(scale, column)
        if metric in task.metrics and not metric.startswith(OF_TEST):
            tested = [name for name in task.metrics if name.startswith(OF_TEST)]
            instead = f"show one of {', '.join(tested)}" if tested else f"{task.command} has no other data to report"
            message = f"chooses on the validation data that {metric} of column {column} is of; {instead}"
            yield document.problem(grid.path, message)
            return


def _wrong_key(key: str, task: TaskOptions, kind: type[Overrides]) -> str | None:
    """Why no grid can have the key; None where it can."""
    section, _, name = key.partition(".")
    if not name:
        return f"write SECTION.KEY, for instance {known_as(key, every_key(kind)) or 'train.learning_rate'}"
    if section not in kind.model_fields:
        return f"there is no section {section!r}; {nearest(section, kind.model_fields)}"
    known = valid_keys(kind, (section,))
    if name not in known:
        return unknown_key(name, known, every_key(kind, but=section))
    if section == "data":
        return "other data have another validation set, on which nothing can be compared; make columns of them"
    if name in task.runtime_keys.get(section, ()):
        return "changes no number, so there is nothing to choose"
    return None


def overridden(
    recipe: Recipe, grids: Mapping[str, LoadedGrid], given: Mapping[KeyPath, Overrides], document: Document
) -> Iterator[Problem]:
    """Keys of a grid that a row's or a column's own settings give, which the grid would override: each once.

    Setups, and the settings of the recipe and its scales, may give them: they hold where a scale has no grid. With
    trials every place may: what a run has without the grid is shown too.
    """
    places: dict[KeyPath, str] = {}
    for scale, grid in grids.items():
        if grid.seeds:
            continue
        owners: list[KeyPath] = [recipe.column_path(scale, name) for name in recipe.columns_at(scale)]
        owners += [("rows", name) for name in recipe.rows]
        for key in grid.values:
            section, _, name = key.partition(".")
            for owner in owners:
                settings = getattr(given.get((*owner, "settings")), section, None)
                if settings is not None and name in settings.model_fields_set:
                    places.setdefault((*owner, "settings", section, name), scale)
    for path, scale in places.items():
        message = f"the grid of scale {scale} tries values of this key, and would override it; leave it out here"
        yield document.problem(path, message)


def same_runs(grids: Mapping[str, LoadedGrid], settings: Mapping[str, Merged], document: Document) -> Iterator[Problem]:
    """Points of different values that a run's settings do not tell apart, such as shares of the same whole step: for
    each grid the first cell. `settings` are those of every point by scale and cell."""
    found: set[KeyPath] = set()
    for scale, grid in grids.items():
        for (row, column), points in settings[scale].items():
            tried = points[1:] if grid.seeds else points
            told_apart = {each.model_dump_json() for each, _ in tried}
            if len(told_apart) < len(tried) and grid.path not in found:
                found.add(grid.path)
                path = (*grid.path, "settings")
                message = f"two of its points are the same run: {row} under {column} has the same settings there"
                yield document.problem(path, message)


def with_sweep(
    document: Document, arguments: Sequence[str], scale: str, task: TaskOptions, overrides: Sequence[str] = ()
) -> Document:
    """`document` at `scale` alone, with a sweep of these values in place of the one that it has there.

    Metric and seeds of the trials are those of the recipe's sweep; without one, the task's first metric and
    `TRIAL_SEEDS`. Columns that show a metric of validation, which chooses, show the same metric of the test split.
    Ablations of the recipe are left out: they compare rows under equal settings. `overrides` are the `--set` arguments.

    Raises:
        UserError: an argument is not KEY=VALUE,VALUE,...; two have the same key; `--set` gives the key too.
    """
    fixed = {override.partition("=")[0].strip() for override in overrides}
    settings: dict[str, Any] = {}
    said_by = {f"scales.{scale}.sweep": "--sweep", "metric": "--sweep"}
    for argument in arguments:
        key, _, text = argument.partition("=")
        key, values = key.strip(), None
        if text.strip():
            with contextlib.suppress(RecipeError):
                values = parse(f"[{text}]", "--sweep")
        if key in settings or key in fixed:
            other = "twice" if key in settings else "by --set too"
            raise UserError(f"--sweep {key} is given {other}", "Leave one of them out; one --sweep has all values.")
        if values is None or values.problems or not isinstance(values.data, list):
            form = "as in train.learning_rate=1e-3,2e-3,4e-3"
            raise UserError(f"--sweep {argument}: should be SECTION.KEY=VALUE,VALUE,...", form)
        settings[key] = values.data
        said_by[f"scales.{scale}.sweep.settings.{key}"] = f"--sweep {argument}"
    data: dict[str, Any] = {"metric": task.metric, **document.data}
    scales: Any = data.get("scales")
    own: Any = scales.get(scale) if isinstance(scales, dict) else None
    if not isinstance(own, dict):  # which is reported elsewhere
        return document
    before = own.get("sweep", data.get("sweep"))
    said = before if isinstance(before, dict) else {}
    sweep = {"metric": task.metric, **said, "settings": settings}
    sweep["seeds"] = said.get("seeds") or list(TRIAL_SEEDS)
    data["scales"] = {scale: {**_tested(own, task), "sweep": sweep}}
    data.pop("ablations", None)
    return replace(document, data=_tested(data, task), arguments=document.arguments | said_by)


def _tested(place: Mapping[str, Any], task: TaskOptions) -> dict[str, Any]:
    """A recipe, a scale or a column whose metric, and those of its columns, are of the test split."""
    found, metric, columns = dict(place), place.get("metric"), place.get("columns")
    if f"test_{metric}" in task.metrics and not str(metric).startswith(OF_TEST):
        found["metric"] = f"test_{metric}"
    if isinstance(columns, dict):
        found["columns"] = {
            name: _tested(column, task) if isinstance(column, dict) else column for name, column in columns.items()
        }
    return found
