"""Every run of a folder as a line: its configuration, its differences from the recipe, its result, its size."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from comt_cli.recipe.find import as_arguments
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.settings import RunSettings
from comt_cli.report import format
from comt_cli.runs.directory import READING_ERRORS
from comt_cli.runs.known import KnownRun, Place, Standing
from comt_cli.runs.plan import RunSpec, identity_of
from comt_cli.tasks import Task, tasks

RecipeOf = Callable[[str, Sequence[str], str], LoadedRecipe | None]
"""The recipe `paper/table` with `--set` arguments at a scale; None if none can be read."""

_OPEN = (Standing.running, Standing.unfinished, Standing.failed)


def described(known: Sequence[tuple[KnownRun, Place]], recipe_of: RecipeOf) -> list[dict[str, Any]]:
    """One dictionary for each run and table, ordered by table, scale, column, row and seed.

    `settings` are those that differ from the recipe's, as `--set` takes them; None if there is no recipe.
    """
    return [_described(run, place, recipe_of) for run, place in sorted(known, key=in_order)]


def in_order(found: tuple[KnownRun, Place]) -> tuple[str, str, str, str, int, str]:
    """The sorting key of a run."""
    run, place = found
    seed = -1 if run.seed is None else run.seed
    return place.recipe, run.label("scale"), place.column, place.row, seed, run.name


def _described(run: KnownRun, place: Place, recipe_of: RecipeOf) -> dict[str, Any]:
    scale, spec = run.label("scale"), run.spec
    loaded = None if spec is None else recipe_of(place.recipe, (), scale)
    metric = _metric(run, place, loaded)
    settings, trained = None, "" if spec is None else spec.task.network_and_data(spec.settings)
    if spec is not None and loaded is not None:
        settings = differing(spec, place, loaded)
        # Values that are a share of the steps follow from them.
        steps = {key: value for key, value in settings.items() if key == "train.steps"}
        same_steps = recipe_of(place.recipe, as_arguments(steps), spec.scale) if steps else None
        if same_steps is not None:
            settings = steps | differing(spec, place, same_steps)
        trained = ""
    value = run.result.get(metric) if metric is not None else None
    return {
        "command": run.label("command"),
        "recipe": place.recipe,
        "tables": list(run.tables),
        "scale": scale,
        "row": place.row,
        "column": place.column,
        "seed": run.seed,
        "id": run.id,
        "name": run.name,
        "given_name": run.given_name,
        "state": run.standing.value,
        "was": run.ended_as.value if run.is_replaced else None,
        "metric": metric,
        "value": value if isinstance(value, int | float) and not isinstance(value, bool) else None,
        "step": _step(run),
        "steps": None if spec is None else spec.settings.train.steps,
        "settings": settings,
        "trained": trained,
        "data_content": None if spec is None else spec.data_content,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(run.written)),
        "bytes": run.size,
        "train_seconds": run.result.get("train_seconds"),
        "folder": str(run.directory.path),
        "link": str(run.directory.shown) if run.directory.shown != run.directory.path else None,
        "problem": run.problem,
    }


def _metric(run: KnownRun, place: Place, loaded: LoadedRecipe | None) -> str | None:
    """The metric of the run's column; if the recipe is unknown, or has another metric, that of most tables."""
    if loaded is not None:
        scale, recipe = run.label("scale"), loaded.recipe
        known = scale in recipe.scales and place.column in recipe.columns_at(scale)
        return recipe.metric_at(scale, place.column) if known else recipe.metric
    task = tasks().get(run.label("command"))
    return None if task is None else task.metric


def _step(run: KnownRun) -> int | None:
    if run.ended_as in _OPEN:
        try:
            return int(run.directory.metrics()[-1]["step"])
        except (*READING_ERRORS, IndexError):
            return 0
    step = run.result.get("diverged_at", run.result.get("step"))
    return step if isinstance(step, int) else None


