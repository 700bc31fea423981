"""`comt report`, also called after training: writes a recipe's table with its figures, or the figure of a recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.campaign.queue import TrainingFailed
from comt_cli.commands import options
from comt_cli.commands.options import Selection
from comt_cli.errors import StorageError, UserError
from comt_cli.files import write_text
from comt_cli.recipe.find import MARK, available_recipes
from comt_cli.recipe.merge import OF_TEST
from comt_cli.recipe.problems import RecipeError
from comt_cli.report.collect import ENDED, tables_with_runs
from comt_cli.report.exhibits.evaluations import Evaluations, grids
from comt_cli.report.exhibits.sweep import Rates, read_sweep, sweep_frame, texts, whole_columns
from comt_cli.report.frame import frame_csv
from comt_cli.report.terminal import print_texts, say, say_written
from comt_cli.report.write import Report, print_report, recipe_figure, table_csv, write_exhibits, write_report
from comt_cli.runs.directory import RunDirectory
from comt_cli.streams import let_go
from comt_cli.verbs.plan import Planned, also_rows, check_added, plan_selected

_PAGE = " from its tables; write no table unless RECIPE is given."


def report(
    recipes: options.Recipes = None,
    *,
    of: Selection,
    runs: options.Runs = options.DEFAULT_RUNS,
    results: options.Results = options.DEFAULT_RESULTS,
    overwrite: options.Overwrite = False,
    overview: Annotated[bool, typer.Option("--overview", help=f"Write <results>/README.md{_PAGE}")] = False,
    html: Annotated[bool, typer.Option("--html", help=f"Write <results>/index.html, for a browser,{_PAGE}")] = False,
) -> None:
    """Write the tables of finished runs as CSV, Markdown and LaTeX, next to the papers' numbers.

    Without RECIPE, write every table that has runs. A table is kept if the new one lacks some of its finished runs.
    Runs with --set have a table of their own, such as table3@steps-200; that name is also a RECIPE. Figure recipes are
    drawn by training; here only their state is printed.

    Examples:
      comt report
      comt report table3 --scale small --seeds 1-3
    """
    planned = [] if (overview or html) and not recipes else _planned(recipes or [], of, runs)
    unwritten = []
    for plan in planned:
        unwritten.append(write_outcome(plan, runs, results, overwrite=overwrite, draw=False))
        if plan is not planned[-1]:
            typer.echo()
    from comt_cli.report.html.page import write_page
    from comt_cli.report.overview import write_overview
    from comt_cli.report.written import Reader

    reader = Reader()
    for write in ([write_overview] if overview else []) + ([write_page] if html else []):
        typer.echo(f"wrote {write(results, reader)}")
    for damaged in reader.damaged.values():
        typer.echo(f"comt: skipped a damaged file: {damaged}", err=True)
    reasons = [reason for reason in unwritten if reason is not None]
    if reader.damaged or (reasons and (recipes or len(reasons) == len(unwritten))):
        raise typer.Exit(1)


def _planned(recipes: Sequence[str], of: Selection, runs: Path) -> list[Planned]:
    """The named tables, or all tables with runs except broken ones."""
    every = () if recipes else tables_with_runs(runs, [*available_recipes()], of.scale, is_set=bool(of.set_))
    named = recipes or [name for name, _ in every]
    if not named:
        raise UserError(
            f"there are no runs of a shipped recipe below {runs}",
            "To begin: comt train-lm table3. For your own recipe: comt report FILE. comt runs lists all runs.",
        )
    planned = []
    for name in named:
        try:
            planned.append(plan_selected(name, of, runs=runs, also_fits_all=bool(recipes)))
        except UserError as error:
            if recipes or not (isinstance(error, RecipeError) or MARK in name):
                raise
            typer.echo(f"comt: skipped {name}: {error.message}", err=True)
    if planned:
        check_added(also_rows(of.also), (plan.loaded for plan in planned))
    return planned


def write_outcome(
    planned: Planned,
    runs: Path,
    results: Path,
    *,
    overwrite: bool = False,
    draw: bool = True,
    shown: Planned | None = None,
) -> str | None:
    """Write below `results` and print the results of a plan's runs: a table with the figures of its ablations, or the
    figure of a figure recipe (without `draw`, which needs torch, only its state). The whole table is written; the rows
    and columns of `shown` are printed (default: all; with changed settings, those that have runs). For a sweep the
    trials are printed too. Returns the printed reason if nothing was written, else None. Raises `UserError` or
    `StorageError` if a checkpoint cannot be read or a file cannot be written."""
    planned = planned.with_contents(runs)
    loaded = planned.loaded
    if loaded.recipe.figure is not None:
        return _draw_figure(planned, runs, results, overwrite=overwrite, draw=draw)
    chosen = (shown or planned).specs
    if shown is None and loaded.changed(planned.scale):  # with --set often only some rows are trained
        chosen = [spec for spec in chosen if RunDirectory.of(runs, spec).path.exists()] or chosen
    cells = {(spec.row, spec.column) for spec in chosen}
    written: list[Path] = []
    if planned.has_trials:
        table, unwritten, written = _write_sweep(planned, runs, results, overwrite=overwrite, shown=cells)
    else:
        table = write_report(loaded, planned.specs, runs, results, overwrite=overwrite)
        unwritten = table.unwritten
        if table.csv is not None:
            written = write_exhibits("table", table.runs, table.csv)
    if unwritten is not None:
        say(unwritten, sys.stderr)
    if table is not None:
        if planned.has_trials:
            say("")
        print_report(table, shown=cells)
        if not (tasks := Evaluations().frame(table.runs)).empty:
            say("")
            say(" ".join(Evaluations().sentences(tasks)))
            for head, *lines in grids(tasks):
                print_texts(head, lines)
    say_written(written)
    return unwritten


def _write_sweep(
    planned: Planned, runs: Path, results: Path, *, overwrite: bool, shown: set[tuple[str, str]]
) -> tuple[Report | None, str | None, list[Path]]:
    """Write the table of a sweep at every row's own best, and print the trials. Returns the table, the reason if none
    was written, and the other written files."""
    loaded, scale = planned.loaded, planned.scale
    state, csv = read_sweep(loaded, scale, planned.specs, runs), table_csv(results, scale, loaded)
    best, written = None, []
    if own := [spec for specs in whole_columns(state.shown["own"]).values() for spec in specs]:
        best = write_report(loaded, own, runs, results, overwrite=overwrite)
        unwritten, is_kept = best.unwritten, best.csv is None
        if not is_kept:
            written += write_exhibits("table", best.runs, csv)
    else:
        yet = "." if state.problems else " yet: every row has trials that have not ended."
        unwritten, is_kept = f"No value is chosen at scale {scale}{yet}", csv.exists() and not overwrite
        if is_kept:
            unwritten += (
                f" {csv} is kept: use --results DIR to write these trials elsewhere, --overwrite to replace it."
            )
    frame = sweep_frame(state, runs)
    trials = frame[frame["place"] == "trial"]
    if not is_kept and any(run.state in ENDED for run in trials["_run"]):
        written += write_exhibits("sweep", frame, csv)
        path = csv.with_name(f"{csv.stem}-trials.csv")
        write_text(path, frame_csv(trials.drop(columns="place"), without=OF_TEST))
        written.append(path)
    rates = Rates().frame(frame)
    head, *lines = texts(rates[[cell in shown for cell in zip(rates["row"], rates["column"], strict=True)]])
    say(f"{loaded.recipe.title} ({loaded.name}), sweep at scale {scale}")
    print_texts(head, lines, most=110)
    for sentence in Rates().sentences(rates):  # they include the reasons why values were not chosen
        say(sentence)
    return best, unwritten, written


def write_outcomes(
    tables: Sequence[Planned], runs: Path, results: Path, *, overwrite: bool, shown: Sequence[Planned]
) -> list[str]:
    """`write_outcome` for each of several plans, after training; one that fails does not stop the others. Returns the
    printed reasons why some were not written. Raises `TrainingFailed` if one failed, since the exit status of bad input
    would mean that nothing was started; `StorageError`, with the command that writes elsewhere, if a file cannot be
    written; `OSError` if the output cannot be printed."""
    failed: list[UserError] = []
    unwritten: list[str | None] = []
    unprinted: OSError | None = None
    for planned, part in zip(tables, shown, strict=True):
        try:
            unwritten.append(write_outcome(planned, runs, results, overwrite=overwrite, shown=part))
            if planned is not tables[-1]:
                typer.echo()
        except StorageError as error:
            again = f"comt report {planned.loaded.file} --scale {planned.scale} --runs {runs} --results DIR"
            hint = f"No run is lost. Write the table elsewhere, with the other options of this command: {again}"
            raise StorageError(error.message, hint) from error
        except UserError as error:
            typer.echo(f"comt: {planned.loaded.name} was not written: {error.message}", err=True)
            failed.append(error)
        except OSError as error:
            if error.filename is not None:
                raise
            unprinted = error  # the output is closed, but this table and the next ones are written
            let_go(sys.stdout)
    if failed:
        raise TrainingFailed(failed[0].message, failed[0].hint)
    if unprinted is not None:
        raise unprinted
    return [reason for reason in unwritten if reason is not None]


def _draw_figure(planned: Planned, runs: Path, results: Path, *, overwrite: bool, draw: bool) -> str | None:
    """Draw the figure of a figure recipe if necessary, and print its state. Returns the reason if it is not drawn."""
    loaded, name = planned.loaded, f"{planned.loaded.name} ({planned.scale})"
    figure = recipe_figure(loaded, planned.specs, runs, results)
    undrawn = None
    if figure is None:
        undrawn = f"{name} was not drawn: its row {loaded.recipe.baseline} was not selected."
    elif figure.is_fresh and not (overwrite and figure.undrawable is None):
        say(f"{name} is drawn: {figure.files[0]}")
    elif figure.undrawable is not None:
        undrawn = f"{name} was not drawn: {figure.undrawable}."
    elif figure.of_another is not None and not overwrite:
        instead = "Use --results DIR to draw it elsewhere, --overwrite to replace that figure."
        undrawn = f"{name} was not drawn: {figure.of_another}. {instead}"
    elif draw:
        from comt_cli.analysis.verbs import draw_recipe  # and torch

        say_written(draw_recipe(figure))
    else:
        recipe = loaded.name if available_recipes().get(loaded.name) == loaded.path else loaded.path
        say(f"{name} is not drawn yet. To draw it: comt {loaded.recipe.command} {recipe} --scale {planned.scale}")
    if undrawn is not None:
        say(undrawn)
    return undrawn
