"""`comt average`: the mean of a run's last checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import completion, options
from comt_cli.commands.loading import loading
from comt_cli.errors import UserError


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
    """Write the mean of the weights of a run's last steps as a checkpoint, which every verb reads.

    A run keeps the weights of the steps that train.average_last and train.average_every name, until it has ended with
    their average. Each parameter's mean is taken by itself, all weights alike.

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

    if out is None:
        steps = list(kept_weights(folder))[-last:]
        out = folder / (f"average-{steps[0]}-{steps[-1]}.pt" if steps else "average.pt")
    chosen = write_average(folder, last, out)
    typer.echo(f"{out}  the mean of {len(chosen)} steps: {', '.join(f'{step:,}' for step in chosen)}")