def differing(spec: RunSpec, place: Place, loaded: LoadedRecipe) -> dict[str, Any]:
    """The settings and options of a run that its recipe sets to other values, by dotted key: `train.steps`,
    `method.hidden`. For a row that the recipe does not have, the method is included, and so are the keys of a grid."""
    cells = loaded.points.get(spec.scale, {})
    ours = settings_told(spec.settings, spec.task)
    planned = cells.get((place.row, place.column)) or cells.get((loaded.recipe.baseline, place.column)) or ()
    grid = loaded.grids.get(spec.scale)
    tried = {} if grid is None else {key: ours[key] for key in grid.values if key in ours}  # part of every run
    theirs = [settings_told(point, spec.task) for point in planned]
    unequal = ({key: value for key, value in ours.items() if each.get(key) != value} for each in theirs)
    found = tried | min(unequal, key=len, default={})
    method = loaded.methods.get(place.row)
    if method is None or method["name"] != spec.method["name"]:
        if method is not None or spec.method["name"] != place.row:
            found["method"] = spec.method["name"]
        return found
    options = {key: value for key, value in spec.method.items() if method.get(key) != value}
    return found | {f"method.{key}": value for key, value in options.items()}


def settings_told(settings: RunSettings, task: Task[Any]) -> dict[str, Any]:
    """The settings that distinguish runs, by dotted key: those of the run id, and the kernels."""
    sections = identity_of(settings, task).items()
    found = {f"{section}.{key}": value for section, keys in sections for key, value in keys.items()}
    return found | {"train.kernels": settings.train.kernels}


def settings_text(row: Mapping[str, Any]) -> str:
    """The differing settings as typed: `train.steps=10 'method.sites=["q_proj"]'`."""
    return shlex.join(as_arguments(row["settings"] or {}))


def outcome_text(row: Mapping[str, Any]) -> str:
    """The result of a run in a few letters: its metric, or its state."""
    state = row["state"]
    if state == Standing.replaced:
        return f"replaced, {outcome_text({**row, 'state': row['was']})}"
    if state == Standing.done and row["value"] is not None:
        metric = tasks()[row["command"]].metrics.get(row["metric"])  # a recipe's task may have been changed
        return format.value(row["value"], metric.decimals) if metric is not None else format.value(row["value"])
    if state == Standing.diverged:
        return f"diverged at {row['step']:,}" if row["step"] is not None else "diverged"
    if state in _OPEN and row["steps"]:
        return f"{state} {row['step'] or 0:,}/{row['steps']:,}"
    return str(state)


def print_runs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the runs, those of one table, scale, column and differing settings under one heading."""
    from comt_cli.report.terminal import console_for, print_texts, say

    def heading(row: Mapping[str, Any]) -> tuple[str, ...]:
        return row["recipe"], row["scale"], row["column"], settings_text(row), row["trained"], row["metric"] or ""

    for position, (names, group) in enumerate(groupby(sorted(rows, key=heading), heading)):
        *named, metric = names
        if position:
            print()
        say(", ".join(filter(None, named)), style="bold")
        shown, lines = list(group), []
        has_names = any(row["given_name"] for row in shown)
        for row in shown:
            seed = "?" if row["seed"] is None else str(row["seed"])
            written = row["written"].replace("T", " ")[:16]
            called = [row["name"], row["given_name"] or ""][: 1 + has_names]
            lines.append([row["row"], seed, outcome_text(row), written, format.size(row["bytes"]), *called])
        head = ["row", "seed", metric.replace("_", " ") or "result", "written", "size", "id", *["name"][:has_names]]
        left = [title in ("row", "written", "id", "name") for title in head]
        print_texts(head, lines, most=console_for().width, left=left, folded=(0, 2))


def summary_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """`9 runs: 8 done, 1 failed; 190 MB`."""
    counts = {state: sum(row["state"] == state for row in rows) for state in Standing}
    listed = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{format.plural(len(rows), 'run')}: {listed}; {format.size(sum(row['bytes'] for row in rows))}"
