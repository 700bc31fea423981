"""Known runs, all or those that are asked for: listed, and deleted."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from comt_cli.campaign.slurm import job_standings, readable_jobs
from comt_cli.errors import UserError
from comt_cli.recipe.load import select
from comt_cli.recipe.merge import Layer, parse_arguments
from comt_cli.recipe.problems import Problem, RecipeError
from comt_cli.recipe.settings import RunSettings, overrides_of
from comt_cli.report import format
from comt_cli.report.run_list import computing_seconds, described, print_runs, summary_text
from comt_cli.report.terminal import say
from comt_cli.runs.known import KnownRun, Place, Standing, known_runs, remove_runs
from comt_cli.runs.plan import BY_ID, parse_seeds
from comt_cli.tasks import tasks
from comt_cli.verbs.plan import also_rows
from comt_cli.verbs.select import runs_of_table, select_runs
from comt_cli.verbs.table import recipes_by_name

Found = list[tuple[KnownRun, Place]]


def list_runs(
    recipes: Sequence[str],
    scale: str | None,
    rows: str | None,
    columns: str | None,
    seeds: str | None,
    state: str | None,
    set_: Sequence[str],
    also: Sequence[str] | None,
    runs: Path,
    *,
    as_json: bool,
) -> None:
    """Print every run below `runs`, or of some recipes, that every option lets through.

    Raises:
        UserError: an option names what is not there.
    """
    added, every = also_rows(also), known_runs(runs)
    found: Found = [(run, run.home) for run in every]
    if recipes:
        found = list(dict.fromkeys(each for recipe in recipes for each in runs_of_table(recipe, runs)))
    found = [(run, place) for run, place in found if scale in (None, run.label("scale"))]
    for names, what in ((rows, "row"), (columns, "column")):
        if names is not None and found:
            valid = select(names, dict.fromkeys(getattr(place, what) for _, place in found), f"{what} with runs")
            found = [(run, place) for run, place in found if getattr(place, what) in valid]
    if (numbers := parse_seeds(seeds)) is not None:
        found = [(run, place) for run, place in found if run.seed in numbers]
    if state is not None:
        states = select(state, list(Standing), "state of runs")
        found = [(run, place) for run, place in found if run.standing in states]
    has = _having(set_)
    listed = described([(run, place) for run, place in found if has(run)], recipes_by_name(recipes, added))
    if as_json:
        typer.echo(json.dumps(listed, indent=2))
        return
    if not listed:
        typer.echo(f"There are {'no such runs' if every else 'no runs'} below {runs}.")
        return
    print_runs(listed)
    typer.echo()
    say(f"{summary_text(listed)} in {runs}/by-id/ID")
    for row in listed:
        if row["problem"] is not None:
            typer.echo(f"  {row['name']}: {row['problem']}", err=True)


def _having(overrides: Sequence[str]) -> Callable[[KnownRun], bool]:
    """Whether a run was trained with the settings of `--set` arguments: whether setting them so would change nothing.

    Raises:
        UserError: an argument is wrong for every kind of run.
    """
    if not overrides:
        return lambda _: True
    values: dict[str, Layer] = {}
    wrong: list[Problem] = []
    for command, task in tasks().items():
        problems: list[Problem] = []
        settings: type[RunSettings] = task.settings
        parsed = parse_arguments(overrides, overrides_of(settings), problems)
        if problems:
            wrong = wrong or problems
        else:
            values[command] = parsed
    if not values:
        raise RecipeError("--set", wrong)

    def fits(run: KnownRun) -> bool:
        given = values.get(run.label("command"))
        if given is None or run.spec is None:
            return False
        own = run.spec.settings
        changed = own.model_dump(mode="json")
        for name, (value, _) in given.items():
            section, _, key = name.partition(".")
            changed[section][key] = value
        try:
            return type(own).model_validate(changed) == own
        except ValueError:  # with the rest of its settings it could not be set so
            return False

    return fits


def delete_runs(
    selectors: Sequence[str],
    runs: Path,
    scale: str | None,
    set_: Sequence[str] | None,
    *,
    replaced: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Delete the runs that are meant, each once, after saying what they are and asking.

    Raises:
        UserError: a selector or path means none, or one is being trained or queued; nothing was deleted.
        typer.Exit: the answer is no.
    """
    if not selectors and not replaced:
        raise UserError("say which runs to delete", "comt runs lists them; comt rm --help has examples.")
    chosen = [run for run in known_runs(runs) if run.is_replaced and scale in (None, run.label("scale"))]
    if selectors:
        chosen = _meant(selectors, runs, scale, set_, replaced=replaced)
    if not chosen:
        typer.echo(f"No run was moved aside below {runs}.")
        return
    _refuse_at_work(chosen, runs)
    listed = described([(run, run.home) for run in chosen], recipes_by_name((), {}))
    print_runs(listed)
    seconds = computing_seconds(listed)
    paid = f" that took {format.duration(seconds)} to train" if seconds else ""
    links = [link for run in chosen for link in run.links]
    typer.echo()
    say(f"{summary_text(listed)}{paid}; {format.plural(len(links), 'link')} to them.")
    tables = sorted({"/".join(link.parts[-5:-3]) for link in links})
    if len(tables) > 1:
        say(f"They stand in {format.listing(tables)}.")
    _tell_of_started(chosen, runs)
    if dry_run:
        typer.echo("Nothing was deleted.")
        return
    if not yes and not sys.stdin.isatty():
        raise UserError("nothing was deleted: there is no terminal to ask on", "--yes deletes without asking.")
    if not yes and not typer.confirm(f"Delete {'it' if len(chosen) == 1 else 'them'} for good?"):
        typer.echo("Nothing was deleted.")
        raise typer.Exit(1)
    remove_runs(chosen, runs)
    typer.echo(f"deleted {format.plural(len(chosen), 'run')}, {format.size(sum(row['bytes'] for row in listed))}")


