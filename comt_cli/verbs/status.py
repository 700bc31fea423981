"""How far the runs of every table are, read from their folders and Slurm's queue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from comt_cli.campaign.slurm import Job, job_standings, readable_jobs
from comt_cli.commands import options
from comt_cli.commands.options import OfTables
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.find import MARK, available_recipes
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.report import format
from comt_cli.report.collect import Collection, Run, collect, tables_with_runs
from comt_cli.report.exhibits.sweep import read_sweep
from comt_cli.report.terminal import print_progress
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.known import adopt_contents, known_runs
from comt_cli.runs.plan import RunSpec, point_in_words, sources_of
from comt_cli.tasks import tasks
from comt_cli.verbs.plan import also_rows, check_added, plan_loaded
from comt_cli.verbs.table import with_settings

DEFAULT_SCALE = "smoke"
"""Of the verbs that train."""


Progress = tuple[dict[str, Any], Collection | None, Mapping[str, str]]
"""A table at a scale: its numbers as plain data, its cells where they are to be shown, and its metrics by column."""


def status(recipes: options.Recipes = None, *, of: OfTables, as_json: options.AsJson = False) -> None:
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
    added, is_named = also_rows(of.also), bool(recipes)
    seen: list[LoadedRecipe] = []
    shown: list[Progress] = []
    jobs: dict[str, Job] = {}
    every = tables_with_runs(of.runs, [*available_recipes()], of.scale, is_set=bool(of.set_))
    for name, there in [(name, None) for name in recipes or ()] or every:
        is_whole = not (of.set_ or of.rows or of.columns)
        try:
            path, changed, named = with_settings(name, of.set_, of.scale, of.runs, of.rows, added)
            # What is set is for the scale that is trained: the steps of another would contradict its setup.
            at = of.scale or there or (DEFAULT_SCALE if changed else None)
            loaded = load_recipe(path, catalogue(), changed, at, also=named, also_fits_all=is_named)
            seen.append(loaded)
            here = replace(of, scale=of.scale or there)
            shown += _tables(loaded, here, jobs, is_whole=is_whole and not changed, is_named=is_named)
        except UserError as error:
            if is_named:
                raise
            if is_whole:  # else it is merely not what was asked for
                shown.append(({"recipe": name, "error": error.message}, None, {}))
    if seen:
        check_added(added, seen)
    _add_standings([data for data, *_ in shown], jobs)
    if as_json:
        typer.echo(json.dumps([data for data, *_ in shown], indent=2))
        return
    for table in shown:
        _print(*table)
    if not shown:
        example = (*(recipes or ()), "table3.yaml")[0]
        typer.echo(f"Nothing was run below {of.runs}. To begin: comt train-lm --recipe {example}")


def _tables(
    loaded: LoadedRecipe, of: OfTables, jobs: dict[str, Job], *, is_whole: bool, is_named: bool
) -> Iterator[Progress]:
    """The scale asked for; without one that of a training, where a recipe is named, and every other with a run. `jobs`
    gets Slurm's, by run id. `is_whole`: nothing narrows the table or changes its runs."""
    scales = loaded.recipe.scales
    main = of.scale or (DEFAULT_SCALE if is_named and DEFAULT_SCALE in scales else None)
    is_one = bool(of.scale) or not is_whole
    for scale in [main] if main and is_one else scales:
        try:
            planned = plan_loaded(loaded, scale, rows=of.rows, columns=of.columns, seeds=of.seeds)
            specs = adopt_contents(planned.specs, of.runs)
        except UserError as error:  # for instance a corpus that is not in the cache
            if is_one:
                raise
            yield {**_place(loaded, scale), "error": error.message}, None, {}
            continue
        table, is_begun = _progress(loaded, scale, specs, of.runs, jobs, is_shown=is_named and scale == main)
        if of.scale or is_begun:
            yield table


def _place(loaded: LoadedRecipe, scale: str) -> dict[str, Any]:
    return {"recipe": loaded.name, "scale": scale, "table": f"{loaded.folder}/{loaded.outputs(scale)}"}


