"""`comt report`: write the tables of finished runs beside the papers' numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options


def report(
    recipes: options.Recipes = None,
    *,
    scale: options.Scale = "smoke",
    rows: options.Rows = None,
    columns: options.Columns = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    runs: options.Runs = Path("runs"),
    results: options.Results = Path("results"),
    overwrite: options.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a table.")] = False,
) -> None:
    """Write the tables of finished runs beside the papers' numbers: CSV, Markdown and LaTeX.

    Without recipes: every table that has runs. Missing, running and diverged cells say so. Seeds are the recipe's
    unless --seeds names others. Trains nothing. A table that has more finished runs than this one would is kept.

    Examples:

      comt report

      comt report table3.yaml --scale small --seeds 1-3
    """
    from comt_cli.commands.planning import plan_recipe
    from comt_cli.errors import UserError
    from comt_cli.recipe.load import available_recipes
    from comt_cli.recipe.problems import RecipeError
    from comt_cli.report.collect import tables_with_runs
    from comt_cli.report.write import print_report, write_report

    named = recipes or tables_with_runs(runs, available_recipes())
    if not named:
        raise UserError(f"there are no runs below {runs}", "comt train-lm --recipe table3.yaml makes some.")
    written = []
    for name in named:
        try:
            planned = plan_recipe(name, scale, set_, rows=rows, columns=columns, seeds=seeds)
        except RecipeError as error:
            if recipes:
                raise
            typer.echo(f"comt: {name} is left out: {error.message}", err=True)
            continue
        written.append(write_report(planned.loaded, planned.specs, runs, results, set_ or (), overwrite=overwrite))
    if as_json:
        typer.echo(json.dumps([made.as_json() for made in written], indent=2))
        return
    for position, made in enumerate(written):
        if position:
            typer.echo()
        print_report(made)
