"""The verbs that train: check the selected runs of recipes and sweeps, print their cost, train them here or submit them
to Slurm, and write tables and figures."""

from __future__ import annotations

import contextlib
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from comt_cli.campaign import executor
from comt_cli.campaign.queue import Ending, Summary, TrainingFailed, run_name
from comt_cli.campaign.skypilot import EXAMPLE, launch, read_resources
from comt_cli.campaign.slurm.site import Site, read_site
from comt_cli.campaign.slurm.submission import begin_anew, submit
from comt_cli.commands import completion, options
from comt_cli.commands.options import Selection, Where
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.files import check_writable
from comt_cli.methods import catalogue
from comt_cli.recipe.find import as_arguments, available_recipes, full_name
from comt_cli.recipe.load import load_recipe, select
from comt_cli.recipe.problems import RecipeError, nearest, read
from comt_cli.recipe.schema import AblationName
from comt_cli.report.exhibits.ablation import ablation_rows
from comt_cli.report.exhibits.sweep import SweepState, read_sweep
from comt_cli.report.overview import write_overview
from comt_cli.report.write import place
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.known import Place, adopt_contents, known_runs, set_aside
from comt_cli.runs.plan import RESULTS, RunSpec
from comt_cli.tasks import Task
from comt_cli.training.processes import StopSignal, is_main_process, rank_and_size
from comt_cli.training.trackers import tracking
from comt_cli.verbs import report
from comt_cli.verbs.find import frame_of_records, record_of
from comt_cli.verbs.plan import Planned, also_rows, check_added, plan_loaded, plan_recipe, plan_selected
from comt_cli.verbs.show import print_all, print_plans, sweep_cost
from comt_cli.words import plural

if TYPE_CHECKING:
    import pandas as pd

POLL_SECONDS = 2.0


def training_verb(task: Task[Any]) -> Callable[..., None]:
    """The function of a task's verb; the docstring of the task is its help."""

    def train(
        recipe_: Annotated[
            str | None,
            typer.Argument(metavar="RECIPE", help=options.RECIPE_HELP, autocompletion=completion.recipes),
        ] = None,
        *,
        recipe: Annotated[
            str | None,
            typer.Option(metavar="RECIPE", help="RECIPE as an option.", autocompletion=completion.recipes),
        ] = None,
        of: Selection,
        where: Where,
        fresh: Annotated[
            bool, typer.Option("--fresh", help="Train again from the start; move existing runs aside.")
        ] = False,
        dry_run: options.DryRun = False,
    ) -> None:
        named = recipe_ or recipe
        if named is None or recipe not in (None, named):
            wrong = "no recipe was given" if named is None else f"two recipes were given: {named} and {recipe}"
            hint = f"Give one: comt {task.command} RECIPE. comt recipes lists the recipes."
            raise UserError(wrong, "Give every setting its own --set." if "=" in (named or "") else hint)
        table, selected = _planned(named, of, task.command)
        train_tables([table], [selected], where, dry_run=dry_run, fresh=fresh)

    train.__doc__ = type(task).__doc__
    return train


def _planned(recipe: str, of: Selection, command: str | None) -> tuple[Planned, Planned]:
    """The whole table and the selected part: training one row must not erase the others."""
    table = plan_selected(recipe, replace(of, rows=None, columns=None), command=command)
    return table, plan_loaded(table.loaded, of.scale, rows=of.rows, columns=of.columns, seeds=of.seeds)


