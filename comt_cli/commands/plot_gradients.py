"""`comt plot-gradients`: how large the gradients of the convolutions were while networks learned."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import options


def plot_gradients(
    chosen: options.ManyRuns,
    epochs: Annotated[float, typer.Option(help="How much of the training is shown.", min=0)] = 5.0,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    out: options.Out = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw the L2 norm of every convolution's gradient. Shows it over depth and training steps, for one run or several.

    This is CoMT's Figure 3, of any runs of image classifiers that logged these norms: those trained with --set
    train.gradient_norms_every=10 (every tenth step). An unfinished run is drawn as far as it is. Writes PNG, PDF,
    caption and the CSV it was drawn from: of one run among its figures, of several under a name of all of them.

    Examples:

      comt plot-gradients figure3:baseline

      comt plot-gradients table1::glyphs10-resnet152:1 --epochs 1 --out figures
    """
    from comt_cli.verbs import models

    models.plot_gradients(chosen, epochs, runs, scale, set_, out=out, results=results)
