"""The settings of a run, merged from the recipe, scale, column, row, grid and command line.

Later ones override earlier ones key by key; a setup precedes the settings of the place that names it. Each key keeps
its origin, so that a contradiction is reported at the line that caused it. A grid contains all combinations of a
`sweep`; every cell of a table trains them and shows the best by validation. A sweep with its own seeds has trials, and
the table's runs use the point that these select.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from comt_cli.errors import UserError
from comt_cli.recipe.problems import Document, KeyPath, Problem, nearest, parse, validate, wrong_setting
from comt_cli.recipe.schema import Recipe, Start, Sweep, Wrong
from comt_cli.recipe.settings import Overrides, RunSettings, overrides_of

Cell = tuple[str, str]  # a row and a column


class Origin(NamedTuple):
    """The origin of a setting: a key of a recipe or a setup, or an argument of the command line."""

    path: KeyPath
    document: Document

    @property
    def argument(self) -> str | None:
        """The argument that gave the setting; None if a file gave it."""
        return self.document.argument(self.path)


Origins = Mapping[str, Origin]
"""Origins by dotted key, such as `train.steps`. A missing key has its default value."""
Layer = Mapping[str, tuple[Any, Origin]]
"""Values by dotted key with their origin: of one place, a point of a grid, or the command line."""


def layer_of(settings: Overrides, document: Document, path: KeyPath = ()) -> Layer:
    """The settings of a place, whose keys are below `path` in the document."""
    given = settings.model_dump(mode="json", exclude_unset=True)
    return {
        f"{section}.{key}": (value, Origin((*path, section, key), document))
        for section, values in given.items()
        for key, value in (values or {}).items()
    }


def parse_arguments(arguments: Sequence[str], kind: type[Overrides], problems: list[Problem]) -> Layer:
    """The settings of arguments such as `train.steps=200`; `problems` receives problems, each with its argument."""
    parsed: dict[str, tuple[Any, Origin]] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        section, _, name = key.strip().partition(".")
        found, read = Document(arguments={"": f"--set {argument}"}), parse(text)
        wrong = wrong_setting(key.strip(), kind) if equals else "should be SECTION.KEY=VALUE, such as train.steps=200"
        for message in [wrong] if wrong else [str(replace(each, line=None)) for each in read.problems]:
            found.note((), message)
        given = None if found.problems else validate(kind, {section: {name: read.data}}, found)
        if given is not None:
            parsed |= layer_of(given, found)
        problems += found.problems
    return parsed


def merge(kind: type[RunSettings], layers: Sequence[Layer]) -> tuple[RunSettings | None, Origins, list[Problem]]:
    """The merged settings (None if they are invalid), their origins, and the problems."""
    together = {key: given for layer in layers for key, given in layer.items()}
    merged: dict[str, dict[str, Any]] = {section: {} for section in kind.model_fields}
    for name, (value, _) in together.items():
        section, _, key = name.partition(".")
        merged[section][key] = value
    found = Document()
    settings = validate(kind, merged, found)
    return settings, {key: origin for key, (_, origin) in together.items()}, found.problems


def located(
    problem: Problem, kind: type[RunSettings], layers: Sequence[Layer], origins: Origins, column: Problem
) -> Problem:
    """`problem` at the line or argument that gave the value, with every argument that takes part in causing it; for a
    value that is given nowhere, at the `column` that needs the key."""
    origin = origins.get(problem.key)
    own = None if origin is None else origin.argument
    by = [] if own is None else [own]
    for argument in dict.fromkeys(each.argument for each in origins.values()):
        if argument not in (None, own):
            others = [{key: given for key, given in layer.items() if given[1].argument != argument} for layer in layers]
            if problem not in merge(kind, others)[2]:
                by.append(str(argument))
    found = problem if origin is None else origin.document.problem(origin.path, problem.message)
    if by:
        return Problem(" with ".join(by), str(found) if own is None else problem.message)
    return found if origin else Problem(problem.key, f"{problem.message} (needed by {column.key})", column.line)


def _of_start(settings: RunSettings, start: Start | None) -> Iterator[Problem]:
    if start is None:
        for key in (each for each in settings.train.of_start if each in settings.train.stored()):
            said = "requires weights to start from, and this run has no start; leave the key out, or add a start"
            yield Problem(f"train.{key}", said)
    if getattr(settings.data, "tokenizer", None) == "start" and (start is None or start.weights is None):
        yield Problem("data.tokenizer", "is `start`, but the run does not start from published weights; name some")


def _with_tokenizer(settings: RunSettings, start: Start | None) -> RunSettings:
    if start is None or getattr(settings.data, "tokenizer", None) != "start":
        return settings
    data = settings.data.model_copy(update={"tokenizer": f"weights:{start.weights}"})
    return settings.model_copy(update={"data": data})


def merged_cells(
    recipe: Recipe, scale: str, task: Any, layers: Mapping[KeyPath, Sequence[Layer]], grid: LoadedGrid | None,
    arguments: Layer, document: Document, problems: list[Problem], *, complete: bool,
) -> dict[Cell, list[RunSettings]]:  # fmt: skip
    """The settings of every cell of a scale at each point of its grid. If not `complete`, broken parts of the recipe
    were left out, and a missing key is not reported."""
    merged: dict[Cell, list[RunSettings]] = {}
    for column, row in itertools.product(recipe.columns_at(scale), recipe.rows):
        at = recipe.column_path(scale, column)
        own = [each for path in ((), ("scales", scale), at, ("rows", row)) for each in layers[path]]
        _, start = recipe.start_of(scale, column, row)
        for point in [{}] if grid is None else grid.planned:
            several = [*own, point, arguments]
            settings, origins, found = merge(task.settings, several)
            blamed = [(each, origins) for each in found if complete or each.key in origins]
            for each in _of_start(settings, start) if settings is not None and complete else ():
                blamed.append((each, {each.key: origins[each.key]}))
            needing = document.problem(at, "")
            problems += (located(each, task.settings, several, by, needing) for each, by in blamed)
            if settings is not None:
                merged.setdefault((row, column), []).append(_with_tokenizer(settings, start))
    return merged


def changed(
    arguments: Layer, task: Any, cells: object, cells_of: Callable[[Layer, list[Problem]], object]
) -> dict[str, Any]:
    """The `--set` arguments that change the training, by dotted key and sorted. Left out are keys that change no number
    (`runtime_keys`) and arguments without which `cells_of` returns the same `cells`."""
    left = arguments
    for key in sorted(arguments):
        without = {other: given for other, given in left.items() if other != key}
        if cells_of(without, []) == cells:
            left = without
    runtime = {f"{section}.{name}" for section, names in task.runtime_keys.items() for name in names}
    return {key: left[key][0] for key in sorted(left) if key not in runtime}


# ---- grids

OF_TEST = ("test_", "unseen_", "last_")
"""Prefixes of the metrics that are computed on splits other than validation."""
TRIAL_SEEDS = (101, 102)  # seeds of the trials of `--sweep`, if the recipe has none


@dataclass(frozen=True)
class LoadedGrid:
    """The grid of a scale: the values of each dotted key with their origins; `path` is the key of the sweep. `seeds`
    are those of its trials; () if the table's own seeds train every point."""

    path: KeyPath
    metric: str
    values: Mapping[str, Sequence[tuple[Any, Origin]]]
    seeds: tuple[int, ...] = ()

    @property
    def points(self) -> list[Layer]:
        """All combinations of the values; the last key varies fastest."""
        return [dict(zip(self.values, each, strict=True)) for each in itertools.product(*self.values.values())]

    @property
    def planned(self) -> list[Layer]:
        """The points that runs can have: `points`; with trials, number 0 is the recipe's own values."""
        return [{}, *self.points] if self.seeds else self.points

    def of(self, settings: RunSettings) -> dict[str, Any]:
        """A run's values of the grid's keys, as plain data; points in the schedule are whole steps."""
        said = settings.model_dump(mode="json")
        return {key: said[section][name] for key in self.values for section, _, name in [key.partition(".")]}

    def without(self, arguments: Layer) -> LoadedGrid | None:
        """The grid of the keys that `--set` does not give; None if there are none."""
        open_keys = {key: given for key, given in self.values.items() if key not in arguments}
        return replace(self, values=open_keys) if open_keys else None