def train(
    recipe: str | Path,
    *,
    rows: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    seeds: str | int | Sequence[int] | None = None,
    scale: str = "smoke",
    set: Mapping[str, object] | None = None,
    also: str | Sequence[str] = (),
    device: str | None = None,
    gpus: int = 1,
    jobs: int | None = None,
    runs: str | Path = options.DEFAULT_RUNS,
    results: str | Path | None = None,
    overwrite: bool = False,
    fresh: bool = False,
) -> pd.DataFrame:
    """Train the missing runs of a recipe and write its table or figure, like the recipe's command (`comt train-lm`
    ...).

    Progress goes to the error stream, and the table is printed. Ctrl-C saves and stops.

    Args:
        recipe: A file, or the name of a shipped recipe.
        rows: Rows to train, as a list or as text with commas; by default all, as for `columns` and `seeds`.
        columns: Columns to train.
        seeds: Seeds to train.
        scale: Scale of the recipe.
        set: Settings that replace those of the recipe, by dotted key.
        also: Methods to add as rows, as with `--also`.
        device: As for the command, like the following arguments (`comt train-lm --help`).
        gpus: Number of GPUs of each run.
        jobs: Number of runs at once.
        runs: Folder of the run directories.
        results: Folder of the results; by default `results` below `runs`.
        overwrite: Replace a table even if the new one lacks runs of it.
        fresh: Train again; earlier runs are archived.

    Returns:
        The selected runs, one row each, with the columns of `find_runs`.

    Raises:
        UserError: An argument is wrong (nothing was started), a run failed, or training was stopped.

    Examples:
        >>> from comt_cli import train
        >>> summary = train("mine.yaml", rows="comt", set={"train.steps": 3})
        short
        ...
        >>> summary[["row", "state", "step"]]
            row state  step
        0  comt  done     3
    """

    def text(given: str | int | Sequence[object] | None) -> str | None:
        given = [given] if isinstance(given, int) else given
        return given if given is None or isinstance(given, str) else ",".join(map(str, given))

    folder, changed = Path(runs), [*as_arguments(set or {})]
    for name, given in (("gpus", gpus), ("jobs", jobs)):
        if given is not None and given < 1:
            raise UserError(f"{name}={given} should be at least 1")
    added = [also] if isinstance(also, str) else [*also]
    of = Selection(scale, text(rows), text(columns), text(seeds), changed, also=added)
    where = Where(device, gpus, jobs, runs=folder, results=Path(results or folder / RESULTS), overwrite=overwrite)
    table, selected = _planned(str(recipe), of, None)
    with _no_main_module(), contextlib.suppress(typer.Exit):  # raised after the message that an old table is kept
        train_tables([table], [selected], where, fresh=fresh)
    specs = _known([selected.with_contents(folder)], folder)
    known = {run.name: run for run in known_runs(folder)}
    places = ((known[spec.id], Place(spec.paper, spec.table, spec.row, spec.column)) for spec in specs)
    return frame_of_records(record_of(*each) for each in places)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide the user's script from the processes that are started here: multiprocessing would import it in each."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def reproduce(
    scale: options.Scale = "smoke",
    papers: Annotated[str | None, typer.Option(metavar="A,B", help="Only the recipes of these papers.")] = None,
    seeds: options.Seeds = None,
    also: options.Also = None,
    sweeps: Annotated[bool, typer.Option("--sweeps", help="Include recipes that tune values for every row.")] = False,
    *,
    where: Where,
    dry_run: options.DryRun = False,
) -> None:
    """Train every recipe that has a scale. Write all tables and figures, and their overview.

    All recipes are checked before the first run. Recipes without the scale are named and skipped. A run that several
    tables need is trained once. Finished runs are skipped, and a run that fails does not stop the others, so the same
    command can be repeated, also on several machines at once. More: recipes/RUNNING.md

    Examples:
      comt reproduce --scale smoke --dry-run
      comt reproduce --scale small --papers transponder --seeds 1-3
    """
    tables = _recipes_of_scale(scale, papers, seeds, also, sweeps=sweeps)
    train_tables(tables, tables, where, dry_run=dry_run, overview=True)


