"""`comt status`: how far the runs of every table are."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import completion, options


def status(
    recipes: options.Recipes = None,
    *,
    scale: Annotated[
        str | None,
        typer.Option(
            help="Only this scale. If not given: of recipes that are named smoke, as in training, and what there is of "
            "the others; else every scale with runs.",
            autocompletion=completion.scales,
        ),
    ] = None,
    rows: options.Rows = None,
    columns: options.Columns = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    also: options.Also = None,
    runs: options.Runs = options.DEFAULT_RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a table and scale.")] = False,
) -> None:
    """Show how far the runs of each table are. Counts those that are done, diverged, running, unfinished and missing.

    Of recipes that are named, the table as far as it is: the metric where runs are done, steps and time left of those
    at work. The options are those of the training it is about. A running run is shown with the process and the machine
    that train it, one that failed with the reason, and one that was given to Slurm with its job.

    Runs of other tables that these start from are counted below their table, and shown while they are open.

    Without recipes: every table that has runs. Reads only; safe while runs are being trained.

    Examples:

      comt status

      comt status table3.yaml

      comt status table3.yaml --scale small --seeds 1-3 --set train.steps=2000
    """
    from comt_cli.verbs.status import status

    status(recipes or (), scale, rows, columns, seeds, set_, also, runs, as_json=as_json)
