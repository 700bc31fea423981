"""The verbs that list and delete runs, and show the progress of tables from run folders and Slurm's queue."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from comt_cli.campaign.slurm.jobs import JobStanding, job_standings
from comt_cli.commands import completion, options
from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.find import MARK, available_recipes
from comt_cli.recipe.load import LoadedRecipe, load_recipe, select
from comt_cli.report import format
from comt_cli.report.collect import Collection, Run, collect, tables_with_runs
from comt_cli.report.exhibits.sweep import read_sweep
from comt_cli.report.run_list import described, print_runs, summary_text
from comt_cli.report.terminal import print_progress, say
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.known import KnownRun, Standing, adopt_contents, known_runs, remove_runs
from comt_cli.runs.plan import BY_ID, parse_seeds, point_in_words, sources_of
from comt_cli.verbs.find import having
from comt_cli.verbs.plan import also_rows, check_added, plan_loaded, with_settings
from comt_cli.verbs.select import listed_runs, name_run, recipes_by_name, select_runs

_WHERE = "Only runs that meet a condition on settings and results, such as 'train.steps > 500 and row == \"pre-ln\"'."
_STATES = "Only runs in these states: done, diverged, running, unfinished, failed, replaced, unreadable."
DEFAULT_SCALE = "smoke"  # of the verbs that train
_BEGUN = [state.value for state in RunState if state is not RunState.missing]
_SHOWN = ("error", *_BEGUN, "open", "notes", "others")


def runs(
    recipes: options.Recipes = None,
    *,
    scale: options.ScaleOfRuns = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="A,B", help=_STATES, autocompletion=completion.listed("runs.known", "Standing")),
    ] = None,
    where: Annotated[str | None, typer.Option(metavar="EXPRESSION", help=_WHERE)] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name the selected run; '' removes its name.")
    ] = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    as_json: options.AsJson = False,
) -> None:
    """List runs with their state and metric. Also list row, seed, time, size and id.

    RECIPE may also select rows, columns or settings: table3:pre-ln, table3@steps-12. The heading of a group shows the
    settings that differ from the recipe. Replaced runs are those that --fresh moved aside. Every command accepts the
    name of a run; the name is lost when the run is moved aside.

    Examples:
      comt runs table3 --where "train.steps > 500 and perplexity < 100"
      comt runs table3:pre-ln:python-docs/tiny:1 --name baseline
    """
    found = listed_runs(recipes or (), OfRuns(scale, runs=runs))
    states = select(state, list(Standing), "state of runs")
    found = [(run, place) for run, place in found if run.standing in states]
    if where is not None:
        found = [*having(found, where)]
    if name is not None:
        chosen = {run.name: run for run, _ in found if not run.is_replaced}
        if len(chosen) != 1:
            hint = "Select one by recipe:row:column:seed, --scale, --where, or the start of its id."
            raise UserError(f"--name names one run, but {len(chosen)} are selected", hint)
        name_run(next(iter(chosen.values())), name, runs)
    listed = described(found, recipes_by_name(recipes or ()))
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
        return
    if not listed:
        begin = "" if known_runs(runs) else " To begin: comt train-lm table3"
        typer.echo(f"There are {'no runs' if begin else 'no such runs'} below {runs}.{begin}")
        return
    print_runs(listed)
    typer.echo()
    say(f"{summary_text(listed)} in {runs}/by-id/ID")
    for row in listed:
        if row["problem"] is not None:
            typer.echo(f"  {row['name']}: {row['problem']}", err=True)


def rm(
    selectors: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help=options.SELECTORS, autocompletion=completion.selectors),
    ] = None,
    *,
    replaced: Annotated[
        bool, typer.Option("--replaced", help="Runs that --fresh moved aside; all of them if no RUN is given.")
    ] = False,
    of: OfRuns,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs; delete nothing.")] = False,
) -> None:
    """Delete runs. Remove their folders and the links of all tables; this cannot be undone.

    The command lists the runs with their training time and asks. To delete a run that was moved aside, use --replaced
    or its whole name, such as 0123456789ab.replaced-1. Runs that are being trained or are in Slurm's queue are not
    deleted.

    Examples:
      comt rm table3:post-ln --dry-run
      comt rm --replaced --yes
    """
    if not selectors and not replaced:
        raise UserError("no run was given", "For example: comt rm table3:post-ln --dry-run. comt runs lists all runs.")
    known = known_runs(of.runs)
    chosen = [run for run in known if run.is_replaced and of.scale in (None, run.label("scale"))]
    if selectors:
        chosen = _meant(selectors, of, replaced=replaced)
    if not chosen:
        typer.echo(f"There are no replaced runs below {of.runs}.")
        return
    _refuse_at_work(chosen, of.runs)
    listed = described([(run, run.home) for run in chosen], recipes_by_name())
    print_runs(listed)
    seconds = sum(row["train_seconds"] for row in listed if isinstance(row["train_seconds"], int | float))
    took = f" that took {format.duration(seconds)} to train" if seconds else ""
    links = [link for run in chosen for link in run.links]
    tables = format.listing(sorted({"/".join(link.parts[-5:-3]) for link in links})) or "no table"
    typer.echo()
    say(f"{summary_text(listed)}{took}; {format.plural(len(links), 'link')} to them from {tables}.")
    if dry_run:
        typer.echo("Nothing was deleted.")
        return
    if not yes and not sys.stdin.isatty():
        raise UserError("nothing was deleted: comt cannot ask without a terminal", "--yes deletes without asking.")
    if not yes and not typer.confirm(f"Delete {'it' if len(chosen) == 1 else 'them'} for good?"):
        typer.echo("Nothing was deleted.")
        raise typer.Exit(1)
    remove_runs(chosen, of.runs)
    typer.echo(f"deleted {format.plural(len(chosen), 'run')}, {format.size(sum(row['bytes'] for row in listed))}")


def _meant(selectors: Sequence[str], of: OfRuns, *, replaced: bool) -> list[KnownRun]:
    """The runs of selectors: those that were moved aside, or the others. A whole name selects any run. Raises
    `UserError` if a selector means no run."""
    found: dict[str, KnownRun] = {}
    for text in selectors:
        every = [each.run for each in select_runs(text, of)]
        here = {run.name: run for run in every if run.is_replaced == replaced or run.name == text}
        if not here:
            wrong = "no such run was moved aside" if replaced else "all such runs were moved aside"
            raise UserError(
                f"{text}: {wrong}", "comt runs --state replaced lists replaced runs; comt rm --replaced deletes them."
            )
        found |= here
    return list(found.values())


def _refuse_at_work(chosen: Sequence[KnownRun], runs: Path) -> None:
    """Raise `UserError` if one of `chosen` is being trained, or is in Slurm's queue."""
    for run in chosen:
        if run.standing is Standing.running:
            owner = run.directory.owner() or "another process"
            message = f"nothing was deleted: {run.directory.shown} is being trained by {owner}"
            raise UserError(message, "Stop that process, or wait until it ends.")
    specs = {run.spec.request: run.spec for run in chosen if run.spec is not None and not run.is_replaced}
    for request, standing in job_standings(specs.values(), runs).items():
        if standing.is_active:
            message = f"nothing was deleted: the run {specs[request].id} is {standing.words}"
            raise UserError(message, f"End the job first: scancel {standing.number}")


