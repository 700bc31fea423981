"""`comt average`: the mean of a run's last checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import completion, options
from comt_cli.commands.loading import loading
from comt_cli.errors import UserError
from comt_cli.files import refuse_same


def average(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help=f"A run directory; {options.SELECTOR}.",
            show_default=False,
            autocompletion=completion.selectors,
        ),
    ],
    last: Annotated[int, typer.Option(min=1, help="How many of the kept weights, the last by step.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; average-<first>-<last>.pt in the run if not given."),
    ] = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
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
    from comt_cli.commands.run_selectors import model_source

    folder = Path(model_source(run, runs, scale, set_))
    if not folder.is_dir():
        raise UserError(f"there is no run {run}", "Give a run directory.")
    loading("the weights")
    from comt_cli.exchange.average import average as write_average
    from comt_cli.exchange.average import kept_weights

    if out is not None:
        refuse_same(out, folder / "checkpoint.pt", *kept_weights(folder).values())
    written, chosen = write_average(folder, last, out)
    typer.echo(f"{written}  the mean of {len(chosen)} steps: {', '.join(f'{step:,}' for step in chosen)}")
