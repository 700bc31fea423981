"""`comt curves`: the learning curves of a recipe's runs, and from when on its rows differ from the baseline."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import options


def curves(
    recipe: options.RecipeArgument,
    *,
    scale: options.Scale = "smoke",
    rows: options.Rows = None,
    columns: options.Columns = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    sweep: options.Sweep = None,
    also: options.Also = None,
    quantity: Annotated[
        str, typer.Option(help="What is drawn: loss, of training batches, or one that was logged on validation data.")
    ] = "loss",
    runs: options.Runs = options.DEFAULT_RUNS,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Draw what a recipe's rows learn while they train. Also draws their differences to the baseline at equal steps.

    Means over seeds with their span; differences paired by seed with their 95 % interval, and from when on they are
    resolved. Of runs that are still training what is there; of a sweep the runs at each row's own best. Writes PNG,
    PDF, caption and the CSV it was drawn from, beside the recipe's table; of chosen or added rows, columns or
    seeds under a name of their own. Trains nothing.

    Examples:

      comt curves table3.yaml

      comt curves table3.yaml --rows pre-ln,pre-ln+comt --seeds 1-3
    """
    from comt_cli.verbs.compare import draw_curves

    draw_curves(recipe, scale, rows, columns, seeds, set_, sweep, also, quantity, runs, results)
