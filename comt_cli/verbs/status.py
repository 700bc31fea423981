"""Progress of the runs of every table, read from their folders and Slurm's queue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from comt_cli.campaign.slurm import Job, JobStanding, job_standings, readable_jobs
from comt_cli.commands import options
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
from comt_cli.runs.plan import parse_seeds, point_in_words, sources_of
from comt_cli.verbs.plan import also_rows, check_added, plan_loaded, with_settings

DEFAULT_SCALE = "smoke"
"""Of the verbs that train."""
_BEGUN = [state.value for state in RunState if state is not RunState.missing]


def status(
    recipes: options.Recipes = None,
    *,
    scale: options.ScaleOfRuns = None,
    seeds: options.Seeds = None,
    also: options.Also = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    as_json: options.AsJson = False,
) -> None:
    """Show how far the runs of each table are. Counts those that are done, diverged, running, unfinished and missing.

    Of recipes that are named, the table as far as it is: the metric where runs are done, steps and time left of those
    at work. Runs with --set have a table of their own, such as table3@steps-200. A running run is shown with its
    process, one that failed with the reason, and one that was given to Slurm with its job. Runs of other tables that
    these start from are counted below their table, and shown while they are open.

    Without recipes: every table that has runs. Reads only; safe while runs are being trained.

    Examples:

      comt status

      comt status table3.yaml --scale small --seeds 1-3
    """
    added, is_named = also_rows(also), bool(recipes)
    parse_seeds(seeds)  # else what is wrong with them would be said of every table
    seen: list[LoadedRecipe] = []
    shown: list[_Progress] = []
    every = tables_with_runs(runs, [*available_recipes()], scale)
    for name, there in [(name, None) for name in recipes or ()] or every:
        try:
            path, changed = with_settings(name, None, runs)
            # What is set is for the scale that is trained: the steps of another would contradict its setup.
            at = scale or there or (DEFAULT_SCALE if changed else None)
            loaded = load_recipe(path, catalogue(), changed, at, also=added, also_fits_all=is_named)
            seen.append(loaded)
            main = at or (DEFAULT_SCALE if is_named and DEFAULT_SCALE in loaded.recipe.scales else None)
            for each in [at] if at is not None else loaded.recipe.scales:
                progress = _progress(loaded, each, seeds, runs, is_shown=is_named and each == main)
                if at is not None and "error" in progress.data:
                    raise UserError(progress.data["error"])
                if at is not None or progress.is_begun:
                    shown.append(progress)
        except UserError as error:
            if is_named:
                raise
            shown.append(_Progress({"recipe": name, "error": error.message}))
    if seen:
        check_added(added, seen)
    if as_json:
        typer.echo(json.dumps([each.data for each in shown], indent=2))
        return
    for progress in shown:
        _print(progress)
    if not shown:
        example = (*(recipes or ()), "table3.yaml")[0]
        typer.echo(f"Nothing was run below {runs}. To begin: comt train-lm --recipe {example}")


class _Progress(NamedTuple):
    """A table at a scale: its numbers as plain data, its cells where they are to be shown, its metrics by column."""

    data: dict[str, Any]
    cells: Collection | None = None
    metrics: Mapping[str, str] = {}

    @property
    def is_begun(self) -> bool:
        """Whether there is anything to show of it."""
        return "error" in self.data or any(self.data[key] for key in (*_BEGUN, "open", "notes", "others"))


def _progress(loaded: LoadedRecipe, scale: str, seeds: str | None, runs: Path, *, is_shown: bool) -> _Progress:
    """A table at a scale, or why it is not known. Of a sweep the cells are those of its trials."""
    place = {"recipe": loaded.name, "scale": scale, "table": f"{loaded.folder}/{loaded.outputs(scale)}"}
    try:
        specs = adopt_contents(plan_loaded(loaded, scale, seeds=seeds).specs, runs)
    except UserError as error:  # for instance a corpus that is not in the cache
        return _Progress({**place, "error": str(error)})
    grid, has_trials, beside = loaded.grids.get(scale), loaded.has_trials(scale), list[Run]()
    cell_specs = specs
    if has_trials:
        sweep = read_sweep(loaded, scale, specs, runs)
        cell_specs, trials = sweep.trials, {spec.id for spec in sweep.trials}
        beside = [*collect([spec for spec in sweep.specs if spec.id not in trials], runs, remarks=False).runs()]
    cells = collect(cell_specs, runs, choose_by=grid and grid.metric, remarks=not has_trials)
    every = [*cells.runs(), *beside]
    own = {run.spec.id for run in every}
    sources = [*collect([source for source in sources_of(specs) if source.id not in own], runs).runs()]
    tables: dict[tuple[str, str], list[Run]] = {}
    for source in sources:
        tables.setdefault((f"{source.spec.paper}/{source.spec.table}", source.spec.scale), []).append(source)
    others: dict[str, Counter[str]] = {}
    for run in known_runs(runs) if is_shown else ():
        for name in run.variants if run.label("scale") == scale and not run.is_replaced else ():
            if name.startswith(f"{loaded.name}{MARK}") and name != place["table"]:
                others.setdefault(name, Counter())[run.standing.value] += 1
    tried = grid.metric if grid is not None and has_trials else None
    metrics = {column: tried or loaded.recipe.metric_at(scale, column) for column in loaded.columns(scale)}
    data = {
        **place,
        **_counts(every),
        "metric": loaded.recipe.metric,
        "others": {name: dict(counts) for name, counts in sorted(others.items())},
        "cells": cells.as_json(metrics),
        "open": _open([*every, *sources], runs),
        "sources": [{"recipe": name, "scale": at, **_counts(found)} for (name, at), found in tables.items()],
        "notes": list(cells.notes),
    }
    return _Progress(data, cells if is_shown and any(data[state] for state in _BEGUN) else None, metrics)


def _counts(every: Sequence[Run]) -> dict[str, int]:
    """The number of runs, and of those in each state."""
    states = Counter(run.state for run in every)
    return {"runs": len(every), **{state.value: states[state] for state in RunState}}


def _open(every: Sequence[Run], runs: Path) -> list[dict[str, Any]]:
    """Those that are at work, were left, or wait in Slurm's queue."""
    # A job may be queued for a run that has no directory before its data is prepared.
    at_work = (RunState.running, RunState.unfinished)
    begun = [run for run in every if run.state in at_work or not run.spec.is_known]
    jobs = readable_jobs((run.spec for run in begun), runs)
    standings = job_standings(jobs.values()) if jobs else {}
    return [
        _described(run, runs, jobs.get(run.spec.request), standings.get(run.spec.request))
        for run in begun
        if run.state in at_work or run.spec.request in jobs
    ]


def _described(run: Run, runs: Path, job: Job | None, standing: JobStanding | None) -> dict[str, Any]:
    spec, progress = run.spec, run.progress
    directory, is_running = RunDirectory.of(runs, spec), run.state is RunState.running
    if standing is not None and is_running and not standing.is_active:
        standing = None  # of a run that some process is training only a queued job is shown: it may be another's
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
        "job": job.number if job is not None and standing is not None else None,
        "job_state": standing.words if standing is not None else None,
    }


def _print(progress: _Progress) -> None:
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
    speed = next(key for key in run if key.endswith("_per_second"))
    if run[speed] and run["state"] == "running":
        parts.append(f"{format.speed(run[speed])} {speed.removesuffix('_per_second')}/s")
    if run["eta_seconds"] is not None:
        parts.append(f"{format.duration(run['eta_seconds'])} to go")
    if run["error"] is not None:
        parts.append(f"failed: {run['error']} ({run['directory']}/error.txt)")
    return ", ".join(parts)
