"""How far the runs of every table are, read from their folders and Slurm's queue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from comt_cli.campaign.slurm import Job, job_standings, readable_jobs
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.find import MARK, available_recipes
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.report import format
from comt_cli.report.collect import Collection, Run, collect, tables_with_runs
from comt_cli.report.sweep import read_sweep
from comt_cli.report.terminal import print_progress
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.known import adopt_contents, known_runs
from comt_cli.runs.plan import RunSpec, point_in_words, sources_of
from comt_cli.tasks import tasks
from comt_cli.verbs.plan import also_rows, check_added, plan_loaded
from comt_cli.verbs.table import with_settings

DEFAULT_SCALE = "smoke"
"""Of the verbs that train."""


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


def status(
    recipes: Sequence[str],
    scale: str | None,
    rows: str | None,
    columns: str | None,
    seeds: str | None,
    set_: Sequence[str] | None,
    also: Sequence[str] | None,
    runs: Path,
    *,
    as_json: bool,
) -> None:
    """Print how far the tables of recipes are, or of all that have runs below `runs`.

    Raises:
        UserError: a recipe that is named is wrong, or has not what is asked for.
    """
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
            shown += list(_tables(loaded, asked_here, runs, jobs))
        except UserError as error:
            if recipes:
                raise
            if asked.is_whole:  # else it is merely not what was asked for
                shown.append(Progress({"recipe": name, "error": error.message}))
    if seen:
        check_added(added, seen)
    _add_standings([table.data for table in shown], jobs)
    if as_json:
        typer.echo(json.dumps([table.data for table in shown], indent=2))
        return
    for table in shown:
        _print(table)
    if not shown:
        example = (*recipes, "table3.yaml")[0]
        typer.echo(f"Nothing was run below {runs}. To begin: comt train-lm --recipe {example}")


def _tables(loaded: LoadedRecipe, asked: Asked, runs: Path, jobs: dict[str, Job]) -> Iterator[Progress]:
    """The scale asked for; without one that of a training, where a recipe is named, and every other with a run. `jobs`
    gets Slurm's, by run id."""
    scales = loaded.recipe.scales
    main = asked.scale or (DEFAULT_SCALE if asked.is_named and DEFAULT_SCALE in scales else None)
    for scale in [main] if main and (asked.scale or not asked.is_whole) else scales:
        try:
            planned = plan_loaded(loaded, scale, rows=asked.rows, columns=asked.columns, seeds=asked.seeds)
            specs = adopt_contents(planned.specs, runs)
        except UserError as error:  # for instance a corpus that is not in the cache
            if asked.scale or not asked.is_whole:
                raise
            yield Progress({**_place(loaded, scale), "error": error.message})
            continue
        is_shown = asked.is_named and scale in (main, asked.scale)
        table, is_begun = _progress(loaded, scale, specs, runs, jobs, is_shown=is_shown)
        if asked.scale or is_begun:
            yield table


def _place(loaded: LoadedRecipe, scale: str) -> dict[str, Any]:
    return {"recipe": loaded.name, "scale": scale, "table": f"{loaded.folder}/{loaded.outputs(scale)}"}


def _progress(
    loaded: LoadedRecipe, scale: str, specs: Sequence[RunSpec], runs: Path, jobs: dict[str, Job], *, is_shown: bool
) -> tuple[Progress, bool]:
    """A table at a scale, and whether anything of it was begun. Of a sweep the cells are those of its trials."""
    grid = loaded.grids.get(scale)
    beside: list[Run] = []
    cell_specs = list(specs)
    if loaded.has_trials(scale):
        sweep = read_sweep(loaded, scale, specs, runs)
        cell_specs = list(sweep.trials)
        trials = {spec.id for spec in cell_specs}
        beside = list(collect([spec for spec in sweep.specs if spec.id not in trials], runs, remarks=False).runs())
    choose_by = None if grid is None else grid.metric
    collection = collect(cell_specs, runs, choose_by=choose_by, remarks=not loaded.has_trials(scale))
    every = [*collection.runs(), *beside]
    own = {run.spec.id for run in every}
    sources = list(collect([source for source in sources_of(specs) if source.id not in own], runs).runs())
    begun = [run for run in (*every, *sources) if run.state in (RunState.running, RunState.unfinished)]
    # A job may be queued for a run that has no directory before its data is prepared.
    begun += [run for run in (*every, *sources) if run.state is RunState.missing and not run.spec.is_known]
    theirs = readable_jobs((run.spec for run in begun), runs)
    begun = [run for run in begun if run.state is not RunState.missing or run.spec.request in theirs]
    jobs |= theirs
    others = _of_other_settings(loaded, scale, runs) if is_shown else {}
    metrics = {column: loaded.recipe.metric_at(scale, column) for column in loaded.columns(scale)}
    if grid is not None and loaded.has_trials(scale):
        metrics = dict.fromkeys(metrics, grid.metric)
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
    return Progress(data, cells, metrics), bool(has_runs or begun or collection.notes or others)


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
    """Give open runs their `job`, and `job_state`: where Slurm says that it is. Asks it once.

    Of a run that some process is training, only a queued job is shown: another job may be training it.
    """
    standings = job_standings(jobs.values())
    for run in (run for table in tables for run in table.get("open", ())):
        standing = standings.get(run["request"])
        is_shown = standing is not None and (standing.is_active or run["state"] != "running")
        run["job"] = jobs[run["request"]].number if is_shown else None
        run["job_state"] = standing.words if standing is not None and is_shown else None


def _print(progress: Progress) -> None:
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