def load_grids(recipe: Recipe, task: Any, document: Document) -> dict[str, LoadedGrid]:
    """The grid of every scale that has one. Wrong values are added to the document's problems and left out."""
    grids: dict[KeyPath, LoadedGrid] = {}
    places = {(): recipe.sweep} | {("scales", name): scale.sweep for name, scale in recipe.scales.items()}
    for path, sweep in (((*at, "sweep"), sweep) for at, sweep in places.items() if sweep is not None):
        values: dict[str, Sequence[tuple[Any, Origin]]] = {}
        for at, message in _checked(sweep, path, recipe, task, document, values):
            wrong = document.problem((*path, *at), message)
            if not any(wrong.touches(other) for other in document.problems):
                document.problems.append(wrong)
        grids[path] = LoadedGrid(path, sweep.metric, values, tuple(sweep.seeds or ()))
        if recipe.figure is not None or recipe.ablations:
            message = "figures and ablations need runs that are known before training; remove the sweep or these"
            document.note(path, message)
    found: dict[str, LoadedGrid] = {}
    for name, scale in recipe.scales.items():
        path = ("scales", name, "sweep") if "sweep" in scale.model_fields_set else ("sweep",)
        if path in grids:
            found[name] = grids[path]
            for each in _unfair(recipe, name, task, grids[path]):
                document.note(*each)
    return found