def status(
    recipes: options.Recipes = None,
    *,
    scale: options.ScaleOfRuns = None,
    seeds: options.Seeds = None,
    also: options.Also = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    as_json: options.AsJson = False,
) -> None:
    """Show the progress of each table. Count runs that are done, diverged, running, unfinished and missing.

    Without RECIPE, all tables with runs are counted; with RECIPE, the table with its current values is shown too. Runs
    with --set have a table of their own, such as table3@steps-200. Running runs are shown with their process, failed
    runs with the reason, Slurm runs with their job. Nothing is changed.

    Examples:
      comt status
      comt status table3 --scale small --seeds 1-3
    """
    added, is_named = also_rows(also), bool(recipes)
    parse_seeds(seeds)  # so that an error in them is reported once, not for every table
    seen: list[LoadedRecipe] = []
    shown: list[_Progress] = []
    every = tables_with_runs(runs, [*available_recipes()], scale)
    for name, there in [(name, None) for name in recipes or ()] or every:
        try:
            path, changed = with_settings(name, None, runs)
            # Changed settings belong to the trained scale: they could contradict another scale's setup.
            at = scale or there or (DEFAULT_SCALE if changed else None)
            loaded = load_recipe(path, catalogue(), changed, at, also=added, also_fits_all=is_named)
            seen.append(loaded)
            main = at or (DEFAULT_SCALE if is_named and DEFAULT_SCALE in loaded.recipe.scales else None)
            for each in [at] if at is not None else loaded.recipe.scales:
                progress = _progress(loaded, each, seeds, runs, is_shown=is_named and each == main)
                if at is not None and "error" in progress.data:
                    raise UserError(progress.data["error"])
                if at is not None or any(map(progress.data.get, _SHOWN)):
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
        example = (*(recipes or ()), "table3")[0]
        begin = f"There are no runs below {runs}. To begin: comt train-lm {example}"
        others = f"No run below {runs} is of comt's own recipes. For all: comt runs. For yours: comt status mine.yaml"
        typer.echo(begin if recipes or not any(runs.glob(f"{BY_ID}/*")) else others)


