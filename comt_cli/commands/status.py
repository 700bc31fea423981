"""`comt status`: how far the runs of every table are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import completion, options

if TYPE_CHECKING:
    from comt_cli.campaign.slurm_queue import Job
    from comt_cli.recipe.load import LoadedRecipe
    from comt_cli.report.collect import Collection, Run

DEFAULT_SCALE = "smoke"
"""Of the verbs that train."""


def status(
    recipes: options.Recipes = None,
    *,
    scale: Annotated[
        str | None,
        typer.Option(
            help="Only this scale. If not given: of recipes that are named smoke, as in training, and what there is of "
            "the others; else every scale with runs.",
            autocompletion=completion.scales,
        ),
    ] = None,
    rows: options.Rows = None,
    columns: options.Columns = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    also: options.Also = None,
    runs: options.Runs = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a table and scale.")] = False,
) -> None:
    """Show how far the runs of each table are. Counts those that are done, diverged, running, unfinished and missing.

    Of recipes that are named, the table as far as it is: the metric where runs are done, steps and time left of those
    at work. The options are those of the training it is about. A running run is shown with the process and the machine
    that train it, one that failed with the reason, and one that was given to Slurm with its job.

    Runs of other tables that these start from are counted below their table, and shown while they are open.

    Without recipes: every table that has runs. Reads only; safe while runs are being trained.

    Examples:

      comt status

      comt status table3.yaml

      comt status table3.yaml --scale small --seeds 1-3 --set train.steps=2000
    """
    from comt_cli.commands.planning import also_rows, check_added
    from comt_cli.commands.selected_table import with_settings
    from comt_cli.commands.slurm_jobs import add_standings
    from comt_cli.errors import UserError
    from comt_cli.methods import catalogue
    from comt_cli.recipe.load import available_recipes, load_recipe
    from comt_cli.report.collect import tables_with_runs

    added = also_rows(also)
    asked = Asked(scale, rows, columns, seeds, is_whole=not (set_ or rows or columns), is_named=bool(recipes))
    seen: list[LoadedRecipe] = []
    shown: list[Progress] = []
    jobs: dict[str, Job] = {}
    every = tables_with_runs(runs, [*available_recipes()], scale, is_set=bool(set_))
    for name, there in [(name, None) for name in recipes] if recipes else every:
        try:
            path, changed, named = with_settings(name, set_, scale, runs, rows, added)
            # What is set is for the scale that is trained: the steps of another would contradict its setup.
            at = scale or there or (DEFAULT_SCALE if changed else None)
            loaded = load_recipe(path, catalogue(), changed, at, also=named, also_fits_all=bool(recipes))
            seen.append(loaded)
            asked_here = replace(asked, is_whole=asked.is_whole and not changed, scale=scale or there)
            shown += _tables(loaded, asked_here, runs, jobs)
        except UserError as error:
            if recipes:
                raise
            if asked.is_whole:  # else it is merely not what was asked for
                shown.append(Progress({"recipe": name, "error": error.message}))
    if seen:
        check_added(added, seen)
    add_standings([table.data for table in shown], jobs)
    if as_json:
        typer.echo(json.dumps([table.data for table in shown], indent=2))
        return
    for table in shown:
        _print(table)
    if not shown:
        example = (recipes or ["table3.yaml"])[0]
        typer.echo(f"Nothing was run below {runs}. To begin: comt train-lm --recipe {example}")


@dataclass(frozen=True)
class Asked:
    """The options of that name. `is_whole`: nothing narrows the tables or changes their runs; `is_named`: recipes are
    given."""

    scale: str | None
    rows: str | None
    columns: str | None
    seeds: str | None
    is_whole: bool
    is_named: bool


@dataclass(frozen=True)
class Progress:
    """A table at a scale: its numbers as plain data, and its cells where they are to be shown."""

    data: dict[str, Any]
    cells: Collection | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    """By column."""


def _tables(loaded: LoadedRecipe, asked: Asked, runs: Path, jobs: dict[str, Job]) -> list[Progress]:
    """The scale asked for; without one that of a training, where a recipe is named, and every other with a run. `jobs`
    gets Slurm's, by run id."""
    from comt_cli.campaign.slurm_queue import readable_jobs
    from comt_cli.commands.planning import plan_loaded
    from comt_cli.errors import UserError
    from comt_cli.report.collect import collect
    from comt_cli.report.layout import cells_as_json
    from comt_cli.report.sweep import read_sweep
    from comt_cli.runs.contents import adopt_contents
    from comt_cli.runs.directory import RunState
    from comt_cli.runs.plan import sources_of

    tables = []
    recipe = loaded.recipe
    main = asked.scale or (DEFAULT_SCALE if asked.is_named and DEFAULT_SCALE in recipe.scales else None)
    for name in [main] if main and (asked.scale or not asked.is_whole) else recipe.scales:
        where: dict[str, Any] = {
            "recipe": loaded.name,
            "scale": name,
            "table": f"{loaded.folder}/{loaded.outputs(name)}",
        }
        try:
            planned = plan_loaded(loaded, name, rows=asked.rows, columns=asked.columns, seeds=asked.seeds)
            specs = adopt_contents(planned.specs, runs)
        except UserError as error:
            if asked.scale or not asked.is_whole:
                raise
            tables.append(Progress({**where, "error": error.message}))  # for instance a corpus that is not in the cache
            continue
        grid = loaded.grids.get(name)
        sweep = read_sweep(loaded, name, specs, runs) if loaded.has_trials(name) else None
        beside: list[Run] = []  # of a sweep the cells are those of its trials
        if sweep is not None:
            trials = {spec.id for spec in sweep.trials}
            beside = list(collect([s for s in sweep.specs if s.id not in trials], runs, remarks=False).runs())
        collection = collect(
            specs if sweep is None else sweep.trials,
            runs,
            choose_by=None if grid is None else grid.metric,
            remarks=sweep is None,
        )
        every = [*collection.runs(), *beside]
        own = {run.spec.id for run in every}
        sources = list(collect([source for source in sources_of(specs) if source.id not in own], runs).runs())
        counts = _counts(every)
        begun = [run for run in (*every, *sources) if run.state in (RunState.running, RunState.unfinished)]
        # A job may be queued for a run that has no directory before its data is prepared.
        begun += [run for run in (*every, *sources) if run.state is RunState.missing and not run.spec.is_known]
        theirs = readable_jobs((run.spec for run in begun), runs)
        begun = [run for run in begun if run.state is not RunState.missing or run.spec.request in theirs]
        jobs |= theirs
        is_shown = asked.is_named and name in (main, asked.scale)
        others = _of_other_settings(loaded, name, runs) if is_shown else {}
        if asked.scale or counts["missing"] < len(every) or begun or collection.notes or others:
            open_runs = [_described(run, runs) for run in begun]
            data = {**where, "runs": len(every), **counts, "metric": recipe.metric, "others": others}
            metrics = {column: recipe.metric_at(name, column) for column in loaded.columns(name)}
            if grid is not None and sweep is not None:
                metrics = dict.fromkeys(metrics, grid.metric)
            data |= {"cells": cells_as_json(collection, metrics), "open": open_runs}
            data |= {"sources": _counts_by_table(sources), "notes": list(collection.notes)}
            cells = collection if is_shown and counts["missing"] < len(every) else None
            tables.append(Progress(data, cells, metrics))
    return tables