def _checked(
    sweep: Sweep, path: KeyPath, recipe: Recipe, task: Any, document: Document,
    values: dict[str, Sequence[tuple[Any, Origin]]],
) -> Wrong:  # fmt: skip
    """The problems below `path`; valid values are added to `values`."""
    kind = overrides_of(task.settings)
    if not sweep.settings:
        yield ("settings",), "has no keys; name the values to try, such as train.learning_rate: [3e-4, 1e-3]"
    for key, given in sweep.settings.items():
        section, _, name = key.partition(".")
        reasons = {
            "changes the validation set, so that scores cannot be compared; use columns instead": section == "data",
            "changes no number, so there is nothing to select": name in task.runtime_keys.get(section, ()),
            "is empty: give the values to try": not given,
        }
        wrong = wrong_setting(key, kind) or next((why for why, applies in reasons.items() if applies), None)
        if wrong is not None:
            yield ("settings", key), wrong
            continue
        kept: list[tuple[Any, Origin]] = []
        for number, value in enumerate(given):
            at, found = (*path, "settings", key, number), Document()
            validate(kind, {section: {name: value}}, found)
            if value in [other for other, _ in kept]:
                found.note((), f"{json.dumps(value)} is given twice")
            yield from ((at[len(path) :], problem.message) for problem in found.problems)
            if not found.problems:
                kept.append((value, Origin(at, document)))
        if kept:
            values[key] = kept
        if sweep.seeds and len(kept) == len(given):
            if {*map(type, given)} - {int, float}:
                yield ("settings", key), "are not all numbers, as a sweep with seeds needs; leave seeds out"
            elif len(given) < 3:
                yield ("settings", key), f"has only {len(given)} values, so the best is at the edge; give 3 or more"
    validation = [name for name in task.metrics if not name.startswith(OF_TEST)]
    if recipe.command == task.command and sweep.metric not in validation:  # a wrong command is reported elsewhere
        hint = f"; {nearest(sweep.metric, validation)}" if sweep.metric not in task.metrics else ""
        yield ("metric",), f"{sweep.metric} is not a validation metric; valid: {', '.join(validation)}{hint}"


def _unfair(recipe: Recipe, scale: str, task: Any, grid: LoadedGrid) -> Wrong:
    """Trials that share seeds with the table, or select on the data that the table shows."""
    if shared := sorted({*(recipe.scales[scale].seeds or recipe.seeds)} & {*grid.seeds}):
        yield (*grid.path, "seeds"), f"{shared[0]} is also a seed of the table at scale {scale}; give others"
    for column in recipe.columns_at(scale) if grid.seeds else ():
        metric = recipe.metric_at(scale, column)
        if metric in task.metrics and not metric.startswith(OF_TEST):
            tested = [name for name in task.metrics if name.startswith(OF_TEST)]
            message = f"selects on the validation data, on which column {column} reports {metric}"
            yield grid.path, f"{message}; report one of {', '.join(tested) or 'another task'}"
            return


