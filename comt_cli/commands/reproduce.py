"""`comt reproduce`: every recipe there is, trained, tabled and drawn."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import options


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
    runs: options.Runs = options.DEFAULT_RUNS,
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
    from comt_cli.verbs import train
    from comt_cli.verbs.cost import Where

    where = Where(runs, results, device, gpus, jobs, slurm, track, overwrite)
    train.reproduce(scale, papers, seeds, also, where, sweeps=sweeps, dry_run=dry_run)
