"""`comt report`: write the tables of finished runs beside the papers' numbers, and the overview of all of them."""

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
    sweep: options.Sweep = None,
    also: options.Also = None,
    runs: options.Runs = Path("runs"),
    results: options.Results = options.DEFAULT_RESULTS,
    overwrite: options.Overwrite = False,
    overview: Annotated[
        bool,
        typer.Option("--overview", help="Write <results>/README.md from the tables there; no others unless named."),
    ] = False,
    html: Annotated[
        bool,
        typer.Option(
            "--html", help="Write <results>/index.html from what is there, for a browser; no others unless named."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a table.")] = False,
) -> None:
    """Write the tables of finished runs. They are CSV, Markdown and LaTeX, with the papers' numbers beside them.

    Without recipes: every table that has runs, those of --set too. Missing, running and diverged cells say so. Seeds
    are the recipe's unless --seeds names others. Trains nothing. A table with finished runs that this one lacks is
    kept. Runs with --set have a table of their own, such as table3@steps-200, which is a name for them here, too. Of a
    recipe that is a figure it says whether it is drawn; training draws it.

    --overview writes what all tables below the results come to, at every scale, on one page. --html writes one file
    with every table, verdict and figure there, and the learning curves of the runs below --runs: it needs no network.

    Examples:

      comt report

      comt report table3.yaml --scale small --seeds 1-3

      comt report --overview

      comt report --html
    """
    from comt_cli.errors import UserError
    from comt_cli.recipe.find import MARK
    from comt_cli.recipe.load import available_recipes
    from comt_cli.recipe.problems import RecipeError
    from comt_cli.report.collect import tables_with_runs
    from comt_cli.runs.known import known_runs
    from comt_cli.verbs.outcome import outcome_as_json, write_outcome
    from comt_cli.verbs.plan import also_rows, check_added, plan_recipe
    from comt_cli.words import listing

    pages = overview or html
    if pages and as_json:
        raise UserError(
            f"{'--overview' if overview else '--html'} is a page, and --json prints tables", "Give one of them."
        )
    every = () if recipes or pages else tables_with_runs(runs, [*available_recipes()], scale, is_set=bool(set_))
    named = recipes or [name for name, _ in every]
    if not named and not pages:
        if own := {table for run in known_runs(runs) for table in run.tables}:
            raise UserError(
                f"the runs below {runs} are of no recipe that came with comt, but of {listing(sorted(own)[:12])}",
                "comt report FILE writes the table of a recipe file.",
            )
        raise UserError(f"there are no runs below {runs}", "comt train-lm --recipe table3.yaml makes some.")
    added, planned = also_rows(also), []
    for name in named:
        try:
            planned.append(
                plan_recipe(
                    name,
                    scale,
                    set_,
                    runs=runs,
                    rows=rows,
                    columns=columns,
                    seeds=seeds,
                    also=added,
                    also_fits_all=bool(recipes),
                    sweep=sweep,
                )
            )
        except UserError as error:
            if recipes or not (isinstance(error, RecipeError) or MARK in name):
                raise
            typer.echo(f"comt: {name} is left out: {error.message}", err=True)
    if planned:
        check_added(added, (plan.loaded for plan in planned))
    if as_json:
        made = [outcome_as_json(plan, runs, results, overwrite=overwrite) for plan in planned]
        typer.echo(json.dumps([data for data, _ in made], indent=2))
        _exit([reason for _, reason in made], named=bool(recipes))
        return
    unwritten = []
    for position, plan in enumerate(planned):
        if position:
            typer.echo()
        unwritten.append(write_outcome(plan, runs, results, overwrite=overwrite, draw=False))
    whole = _write_pages(results, runs, overview=overview, html=html)
    _exit(unwritten, named=bool(recipes))
    if not whole:
        raise typer.Exit(1)


def _write_pages(results: Path, runs: Path, *, overview: bool, html: bool) -> bool:
    """Whether no file had to be left out; one that had to is named."""
    from comt_cli.report.html.page import write_page
    from comt_cli.report.overview import write_overview
    from comt_cli.report.written import Reader

    reader = Reader()
    if overview:
        typer.echo(f"wrote {write_overview(results, reader)}")
    if html:
        typer.echo(f"wrote {write_page(results, runs, reader)}")
    for reason in reader.damaged.values():
        typer.echo(f"comt: {reason}; it is left out", err=True)
    return not reader.damaged


def _exit(unwritten: list[str | None], *, named: bool) -> None:
    """End with status 1 if a named table was not written, or, without names, if none was."""
    reasons = [reason for reason in unwritten if reason is not None]
    if reasons and (named or len(reasons) == len(unwritten)):
        raise typer.Exit(1)