def train_tables(
    tables: Sequence[Planned],
    selected: Sequence[Planned],
    where: Where,
    *,
    dry_run: bool = False,
    fresh: bool = False,
    overview: bool = False,
) -> None:
    """Train the `selected` runs of `tables` as one queue, then write the whole tables and their `overview`. With
    `--slurm` or `--engine` submit the runs instead; with `dry_run` only print the plan. Finished runs are skipped
    unless `fresh` moves them aside. Raises `UserError` if an option or the results folder is wrong (nothing was
    started); `TrainingFailed` if a run failed or was not trained, or if the best trial of a row is at the edge of the
    grid; `typer.Exit` if a table was not written, after printing the reason."""
    site, resources = _slurm_site(where), _resources(where, fresh=fresh)
    if dry_run:
        print_all(selected, where) if overview else print_plans(selected, where, fresh=fresh)
        return
    every = [spec for planned in selected for spec in planned.specs]
    if resources is not None:
        executor.check_training(where.gpus, every, where.device, where.jobs, here=False)
        specs = [spec for planned in tables for spec in planned.specs]
        with tracking(where.track):
            launch(resources, [planned.loaded.path for planned in tables], specs, where.runs)
        return
    sweeps = [planned for planned in selected if planned.has_trials]
    if sweeps and rank_and_size():  # its processes cannot agree on the values that the trials chose
        raise UserError("torchrun cannot train a sweep, which has two stages", "Use --gpus N instead of torchrun.")
    for folder in dict.fromkeys(place(where.results, each.scale, each.loaded, "").parent for each in tables):
        check_writable(folder, "--results")
    with tracking(where.track):
        if fresh and site is None and is_main_process():
            executor.check_training(where.gpus, every, where.device, where.jobs)
            known = adopt_contents(_known(selected, where.runs), where.runs, ambiguous=True)
            _print_moved(set_aside(known, where.runs))
        for planned in sweeps:
            name = f"{planned.loaded.name}: " if len(selected) > 1 else ""
            typer.echo(f"{name}{sweep_cost(planned, where)}", err=True)
        if site is not None:
            _submit(selected, where, site, fresh=fresh)
            _check_edges(sweeps, where.runs)
            return
        summary = _train(selected, sweeps, where)
    unwritten: list[str] = []
    try:
        if is_main_process():
            unwritten = report.write_outcomes(
                tables, where.runs, where.results, overwrite=where.overwrite, shown=selected
            )
    finally:
        if overview and is_main_process() and any(where.results.glob("*/*/*-runs.csv")):  # else no run has ended
            typer.echo(f"\nwrote {write_overview(where.results)}")
    summary.check()
    _check_edges(sweeps, where.runs)
    if unwritten:
        raise typer.Exit(1)


def _print_moved(folders: Iterable[Path]) -> None:
    for folder in folders:
        typer.echo(f"moved aside: {folder}", err=True)


def _check_edges(sweeps: Sequence[Planned], runs: Path) -> None:
    """Raise `TrainingFailed` if the best trial of a row is at the edge of the grid."""
    if found := [problem for planned in sweeps for problem in _state(planned, runs).problems.values()]:
        raise TrainingFailed(
            "\n  ".join(["no value was chosen for some rows", *found]),
            "Repeat the command with a wider grid: it trains only the new values.",
        )


def _recipes_of_scale(
    scale: str, papers: str | None, seeds: str | None, also: list[str] | None, *, sweeps: bool
) -> list[Planned]:
    """The chosen recipes that have the scale; the others are printed as skipped. A row of `also` is added to recipes
    whose task allows its method. Raises `UserError` if a recipe is broken, or no recipe is left."""
    added, recipes = also_rows(also), available_recipes()
    chosen = select(papers, dict.fromkeys(name.partition("/")[0] for name in recipes), "paper")
    every = {
        name: load_recipe(path, catalogue(), scale=scale, also=added, also_fits_all=False)
        for name, path in recipes.items()
        if name.partition("/")[0] in chosen
    }
    scales = dict.fromkeys(each for loaded in every.values() for each in loaded.recipe.scales)
    planned, skipped = [], []
    for name, loaded in every.items():
        if loaded.has_trials(scale) and not sweeps:
            skipped.append(f"{name} is a sweep; --sweeps includes it")
        elif scale in loaded.recipe.scales:
            planned.append(plan_loaded(loaded, scale, seeds=seeds))
        else:
            skipped.append(f"{name} has no scale {scale}, only {', '.join(loaded.recipe.scales)}")
    for each in skipped if is_main_process() and scale in scales else ():
        typer.echo(f"skipped: {each}", err=True)
    if not planned:
        raise UserError(f"no recipe{'' if sweeps else ' but sweeps'} has a scale {scale!r}", nearest(scale, scales))
    check_added(added, (table.loaded for table in planned))
    return planned