class _Progress(NamedTuple):
    """A table at a scale: its counts as plain data, its cells if they are shown, its metrics by column."""

    data: dict[str, Any]
    cells: Collection | None = None
    metrics: Mapping[str, str] = {}


def _progress(loaded: LoadedRecipe, scale: str, seeds: str | None, runs: Path, *, is_shown: bool) -> _Progress:
    """The progress of a table at a scale, or the error. The cells of a sweep are those of its trials."""
    place = {"recipe": loaded.name, "scale": scale, "table": f"{loaded.folder}/{loaded.outputs(scale)}"}
    try:
        specs = adopt_contents(plan_loaded(loaded, scale, seeds=seeds).specs, runs)
    except UserError as error:  # for example a corpus that is not in the cache
        return _Progress({**place, "error": str(error)})
    grid, has_trials, beside = loaded.grids.get(scale), loaded.has_trials(scale), list[Run]()
    cell_specs = specs
    if has_trials:
        sweep = read_sweep(loaded, scale, specs, runs)
        cell_specs, trials = sweep.trials, {spec.id for spec in sweep.trials}
        beside = [*collect([spec for spec in sweep.specs if spec.id not in trials], runs, remarks=False).runs()]
    cells = collect(cell_specs, runs, choose_by=None if grid is None else grid.metric, remarks=not has_trials)
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
    metrics = {column: tried or loaded.recipe.metric_at(scale, column) for column in loaded.recipe.columns_at(scale)}
    data = {
        **place,
        **_counts(every),
        "metric": loaded.recipe.metric,
        "others": {name: dict(counts) for name, counts in sorted(others.items())},
        "open": _open([*every, *sources], runs),
        "sources": [{"recipe": name, "scale": at, **_counts(found)} for (name, at), found in tables.items()],
        "notes": list(cells.notes),
    }
    return _Progress(data, cells if is_shown and any(data[state] for state in _BEGUN) else None, metrics)


def _counts(every: Sequence[Run]) -> dict[str, int]:
    """The number of runs, in all and in each state."""
    states = Counter(run.state for run in every)
    return {"runs": len(every), **{state.value: states[state] for state in RunState}}


def _open(every: Sequence[Run], runs: Path) -> list[dict[str, Any]]:
    """The runs that are running, unfinished, or in Slurm's queue."""
    # A run in the queue may have no directory yet: it is made when the data is prepared.
    at_work = (RunState.running, RunState.unfinished)
    begun = [run for run in every if run.state in at_work or not run.spec.is_known]
    standings = job_standings((run.spec for run in begun), runs)
    return [
        _described(run, runs, standings.get(run.spec.request))
        for run in begun
        if run.state in at_work or run.spec.request in standings
    ]


def _described(run: Run, runs: Path, standing: JobStanding | None) -> dict[str, Any]:
    spec, progress = run.spec, run.progress
    directory, is_running = RunDirectory.of(runs, spec), run.state is RunState.running
    if standing is not None and is_running and not standing.is_active:
        standing = None  # a process trains the run, so the ended job is not its own
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
        "job": standing and standing.number,
        "job_state": standing and standing.words,
    }


def _print(progress: _Progress) -> None:
    table = progress.data
    heading = " ".join(part for part in (table.get("table", table["recipe"]), table.get("scale")) if part)
    if "error" in table:
        typer.echo(f"{heading}: error: {table['error']}")
        return

    def counted(counts: Mapping[str, Any]) -> str:
        listed = ", ".join(f"{counts[state]} {state}" for state in RunState if counts[state])
        return f"{format.plural(counts['runs'], 'run')}: {listed}"

    typer.echo(f"{heading}: {counted(table)}")
    if progress.cells is not None:
        print_progress(progress.cells, progress.metrics)
    for name, states in table["others"].items():
        typer.echo(f"  also {name}: {', '.join(f'{count} {state}' for state, count in states.items())}")
    for source in table["sources"]:
        typer.echo(f"  start weights from {source['recipe']} {source['scale']}: {counted(source)}")
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
        parts.append(f"{format.duration(run['eta_seconds'])} left")
    if run["error"] is not None:
        parts.append(f"failed: {run['error']} ({run['directory']}/error.txt)")
    return ", ".join(parts)