def _meant(
    selectors: Sequence[str], runs: Path, scale: str | None, set_: Sequence[str] | None, *, replaced: bool
) -> list[KnownRun]:
    """The runs of selectors and paths: those that were moved aside, or the others; but by its whole name any."""
    found: dict[str, KnownRun] = {}
    for text in selectors:
        if Path(text).exists() or Path(text).is_symlink():
            here = [_at(Path(text), runs)]
        else:
            every = select_runs(text, runs, scale, set_).runs
            here = [run for run in every if run.is_replaced == replaced or any(run.name == text for run in every)]
        if not here:
            wrong = "is moved aside" if replaced else "is there but those that were moved aside"
            lists = "comt runs --state replaced lists them"
            raise UserError(
                f"{text}: no run of it {wrong}", f"{lists}." if replaced else f"{lists}; --replaced deletes them."
            )
        found |= {run.name: run for run in here}
    return list(found.values())


def _at(path: Path, runs: Path) -> KnownRun:
    """The run whose folder, or link, or file within, `path` is. Raises `UserError` where it is none of these."""
    whole = path.resolve()
    folder = whole.parent if whole.is_file() else whole
    if folder.parent == (runs / BY_ID).resolve():
        for run in known_runs(runs):
            if run.name == folder.name:
                return run
    raise UserError(f"{path} is no run below {runs}", "comt rm deletes nothing else; --runs names another folder.")


def _refuse_at_work(chosen: Sequence[KnownRun], runs: Path) -> None:
    """Raises `UserError` where one of `chosen` is being trained, or waits in Slurm's queue."""
    for run in chosen:
        if run.standing is Standing.running:
            owner = run.directory.owner() or "another process"
            message = f"{run.directory.shown} is being trained by {owner}: nothing was deleted"
            raise UserError(message, "Stop it, or wait until it ends.")
    specs = [run.spec for run in chosen if run.spec is not None and not run.is_replaced]
    for name, standing in job_standings(readable_jobs(specs, runs).values()).items():
        if standing.is_active:
            message = f"the run {name} is {standing.words}: nothing was deleted"
            raise UserError(message, "scancel takes a job from the queue.")


def _tell_of_started(chosen: Sequence[KnownRun], runs: Path) -> None:
    """Name each table with runs that stay, and that start from runs of `chosen`."""
    going = {run.name for run in chosen}
    counts = Counter(
        run.home.recipe
        for run in known_runs(runs)
        if run.name not in going and run.spec is not None and any(source.id in going for source in run.spec.sources)
    )
    for table, count in counts.items():
        say(
            f"{format.plural(count, 'run')} of {table} {'starts' if count == 1 else 'start'} from what is deleted, "
            "which must be trained again before such a run can begin anew."
        )