def _known(tables: Sequence[Planned], runs: Path) -> list[RunSpec]:
    """The runs of plans that are known now. For a sweep: the trials, the runs at the recipe's own values, and the runs
    at values that the trials have chosen."""
    return [
        spec for planned in tables for spec in (_state(planned, runs).specs if planned.has_trials else planned.specs)
    ]


def _state(planned: Planned, runs: Path) -> SweepState:
    return read_sweep(planned.loaded, planned.scale, planned.with_contents(runs).specs, runs)


def _train(tables: Sequence[Planned], sweeps: Sequence[Planned], where: Where) -> Summary:
    """Train the selected runs of tables until the trials of sweeps add no more runs. Each pass trains the known runs:
    first the trials and the runs at the recipe's own values, then the runs at the chosen values. Where a choice depends
    on a run of another process, wait for it; take it over if that process stops. So any number of processes can run the
    same command. Raises as `executor.train_on`."""
    seeds = {seed for planned in sweeps for seed in planned.loaded.grids[planned.scale].seeds}
    while True:
        before = _known(tables, where.runs)
        summary = executor.train_on(where.gpus, before, where.runs, where.device, where.jobs)
        after = _known(tables, where.runs) if sweeps else before
        if {spec.request for spec in after} - {spec.request for spec in before}:
            continue
        waiting = [each.spec for each in summary.having(Ending.elsewhere) if each.spec.seed in seeds]
        if not waiting:
            return summary
        status = f"waiting for {plural(len(waiting), 'trial')} that other processes train"
        typer.echo(status, err=True)
        with StopSignal() as stop:  # until one of them ends or is stopped
            while all(RunDirectory.of(where.runs, spec).owner() is not None for spec in waiting):
                if stop.number is not None:
                    raise RunInterrupted(f"stopped while {status}", "The same command resumes from there.", stop.number)
                sleep(POLL_SECONDS)


def _slurm_site(where: Where) -> Site | None:
    """The site file of `--slurm`; None without one. Raises `UserError` if it is wrong, or if an option repeats one of
    its keys."""
    if where.slurm is None:
        return None
    if where.gpus != 1 or where.jobs is not None or rank_and_size():
        hint = "Set the GPUs and nodes of a run in the site file (gpus: N, nodes: N)."
        raise UserError("--slurm cannot be combined with --gpus, --jobs or torchrun", hint)
    return read_site(where.slurm)


def _resources(where: Where, *, fresh: bool) -> dict[str, str] | None:
    """The resources of `--engine skypilot`; None without it. Raises `UserError`."""
    if (where.engine is None) != (where.resources is None):
        raise UserError("--engine and --resources need each other", EXAMPLE)
    if where.engine is not None and (fresh or where.slurm is not None or rank_and_size()):
        raise UserError("--engine cannot be combined with --fresh, --slurm or torchrun", "Leave these out.")
    return None if where.resources is None else read_resources(where.resources)


