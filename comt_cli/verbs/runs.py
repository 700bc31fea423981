"""Known runs, all or those that are asked for: listed, and deleted."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.campaign.slurm import job_standings, readable_jobs
from comt_cli.commands import completion, options
from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.recipe.load import select
from comt_cli.report import format
from comt_cli.report.run_list import computing_seconds, described, print_runs, summary_text
from comt_cli.report.terminal import say
from comt_cli.runs.known import KnownRun, Standing, known_runs, remove_runs
from comt_cli.verbs.select import recipes_by_name, runs_of_table, select_runs

_STATES = "Only runs that stand so: done, diverged, running, unfinished, failed, replaced, unreadable."


def runs(
    recipes: options.Recipes = None,
    *,
    scale: options.ScaleOfRuns = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="A,B", help=_STATES, autocompletion=completion.listed("runs.known", "Standing")),
    ] = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    as_json: options.AsJson = False,
) -> None:
    """List every run, with its metric or state. Also its row, its seed, when it was written, its size and its id.

    Recipes may be selectors, such as table3:pre-ln or table3@steps-12. The heading of a group says in which settings
    its runs differ from their recipe, as --set takes them. Replaced runs are those that --fresh moved aside. A run's
    folder is by-id/ID below the folder of the runs; wherever a verb takes a checkpoint, the beginning of the id is
    enough.

    Examples:

      comt runs table3:pre-ln --state done

      comt runs --state unfinished,failed --json
    """
    every, of = known_runs(runs), OfRuns(scale, runs=runs)
    found = [(run, run.home) for run in every if scale in (None, run.label("scale"))]
    if recipes:
        found = list(dict.fromkeys(each for recipe in recipes for each in runs_of_table(recipe, of)))
    states = select(state, list(Standing), "state of runs")
    found = [(run, place) for run, place in found if run.standing in states]
    listed = described(found, recipes_by_name(recipes or ()))
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


def rm(
    selectors: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help=options.SELECTORS, autocompletion=completion.selectors),
    ] = None,
    *,
    replaced: Annotated[
        bool, typer.Option("--replaced", help="Those that --fresh moved aside; all if none named.")
    ] = False,
    of: OfRuns,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted; delete nothing.")] = False,
) -> None:
    """Delete runs: their folders, and the links of all tables. What computing has paid for is gone then.

    Shows which runs they are and how long they took, and asks. Runs that were moved aside are deleted with --replaced,
    or by their whole name, such as 0123456789ab.replaced-1; a run that is being trained, or waits in Slurm's queue, is
    not deleted.

    Examples:

      comt rm table3:post-ln --dry-run

      comt rm a6b8e3eebed8 transponder/table2:grc::2

      comt rm --replaced --yes
    """
    if not selectors and not replaced:
        raise UserError("say which runs to delete", "comt runs lists them; comt rm --help has examples.")
    known = known_runs(of.runs)
    chosen = [run for run in known if run.is_replaced and of.scale in (None, run.label("scale"))]
    if selectors:
        chosen = _meant(selectors, of, replaced=replaced)
    if not chosen:
        typer.echo(f"No run was moved aside below {of.runs}.")
        return
    _refuse_at_work(chosen, of.runs)
    listed = described([(run, run.home) for run in chosen], recipes_by_name())
    print_runs(listed)
    seconds = computing_seconds(listed)
    paid = f" that took {format.duration(seconds)} to train" if seconds else ""
    links = [link for run in chosen for link in run.links]
    tables = format.listing(sorted({"/".join(link.parts[-5:-3]) for link in links})) or "no table"
    typer.echo()
    say(f"{summary_text(listed)}{paid}; {format.plural(len(links), 'link')} to them from {tables}.")
    going = {run.name for run in chosen}
    left = [run.spec for run in known if run.name not in going and run.spec is not None]
    started = Counter(f"{spec.paper}/{spec.table}" for spec in left if any(each.id in going for each in spec.sources))
    for table, count in started.items():
        what = format.plural(count, "run")
        say(f"{what} of {table} can then not begin anew before what is deleted is trained again.")
    if dry_run:
        typer.echo("Nothing was deleted.")
        return
    if not yes and not sys.stdin.isatty():
        raise UserError("nothing was deleted: there is no terminal to ask on", "--yes deletes without asking.")
    if not yes and not typer.confirm(f"Delete {'it' if len(chosen) == 1 else 'them'} for good?"):
        typer.echo("Nothing was deleted.")
        raise typer.Exit(1)
    remove_runs(chosen, of.runs)
    typer.echo(f"deleted {format.plural(len(chosen), 'run')}, {format.size(sum(row['bytes'] for row in listed))}")


def _meant(selectors: Sequence[str], of: OfRuns, *, replaced: bool) -> list[KnownRun]:
    """The runs of selectors: those that were moved aside, or the others; but by its whole name any. Raises `UserError`
    where there is none."""
    found: dict[str, KnownRun] = {}
    for text in selectors:
        every = [each.run for each in select_runs(text, of)]
        here = {run.name: run for run in every if run.is_replaced == replaced or run.name == text}
        if not here:
            wrong = "is moved aside" if replaced else "is there but those that were moved aside"
            raise UserError(
                f"{text}: no run of it {wrong}", "comt runs --state replaced lists them; --replaced deletes them."
            )
        found |= here
    return list(found.values())


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
