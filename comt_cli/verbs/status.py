"""Progress of the runs of every table, read from their folders and Slurm's queue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import typer

from comt_cli.campaign.slurm import Job, job_standings, readable_jobs
from comt_cli.commands import options
from comt_cli.commands.options import Filter
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


def status(recipes: options.Recipes = None, *, of: Filter, as_json: options.AsJson = False) -> None:
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
    is_whole = not (of.set_ or of.rows or of.columns)
    seen: list[LoadedRecipe] = []
    shown: list[_Progress] = []
    every = tables_with_runs(of.runs, [*available_recipes()], of.scale, is_set=bool(of.set_))
    for name, there in [(name, None) for name in recipes or ()] or every:
        try:
            path, changed, named = with_settings(name, of.set_, of.scale, of.runs, of.rows, added)
            # What is set is for the scale that is trained: the steps of another would contradict its setup.
            at = of.scale or there or (DEFAULT_SCALE if changed else None)
            loaded = load_recipe(path, catalogue(), changed, at, also=named, also_fits_all=is_named)
            seen.append(loaded)
            here = replace(of, scale=of.scale or there)
            shown += _tables(loaded, here, is_whole=is_whole and not changed, is_named=is_named)
        except UserError as error:
            if is_named:
                raise
            if is_whole:  # else it is merely not what was asked for
                shown.append(_Progress({"recipe": name, "error": error.message}))
    if seen:
        check_added(added, seen)
    _add_standings(shown)
    if as_json:
        typer.echo(json.dumps([each.data for each in shown], indent=2))
        return
    for progress in shown:
        _print(progress)
    if not shown:
        example = (*(recipes or ()), "table3.yaml")[0]
        typer.echo(f"Nothing was run below {of.runs}. To begin: comt train-lm --recipe {example}")


class _Progress(NamedTuple):
    """A table at a scale: its numbers as plain data, its cells where they are to be shown, its metrics by column, and
    the jobs of its runs by request."""

    data: dict[str, Any]
    cells: Collection | None = None
    metrics: Mapping[str, str] = {}
    jobs: Mapping[str, Job] = {}


def _tables(loaded: LoadedRecipe, of: Filter, *, is_whole: bool, is_named: bool) -> Iterator[_Progress]:
    """The scale asked for; without one that of a training, where a recipe is named, and every other with a run.
    `is_whole`: nothing narrows the table or changes its runs."""
    scales = loaded.recipe.scales
    main = of.scale or (DEFAULT_SCALE if is_named and DEFAULT_SCALE in scales else None)
    is_one = bool(of.scale) or not is_whole
    for scale in [main] if main and is_one else scales:
        place = {"recipe": loaded.name, "scale": scale, "table": f"{loaded.folder}/{loaded.outputs(scale)}"}
        try:
            planned = plan_loaded(loaded, scale, rows=of.rows, columns=of.columns, seeds=of.seeds)
            specs = adopt_contents(planned.specs, of.runs)
        except UserError as error:  # for instance a corpus that is not in the cache
            if is_one:
                raise
            yield _Progress({**place, "error": error.message})
            continue
        progress = _progress(loaded, scale, specs, of.runs, place, is_shown=is_named and scale == main)
        is_begun = progress.data["missing"] < progress.data["runs"]
        if of.scale or is_begun or any(progress.data[key] for key in ("open", "notes", "others")):
            yield progress._replace(cells=progress.cells if is_begun else None)


def _progress(
    loaded: LoadedRecipe, scale: str, specs: Sequence[RunSpec], runs: Path, place: dict[str, Any], *, is_shown: bool
) -> _Progress:
    """A table at a scale. Of a sweep the cells are those of its trials."""
    grid, has_trials = loaded.grids.get(scale), loaded.has_trials(scale)
    beside: list[Run] = []
    cell_specs = specs
    if has_trials:
        sweep = read_sweep(loaded, scale, specs, runs)
        cell_specs, trials = sweep.trials, {spec.id for spec in sweep.trials}
        beside = [*collect([spec for spec in sweep.specs if spec.id not in trials], runs, remarks=False).runs()]
    choose_by = None if grid is None else grid.metric
    cells = collect(cell_specs, runs, choose_by=choose_by, remarks=not has_trials)
    every = [*cells.runs(), *beside]
    own = {run.spec.id for run in every}
    sources = [*collect([source for source in sources_of(specs) if source.id not in own], runs).runs()]
    # A job may be queued for a run that has no directory before its data is prepared.
    at_work = (RunState.running, RunState.unfinished)
    begun = [run for run in (*every, *sources) if run.state in at_work or not run.spec.is_known]
    jobs = readable_jobs((run.spec for run in begun), runs)
    begun = [run for run in begun if run.state in at_work or run.spec.request in jobs]
    others: dict[str, Counter[str]] = {}
    for run in known_runs(runs) if is_shown else ():
        for name in run.variants if run.label("scale") == scale and not run.is_replaced else ():
            if name.startswith(f"{loaded.name}{MARK}") and name != place["table"]:
                others.setdefault(name, Counter())[run.standing.value] += 1
    tables: dict[tuple[str, str], list[Run]] = {}
    for source in sources:
        tables.setdefault((f"{source.spec.paper}/{source.spec.table}", source.spec.scale), []).append(source)
    metrics = {
        column: grid.metric if grid is not None and has_trials else loaded.recipe.metric_at(scale, column)
        for column in loaded.columns(scale)
    }
    data = {
        **place,
        **_counts(every),
        "metric": loaded.recipe.metric,
        "others": {name: dict(counts) for name, counts in sorted(others.items())},
        "cells": cells.as_json(metrics),
        "open": [_described(run, runs) for run in begun],
        "sources": [{"recipe": name, "scale": at, **_counts(found)} for (name, at), found in tables.items()],
        "notes": list(cells.notes),
    }
    return _Progress(data, cells if is_shown else None, metrics, jobs)


def _counts(every: Sequence[Run]) -> dict[str, int]:
    """The number of runs, and of those in each state."""
    states = Counter(run.state for run in every)
    return {"runs": len(every), **{state.value: states[state] for state in RunState}}


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


def _add_standings(shown: Sequence[_Progress]) -> None:
    """Give open runs their `job`, and `job_state`: where Slurm says that it is. Of a run that some process is training,
    only a queued job is shown: another job may be training it."""
    jobs = {request: job for progress in shown for request, job in progress.jobs.items()}
    standings = job_standings(jobs.values())
    for run in (run for progress in shown for run in progress.data.get("open", ())):
        standing = standings.get(run["request"])
        is_shown = standing is not None and (standing.is_active or run["state"] != "running")
        run["job"] = jobs[run["request"]].number if is_shown else None
        run["job_state"] = standing.words if standing is not None and is_shown else None


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
    for unit in (task.unit for task in tasks().values()):
        if run.get(unit.per_second) and run["state"] == "running":
            parts.append(f"{format.speed(run[unit.per_second])} {unit.name}/s")
            break
    if run["eta_seconds"] is not None:
        parts.append(f"{format.duration(run['eta_seconds'])} to go")
    if run["error"] is not None:
        parts.append(f"failed: {run['error']} ({run['directory']}/error.txt)")
    return ", ".join(parts)