def _of_other_settings(loaded: LoadedRecipe, scale: str, runs: Path) -> dict[str, dict[str, int]]:
    """How many runs of a recipe with other settings are in each state, by the name of their table."""
    from comt_cli.recipe.variant import MARK
    from comt_cli.runs.known import known_runs

    found: dict[str, Counter[str]] = {}
    for run in known_runs(runs):
        for name in run.variants if run.label("scale") == scale and not run.is_replaced else ():
            if name.startswith(f"{loaded.name}{MARK}") and name != f"{loaded.folder}/{loaded.outputs(scale)}":
                found.setdefault(name, Counter())[run.standing.value] += 1
    return {name: dict(counts) for name, counts in sorted(found.items())}


def _counts(every: Iterable[Run]) -> dict[str, int]:
    """How many runs are in each state."""
    from comt_cli.runs.directory import RunState

    states = [run.state for run in every]
    return {state.value: states.count(state) for state in RunState}


def _counts_by_table(every: Iterable[Run]) -> list[dict[str, Any]]:
    """One dictionary a table and scale: how many of these runs it has, and how many are in each state."""
    tables: dict[tuple[str, str], list[Run]] = {}
    for run in every:
        tables.setdefault((f"{run.spec.paper}/{run.spec.table}", run.spec.scale), []).append(run)
    return [
        {"recipe": recipe, "scale": scale, "runs": len(found), **_counts(found)}
        for (recipe, scale), found in tables.items()
    ]


