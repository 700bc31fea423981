"""`comt reproduce`: every recipe there is, trained, tabled and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import options

if TYPE_CHECKING:
    from comt_cli.campaign.slurm_site import Site
    from comt_cli.commands.plan_costs import Trained
    from comt_cli.commands.planning import Planned


def reproduce(
    scale: options.Scale = "smoke",
    papers: Annotated[str | None, typer.Option(metavar="A,B", help="Only these papers' recipes.")] = None,
    seeds: options.Seeds = None,
    also: options.Also = None,
    sweeps: Annotated[bool, typer.Option("--sweeps", help="Recipes that first try values for every row, too.")] = False,
    device: options.Device = None,
    gpus: options.Gpus = 1,
    jobs: options.Jobs = None,
    slurm: options.Slurm = None,
    track: options.Track = None,
    runs: options.Runs = Path("runs"),
    results: options.Results = options.DEFAULT_RESULTS,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
) -> None:
    """Train every recipe that has the scale. Writes their tables, their figures, and the overview of them all.

    All recipes are checked before the first run; those without the scale, and without --sweeps those that first try
    values for every row, are named and skipped. Their runs form one queue, in which a training that several tables
    need stands once. What is done already is not done again, and a run that fails does not stop the others: the same
    command can be given again, and on several machines at once.

    Examples:

      comt reproduce --scale smoke --dry-run

      comt reproduce --scale smoke

      comt reproduce --scale small --papers transponder --seeds 1-3
    """
    from comt_cli.commands.outcome import check_results, end, write_outcomes
    from comt_cli.commands.plan_costs import Trained
    from comt_cli.commands.slurm_jobs import read_slurm_site, submit_runs
    from comt_cli.commands.sweep_training import check_edges, check_processes, known_runs, print_cost, train_planned
    from comt_cli.report.overview import write_overview
    from comt_cli.training.processes import is_main_process
    from comt_cli.training.trackers import tracking

    site = read_slurm_site(slurm, gpus, jobs) if slurm is not None else None
    where = options.Where(device, gpus, jobs, slurm, track, runs, results)
    tables = _planned(scale, papers, seeds, also, sweeps=sweeps)
    if dry_run:
        print_all(tables, runs, Trained(device, jobs, gpus), site)
        print_cost(tables, runs, where)
        return
    check_processes(tables)
    check_results(tables, results)
    unwritten = []
    with tracking(track):
        if site is not None:
            print_cost(tables, runs, where)
            submit_runs([spec for table in tables for spec in known_runs(table, runs)], runs, device, site)
            typer.echo("The tables and figures, once the jobs are done: the same command without --slurm")
            return
        summary = train_planned(tables, runs, where)
    if is_main_process():
        try:
            unwritten = write_outcomes(tables, runs, results, overwrite=overwrite)
        finally:
            if any(results.glob("*/*/*-runs.csv")):  # else nothing has ended, and the summary says why
                typer.echo(f"\nwrote {write_overview(results)}")
    summary.check()
    check_edges(tables, runs)
    end(summary, unwritten)


def _planned(
    scale: str, papers: str | None, seeds: str | None, also: list[str] | None, *, sweeps: bool
) -> list[Planned]:
    """Every recipe chosen that has the scale. Raises `UserError` where one is broken, or none is left.

    A row of `also` is added to those recipes that can have its method.
    """
    from comt_cli.commands.planning import also_rows, check_added, plan_loaded
    from comt_cli.errors import UserError
    from comt_cli.methods import catalogue
    from comt_cli.recipe.load import available_recipes, load_recipe, select
    from comt_cli.recipe.problems import nearest
    from comt_cli.training.processes import is_main_process

    added = also_rows(also)
    recipes = available_recipes()
    chosen = select(papers, dict.fromkeys(name.partition("/")[0] for name in recipes), "paper")
    planned, skipped = [], []
    scales: dict[str, None] = {}
    for name, path in recipes.items():
        if name.partition("/")[0] not in chosen:
            continue
        loaded = load_recipe(path, catalogue(), scale=scale, also=added, also_fits_all=False)
        if loaded.has_trials(scale) and not sweeps:
            skipped.append(f"{name} is a sweep, and --sweeps was not given")
        elif scale in loaded.recipe.scales:
            planned.append(plan_loaded(loaded, scale, seeds=seeds))
        else:
            skipped.append(f"{name} has no scale {scale}, only {', '.join(loaded.recipe.scales)}")
        scales |= dict.fromkeys(loaded.recipe.scales)
    if not planned and scale not in scales:
        raise UserError(f"no recipe has a scale {scale!r}", nearest(scale, scales))
    for each in skipped if is_main_process() else ():
        typer.echo(f"skipped: {each}", err=True)
    if not planned:
        raise UserError(f"there are no recipes to reproduce at scale {scale}", "comt recipes lists what there is.")
    check_added(added, (table.loaded for table in planned))
    return planned


def print_all(tables: list[Planned], runs: Path, trained: Trained, site: Site | None = None) -> None:
    """One line a recipe: its runs, how many are done, how many are trained for an earlier recipe anyway, and the time
    of the rest, which at a `site` is not known. Then all of it as the one queue that it is.

    Raises:
        UserError: there is no such device, or its options do not go together.
    """
    from rich.console import Console
    from rich.table import Table

    from comt_cli.campaign.estimate import finished_runs
    from comt_cli.commands.plan_costs import Counting, checked_hardware, estimator_for, time_left
    from comt_cli.report.format import duration
    from comt_cli.runs.directory import ENDED, RunDirectory
    from comt_cli.runs.known import adopt_contents
    from comt_cli.runs.shared import needed_runs

    where = checked_hardware(trained, [spec for planned in tables for spec in planned.specs]) if site is None else None
    plans = [adopt_contents(planned.specs, runs, ambiguous=True) for planned in tables]
    specs = [shared.spec for shared in needed_runs([spec for plan in plans for spec in plan], runs)]
    states = {spec.id: RunDirectory.of(runs, spec).state().value for spec in specs}
    estimator = None
    if where is not None:
        with Counting(specs) as counting:
            counting.count(specs)
        estimator = estimator_for(specs, where, finished_runs(runs, where, trained.gpus), trained)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for header in ("recipe", "runs", "done", "shared", "to do", *(("time",) if estimator is not None else ())):
        table.add_column(header, justify="left" if header == "recipe" else "right", no_wrap=True)
    seen: set[str] = set()
    for planned, plan in zip(tables, plans, strict=True):
        own = {spec.id: spec for spec in plan}
        done = {name for name in own if states[name] in ENDED}
        shared = (own.keys() & seen) - done
        left = [spec for name, spec in own.items() if name not in done | shared]
        cells = [str(count) for count in (len(own), len(done), len(shared), len(left))]
        if estimator is not None:
            seconds = time_left(left, [states[spec.id] for spec in left], estimator)
            cells.append(duration(seconds) if left else "-")
        table.add_row(planned.loaded.name, *cells)
        seen |= own.keys()
    console = Console(highlight=False)
    console.width = max(console.width, 80)
    console.print(table)
    left_over = sum(state not in ENDED for state in states.values())
    summary = f"\n{len(tables)} recipes, {len(states)} different runs, {left_over} to do"
    if estimator is None or where is None:
        console.print(f"{summary}: each a job for Slurm, but those that are in its queue.")
        return
    open_specs = [spec for spec in specs if states[spec.id] not in ENDED]
    sources = dict.fromkeys(estimator.of(spec).source for spec in open_specs)
    seconds = time_left(specs, [states[spec.id] for spec in specs], estimator)
    at_once = f", {estimator.at_once} at a time" if estimator.at_once > 1 else ""
    console.print(f"{summary}, about {duration(seconds)}{at_once} on {where.name}.")
    if sources:
        console.print(f"Time is estimated from {' and from '.join(sources)}.")
