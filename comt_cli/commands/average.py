"""`comt average`: the mean of a run's last checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options


def average(
    run: Annotated[str, options.run_argument(metavar="RUN", help=f"A run directory; {options.SELECTOR}.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the kept weights, the last by step.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; average-<first>-<last>.pt in the run if not given."),
    ] = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
) -> None:
    """Write the mean of the weights of a run's last steps. It is a checkpoint, which every verb reads.

    Weights are there of runs that were trained with --set train.keep_every=N: of every N-th step, or with 0.1 of every
    tenth of the steps. The setting changes no number and no id. While a run trains it also has those of the steps that
    train.average_last and train.average_every name, with whose average it ends. Each parameter's mean is taken by
    itself, all weights alike.

    Examples:

      comt average table3:pre-ln+comt --last 5

      comt average runs/by-id/0123456789ab --last 10 -o averaged.pt
    """
    from comt_cli.verbs import models

    models.average(models.Chosen(run, runs, scale, set_), last, out)