def _submit(tables: Sequence[Planned], where: Where, site: Site, *, fresh: bool) -> None:
    """Submit the open runs that have no job yet; print one line per run. Raises as `submit`."""
    specs = _known(tables, where.runs)
    if fresh:
        _print_moved(begin_anew(specs, where.runs))
    counts = Counter[str]()
    try:
        for each in submit(specs, where.runs, where.device, site):
            if each.job is not None:
                before = "" if each.is_new else ", submitted before"
                typer.echo(f"job {each.job.number}{before}: {run_name(each.spec, with_table=True)}")
                counts["submitted" if each.is_new else "in the queue before"] += 1
            else:
                counts["being trained" if each.state is RunState.running else "done"] += 1
    except UserError as error:
        if counts["submitted"] and error.exit_status == UserError.exit_status:  # which means: nothing was started
            raise TrainingFailed(error.message, error.hint) from error
        raise
    finally:
        if total := counts.total():
            listed = ", ".join(f"{count} {word}" for word, count in counts.items())
            typer.echo(f"{plural(total, 'run')}: {listed}")
    elsewhere = "" if where.runs == Path("runs") else f" --runs {where.runs}"
    typer.echo(f"To follow them: comt status{elsewhere}, with the same --seeds and --also")
    if any(planned.has_trials for planned in tables):
        typer.echo("When the trials have ended, repeat this command: it submits the runs at the chosen values.")
    typer.echo("When the jobs are done, repeat this command without --slurm: it writes the tables and figures.")


_RECIPE = "Only this recipe, or the recipes of this paper: comt/tableA7, comt."


def ablate(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An ablation; see above.", show_default=False)
    ] = None,
    recipe: Annotated[str | None, typer.Argument(metavar="RECIPE", help=_RECIPE, show_default=False)] = None,
    *,
    scale: options.Scale = "smoke",
    seeds: options.Seeds = None,
    set_: options.Set = None,
    also: options.Also = None,
    where: Where,
    dry_run: options.DryRun = False,
) -> None:
    """Train and draw one ablation of the papers. Without a name, list the ablations with their recipes.

    The figure shows the metric against the ablated property, next to the paper's. --also adds a point.

    hidden-size: width of the gates' bottleneck. window-ratio: width of CoMT's sliding window. modules: projections
    with a gate. granularity: one factor per token, per channel, or both. context: input-dependent gates or learned
    constants. sigmoid: Transponder's learnable sigmoid or a fixed one. gate-form, gate-start: SAS's scaling gate.
    placement-norm: gates before and after a norm. residual-norm: the norm in SAS's third term. cost: the gain over
    wider plain networks of equal cost.

    Examples:
      comt ablate hidden-size comt/table5
      comt ablate hidden-size --also 64='{name: comt, hidden: 64}' --seeds 1-3
    """
    known = _ablations()
    if name is None:
        for ablation, recipes in known.items():
            typer.echo(f"{ablation:<15}  {', '.join(recipes)}")
        return
    if name not in known:
        listed = "; ".join(f"{ablation} ({', '.join(recipes)})" for ablation, recipes in known.items())
        raise UserError(f"no recipe has an ablation {name!r}", f"The ablations are {listed}.")
    meant = {recipe, full_name(recipe)} if recipe is not None else {*known[name]}
    chosen = [path for each, path in known[name].items() if meant & {each, each.partition("/")[0]}]
    if not chosen:
        raise UserError(f"{recipe} has no ablation {name}", nearest(str(recipe), known[name]))
    question: AblationName = name  # type: ignore[assignment]  # a key of a checked schema
    tables, wanted, added = [], [], also_rows(also)
    for path in chosen:
        whole = plan_recipe(path, scale, set_, seeds=seeds, also=added, also_fits_all=False)
        rows = {*ablation_rows(whole.loaded, question), *added}
        tables.append(whole)
        wanted.append(Planned(whole.loaded, scale, [spec for spec in whole.specs if spec.row in rows]))
    check_added(added, (table.loaded for table in tables))
    train_tables(tables, wanted, where, dry_run=dry_run)


def _ablations() -> dict[str, dict[str, Path]]:
    """Ablation -> recipe -> file, in the order of the schema. A recipe that cannot be read is skipped with a note."""
    found: dict[str, dict[str, Path]] = {}
    for recipe, path in available_recipes().items():
        try:
            data = read(path).data
        except RecipeError as error:
            typer.echo(f"comt: skipped {recipe}: {error.message}", err=True)
            continue
        there = data.get("ablations") if isinstance(data, dict) else None
        for name in there if isinstance(there, dict) else ():
            found.setdefault(str(name), {})[recipe] = path
    return {name: found[name] for name in get_args(AblationName) if name in found}