def overridden(recipe: Recipe, grids: Mapping[str, LoadedGrid], own: Mapping[KeyPath, Layer]) -> Wrong:
    """Keys of a grid that a row or a column also sets, and the grid would override. Setups, the recipe and its scales
    may set them; with trials every place may."""
    for scale, grid in grids.items():
        owners: list[KeyPath] = [recipe.column_path(scale, name) for name in recipe.columns_at(scale)]
        for owner in [*owners, *(("rows", name) for name in recipe.rows)] if not grid.seeds else ():
            for key in grid.values.keys() & own[owner].keys():
                yield own[owner][key][1].path, "is also a key of the sweep, which would override it; leave it out"


def same_runs(grids: Mapping[str, LoadedGrid], merged: Mapping[str, Mapping[Cell, Sequence[RunSettings]]]) -> Wrong:
    """Points with different values but equal settings, such as two shares that round to the same step."""
    for scale, grid in grids.items():
        for points in merged[scale].values():
            tried = [settings.model_dump_json() for settings in points[1 if grid.seeds else 0 :]]
            if len({*tried}) < len(tried):
                yield (*grid.path, "settings"), "two points have the same settings; leave one out"


def with_sweep(
    document: Document, arguments: Sequence[str], scale: str, task: Any, overrides: Sequence[str] = ()
) -> Document:
    """`document` at `scale` alone, with the sweep of `--sweep` arguments such as `train.learning_rate=1e-3,2e-3,4e-3`.
    Its metric and seeds are those of the recipe's sweep, else the task's first metric and `TRIAL_SEEDS`. Columns that
    show a validation metric show the test split's instead. Ablations are removed: they compare rows under equal
    settings. `overrides` are the `--set` arguments. Raises `UserError` if an argument is not KEY=VALUE,VALUE,... or a
    key is given twice."""
    fixed = {override.partition("=")[0].strip() for override in overrides}
    settings: dict[str, Any] = {}
    said_by = {f"scales.{scale}.sweep": "--sweep", "metric": "--sweep"}
    for argument in arguments:
        key, _, text = argument.partition("=")
        key, values = key.strip(), parse(f"[{text}]")
        if key in settings or key in fixed:
            raise UserError(f"--sweep {key} is given twice, or by --set too", "Give all values in one --sweep.")
        if values.problems or not values.data:
            form = "for instance train.learning_rate=1e-3,2e-3,4e-3"
            raise UserError(f"--sweep {argument}: should be SECTION.KEY=VALUE,VALUE,...", form)
        settings[key] = values.data
        said_by[f"scales.{scale}.sweep.settings.{key}"] = f"--sweep {argument}"
    data: dict[str, Any] = {"metric": task.metric, **document.data}
    scales: Any = data.get("scales")
    own: Any = scales.get(scale) if isinstance(scales, dict) else None
    if not isinstance(own, dict):  # which is reported elsewhere
        return document
    before = own.get("sweep", data.get("sweep"))
    sweep = {"metric": task.metric, "seeds": None, **(before if isinstance(before, dict) else {}), "settings": settings}
    sweep["seeds"] = sweep["seeds"] or list(TRIAL_SEEDS)
    data["scales"] = {scale: {**_tested(own, task), "sweep": sweep}}
    data.pop("ablations", None)
    return replace(document, data=_tested(data, task), arguments=document.arguments | said_by)


def _tested(place: Mapping[str, Any], task: Any) -> dict[str, Any]:
    """A recipe, a scale or a column with its metrics replaced by those of the test split."""
    found, metric, columns = dict(place), place.get("metric"), place.get("columns")
    if f"test_{metric}" in task.metrics and not str(metric).startswith(OF_TEST):
        found["metric"] = f"test_{metric}"
    if isinstance(columns, dict):
        found["columns"] = {
            name: _tested(each, task) if isinstance(each, dict) else each for name, each in columns.items()
        }
    return found