def _progress(
    loaded: LoadedRecipe, scale: str, specs: Sequence[RunSpec], runs: Path, jobs: dict[str, Job], *, is_shown: bool
) -> tuple[Progress, bool]:
    """A table at a scale, and whether anything of it was begun. Of a sweep the cells are those of its trials."""
    grid, has_trials = loaded.grids.get(scale), loaded.has_trials(scale)
    beside: list[Run] = []
    cell_specs = list(specs)
    if has_trials:
        sweep = read_sweep(loaded, scale, specs, runs)
        cell_specs = list(sweep.trials)
        trials = {spec.id for spec in cell_specs}
        beside = list(collect([spec for spec in sweep.specs if spec.id not in trials], runs, remarks=False).runs())
    choose_by = None if grid is None else grid.metric
    collection = collect(cell_specs, runs, choose_by=choose_by, remarks=not has_trials)
    every = [*collection.runs(), *beside]
    own = {run.spec.id for run in every}
    sources = list(collect([source for source in sources_of(specs) if source.id not in own], runs).runs())
    # A job may be queued for a run that has no directory before its data is prepared.
    begun = [
        run
        for run in (*every, *sources)
        if run.state in (RunState.running, RunState.unfinished)
        or (run.state is RunState.missing and not run.spec.is_known)
    ]
    theirs = readable_jobs((run.spec for run in begun), runs)
    begun = [run for run in begun if run.state is not RunState.missing or run.spec.request in theirs]
    jobs |= theirs
    others = _of_other_settings(loaded, scale, runs) if is_shown else {}
    metrics = {
        column: grid.metric if grid is not None and has_trials else loaded.recipe.metric_at(scale, column)
        for column in loaded.columns(scale)
    }
    counts = _counts(every)
    data = {
        **_place(loaded, scale),
        "runs": len(every),
        **counts,
        "metric": loaded.recipe.metric,
        "others": others,
        "cells": collection.as_json(metrics),
        "open": [_described(run, runs) for run in begun],
        "sources": _counts_by_table(sources),
        "notes": list(collection.notes),
    }
    has_runs = counts["missing"] < len(every)
    cells = collection if is_shown and has_runs else None
    return (data, cells, metrics), bool(has_runs or begun or collection.notes or others)


def _of_other_settings(loaded: LoadedRecipe, scale: str, runs: Path) -> dict[str, dict[str, int]]:
    """How many runs of a recipe with other settings are in each state, by the name of their table."""
    found: dict[str, Counter[str]] = {}
    for run in known_runs(runs):
        for name in run.variants if run.label("scale") == scale and not run.is_replaced else ():
            if name.startswith(f"{loaded.name}{MARK}") and name != f"{loaded.folder}/{loaded.outputs(scale)}":
                found.setdefault(name, Counter())[run.standing.value] += 1
    return {name: dict(counts) for name, counts in sorted(found.items())}


def _counts(every: Iterable[Run]) -> dict[str, int]:
    """How many runs are in each state."""
    states = Counter(run.state for run in every)
    return {state.value: states[state] for state in RunState}


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
        "eta_seconds": progress.eta_seconds if progress and is_running else None,
    }


def _add_standings(tables: Iterable[dict[str, Any]], jobs: Mapping[str, Job]) -> None:
    """Give open runs their `job`, and `job_state`: where Slurm says that it is. Of a run that some process is training,
    only a queued job is shown: another job may be training it."""
    standings = job_standings(jobs.values())
    for run in (run for table in tables for run in table.get("open", ())):
        standing = standings.get(run["request"])
        is_shown = standing is not None and (standing.is_active or run["state"] != "running")
        run["job"] = jobs[run["request"]].number if is_shown else None
        run["job_state"] = standing.words if standing is not None and is_shown else None


def _print(table: dict[str, Any], cells: Collection | None, metrics: Mapping[str, str]) -> None:
    heading = " ".join(part for part in (table.get("table", table["recipe"]), table.get("scale")) if part)
    if "error" in table:
        typer.echo(f"{heading}: not known: {table['error']}")
        return

    def counted(counts: Mapping[str, Any]) -> str:
        listed = ", ".join(f"{counts[state]} {state}" for state in RunState if counts[state])
        return f"{format.plural(counts['runs'], 'run')}: {listed}"

    typer.echo(f"{heading}: {counted(table)}")
    if cells is not None:
        print_progress(cells, metrics)
    for name, states in table["others"].items():
        typer.echo(f"  besides, {name}: {', '.join(f'{count} {state}' for state, count in states.items())}")
    for source in table["sources"]:
        typer.echo(f"  to start from: {source['recipe']} {source['scale']}: {counted(source)}")
    for run in table["open"]:
        place = "" if run["recipe"] == table["recipe"] else f"{run['recipe']} "
        point = f", {point_in_words(run['grid'])}" if "grid" in run else ""
        typer.echo(f"  {place}{run['row']}, {run['column']}{point}, seed {run['seed']}: {_in_words(run)}")
    for note in table["notes"]:
        typer.echo(f"  {note}")


def _in_words(run: Mapping[str, Any]) -> str:
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
