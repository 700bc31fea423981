"""`comt rm`: delete runs, after saying what they are and what computing them took."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import completion, options


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
    runs: options.Runs = options.DEFAULT_RUNS,
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
    from comt_cli.verbs.runs import delete_runs

    delete_runs(selectors or (), runs, scale, set_, replaced=replaced, yes=yes, dry_run=dry_run)