def _described(run: Run, runs: Path) -> dict[str, Any]:
    from comt_cli.runs.directory import RunDirectory, RunState

    spec, progress = run.spec, run.progress
    directory = RunDirectory.of(runs, spec)
    is_running = run.state is RunState.running
    return {
        "recipe": f"{spec.paper}/{spec.table}",
        "row": spec.row,
        "column": spec.column,
        "seed": spec.seed,
        **({"grid": spec.point} if spec.point else {}),
        "id": spec.id,
        "request": spec.request,
        "state": run.state.value,
        "owner": directory.owner() if is_running else None,
        "error": None if is_running else directory.error(),
        "directory": str(directory.shown),
        "step": progress.step if progress else 0,
        "steps": spec.settings.train.steps,
        "loss": progress.loss if progress else None,
        spec.task.unit.per_second: progress.speed if progress else None,
        "eta_seconds": progress.eta_seconds if progress and run.state == "running" else None,
    }


def _print(progress: Progress) -> None:
    from comt_cli.report import format
    from comt_cli.report.terminal import print_progress
    from comt_cli.runs.directory import RunState
    from comt_cli.runs.plan import point_in_words

    table = progress.data
    heading = " ".join(part for part in (table.get("table", table["recipe"]), table.get("scale")) if part)
    if "error" in table:
        typer.echo(f"{heading}: not known: {table['error']}")
        return

    def counted(counts: Mapping[str, Any]) -> str:
        listed = ", ".join(f"{counts[state]} {state}" for state in RunState if counts[state])
        return f"{format.plural(counts['runs'], 'run')}: {listed}"

    typer.echo(f"{heading}: {counted(table)}")
    if progress.cells is not None:
        print_progress(progress.cells, progress.metrics)
    for name, states in table["others"].items():
        typer.echo(f"  besides, {name}: {', '.join(f'{count} {state}' for state, count in states.items())}")
    for source in table["sources"]:
        typer.echo(f"  to start from: {source['recipe']} {source['scale']}: {counted(source)}")
    for run in table["open"]:
        place = "" if run["recipe"] == table["recipe"] else f"{run['recipe']} "
        point = f", {point_in_words(run['grid'])}" if "grid" in run else ""
        typer.echo(f"  {place}{run['row']}, {run['column']}{point}, seed {run['seed']}: {_progress(run)}")
    for note in table["notes"]:
        typer.echo(f"  {note}")


def _progress(run: dict[str, Any]) -> str:
    from comt_cli.report import format
    from comt_cli.tasks import tasks

    parts = [run["job_state"] or run["state"] + (f" by {run['owner']}" if run["owner"] else "")]
    parts.append(f"step {run['step']:,} of {run['steps']:,}")
    if run["loss"] is not None:
        parts.append(f"loss {run['loss']:.3f}")
    for unit in (task.unit for task in tasks().values()):
        if run.get(unit.per_second) and run["state"] == "running":
            parts.append(f"{format.speed(run[unit.per_second])} {unit.name}/s")
            break
    if run["eta_seconds"] is not None:
        parts.append(f"{format.duration(run['eta_seconds'])} to go")
    if run["error"] is not None:
        parts.append(f"failed: {run['error']} ({run['directory']}/error.txt)")
    return ", ".join(parts)
