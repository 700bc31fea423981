"""`comt rm`: delete runs, after saying what they are and what computing them took."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import completion, options

if TYPE_CHECKING:
    from comt_cli.runs.known import KnownRun


def rm(
    selectors: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs as recipe:row:column:seed, where what is left out means all there are; by the beginning of an "
            "id; or run directories.",
            autocompletion=completion.selectors,
        ),
    ] = None,
    *,
    replaced: Annotated[
        bool, typer.Option("--replaced", help="Only runs that --fresh moved aside; all of them if no run is named.")
    ] = False,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted; delete nothing.")] = False,
    runs: options.Runs = Path("runs"),
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
    from comt_cli.commands.selected_table import recipes_by_name
    from comt_cli.errors import UserError
    from comt_cli.report import format
    from comt_cli.report.run_list import computing_seconds, described, print_runs, summary_text
    from comt_cli.report.terminal import say
    from comt_cli.runs.known import known_runs, remove_runs

    if not selectors and not replaced:
        raise UserError("say which runs to delete", "comt runs lists them; comt rm --help has examples.")
    if selectors:
        chosen = _chosen(selectors, runs, scale, set_, replaced)
    else:
        chosen = [run for run in known_runs(runs) if run.is_replaced and scale in (None, run.label("scale"))]
    if not chosen:
        typer.echo(f"No run was moved aside below {runs}.")
        return
    _refuse_at_work(chosen, runs)
    listed = described([(run, run.home) for run in chosen], recipes_by_name((), {}))
    print_runs(listed)
    seconds = computing_seconds(listed)
    paid = f" that took {format.duration(seconds)} to train" if seconds else ""
    typer.echo()
    say(f"{summary_text(listed)}{paid}; {format.plural(_links(chosen), 'link')} to them.")
    tables = sorted({"/".join(link.parts[-5:-3]) for run in chosen for link in run.links})
    if len(tables) > 1:
        say(f"They stand in {format.listing(tables)}.")
    for line in _started_from(chosen, runs):
        say(line)
    if dry_run:
        typer.echo("Nothing was deleted.")
        return
    _ask(yes, f"Delete {'it' if len(chosen) == 1 else 'them'} for good?")
    remove_runs(chosen, runs)
    typer.echo(f"deleted {format.plural(len(chosen), 'run')}, {format.size(sum(row['bytes'] for row in listed))}")


def _chosen(
    selectors: list[str], runs: Path, scale: str | None, set_: list[str] | None, replaced: bool
) -> list[KnownRun]:
    """The runs that are meant, each once. Raises `UserError` where a selector or path means none."""
    from comt_cli.commands.run_selectors import select_runs
    from comt_cli.errors import UserError

    found: dict[str, KnownRun] = {}
    for text in selectors:
        if Path(text).exists() or Path(text).is_symlink():
            here = [_at(Path(text), runs)]
        else:
            here = select_runs(text, runs, scale, set_).runs
            is_whole = any(run.name == text for run in here)
            here = [run for run in here if is_whole or run.is_replaced == replaced]
        if not here:
            if replaced:
                raise UserError(
                    f"{text}: no run of it is moved aside", "comt runs --state replaced lists those that are."
                )
            raise UserError(
                f"{text}: no run of it is there but those that were moved aside",
                "comt runs --state replaced lists them; --replaced deletes them.",
            )
        found |= {run.name: run for run in here}
    return list(found.values())


def _at(path: Path, runs: Path) -> KnownRun:
    """The run whose folder, or link, or file within, `path` is. Raises `UserError` where it is none of these."""
    from comt_cli.errors import UserError
    from comt_cli.runs.known import known_runs
    from comt_cli.runs.plan import BY_ID

    whole = path.resolve()
    folder = whole.parent if whole.is_file() else whole
    if folder.parent == (runs / BY_ID).resolve():
        for run in known_runs(runs):
            if run.name == folder.name:
                return run
    raise UserError(f"{path} is no run below {runs}", "comt rm deletes nothing else; --runs names another folder.")


def _refuse_at_work(chosen: list[KnownRun], runs: Path) -> None:
    """Raises `UserError` where one of `chosen` is being trained, or waits in Slurm's queue."""
    from comt_cli.campaign.slurm import job_standings, readable_jobs
    from comt_cli.errors import UserError
    from comt_cli.runs.known import Standing

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


def _started_from(chosen: list[KnownRun], runs: Path) -> list[str]:
    """A line for each table with runs that stay, and that start from runs of `chosen`."""
    from comt_cli.report import format
    from comt_cli.runs.known import known_runs

    going = {run.name for run in chosen}
    counts: dict[str, int] = {}
    for run in known_runs(runs):
        if run.name not in going and run.spec is not None and any(source.id in going for source in run.spec.sources):
            counts[run.home.recipe] = counts.get(run.home.recipe, 0) + 1
    return [
        f"{format.plural(count, 'run')} of {table} {'starts' if count == 1 else 'start'} from what is deleted, "
        "which must be trained again before such a run can begin anew."
        for table, count in counts.items()
    ]


def _links(chosen: list[KnownRun]) -> int:
    return sum(len(run.links) for run in chosen)


def _ask(yes: bool, question: str) -> None:
    """Raises `UserError` where nobody can answer, and `typer.Exit` where the answer is no."""
    from comt_cli.errors import UserError

    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("nothing was deleted: there is no terminal to ask on", "--yes deletes without asking.")
    if not typer.confirm(question):
        typer.echo("Nothing was deleted.")
        raise typer.Exit(1)
