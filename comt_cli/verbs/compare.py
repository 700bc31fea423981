"""Runs beside each other: two cells paired by seed, and the learning curves of a recipe's rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from comt_cli.errors import UserError
from comt_cli.recipe.problems import nearest
from comt_cli.report import format
from comt_cli.report.compare import HEADS, LAST, as_json, comparison, sides_frame
from comt_cli.report.exhibits.curves import Curves
from comt_cli.report.frame import cells_of, runs_frame
from comt_cli.report.sweep import read_sweep
from comt_cli.report.terminal import print_texts, say_written
from comt_cli.report.write import place, write_exhibit
from comt_cli.verbs.plan import Planned, also_rows, check_added, plan_recipe
from comt_cli.verbs.select import cell_directories

if TYPE_CHECKING:
    import pandas as pd


def print_comparison(
    baseline: str, run: str, runs: Path, scale: str | None, set_: Sequence[str] | None, *, in_json: bool
) -> None:
    """Compare two runs or cells. Raises `UserError` where a selector does not mean one."""
    named = {"baseline": baseline, "run": run}
    sides = {side: (text, cell_directories(text, runs, scale, set_)) for side, text in named.items()}
    frame = comparison(sides_frame(sides))
    if in_json:
        typer.echo(json.dumps(as_json(frame), indent=2))
        return
    for letter, side in zip("AB", frame.attrs["sides"], strict=True):
        plural = "s" * (len(side["ids"]) > 1)
        where = f"{side['table']}, {side['row']} at {side['column']}, scale {side['scale']}"
        typer.echo(f"{letter}: {where}, seed{plural} {format.seeds(side['ids'])}")
    for reason in frame.attrs["unfair"]:
        typer.echo(f"Not fair: {reason}.")
    for section, lines in frame.groupby("section", sort=False)["_texts"]:
        typer.echo()
        print_texts(HEADS[str(section)], lines)
    if "budgets" in {*frame["section"]}:
        typer.echo(f"A loss at a budget is the mean of what was logged in its last {LAST:.0%}; where one side has")
        typer.echo("more left, its rate has not fallen to the end there. Time is as measured, with the kernels used.")


def draw_curves(
    recipe: str,
    scale: str,
    rows: str | None,
    columns: str | None,
    seeds: str | None,
    set_: Sequence[str] | None,
    sweep: Sequence[str] | None,
    also: Sequence[str] | None,
    quantity: str,
    runs: Path,
    results: Path,
) -> None:
    """Draw the curves of a recipe's runs. Raises `UserError` where nothing was logged, or is chosen yet."""
    from comt_cli.report.figures.write import of_all

    added = also_rows(also)
    planned = plan_recipe(
        recipe, scale, set_, runs=runs, columns=columns, seeds=seeds, also=added, sweep=sweep, rows=rows
    )
    check_added(added, [planned.loaded])
    loaded, exhibit = planned.loaded, Curves(quantity)
    frame = exhibit.frame(_shown_runs(planned, runs))
    if frame.empty and frame.attrs["known"]:
        raise UserError(f"the logs have no {quantity}", nearest(quantity, frame.attrs["known"]))
    if frame.empty:
        raise UserError(
            f"no run of {loaded.name} at scale {scale} below {runs} has a log",
            f"comt {loaded.recipe.command} --recipe {recipe} --scale {scale} trains them; "
            "--runs, --set and --seeds, as they were given to the training, show others.",
        )
    name = exhibit.name
    if rows or columns or seeds or also:  # beside the recipe's own, not in its place
        name += f"-{of_all(spec.id for spec in planned.specs)}"
    folder, stem = place(results, scale, loaded.folder, f"{loaded.outputs(scale)}-{name}")
    say_written(write_exhibit(exhibit, frame, folder, stem, anew=True))
    for sentence in frame.attrs["findings"]:
        typer.echo(f"{sentence}.")


def _shown_runs(planned: Planned, runs: Path) -> pd.DataFrame:
    """The runs of every cell that are shown: of a grid those of the chosen point, of a sweep those at the own best. Of
    columns that show several metrics of the same runs the first.

    Raises:
        UserError: nothing is chosen yet; see also `frame.runs_frame`.
    """
    loaded, specs = planned.loaded, planned.with_contents(runs).specs
    nothing = UserError(f"nothing is chosen at scale {planned.scale} yet", "comt status says what is left to train.")
    if planned.has_trials:
        state = read_sweep(loaded, planned.scale, specs, runs)
        specs = [spec for each in state.shown["own"].values() for spec in each]
        if not specs:
            raise nothing
    frame = runs_frame(loaded, specs, runs)
    for (row, column), cell in cells_of(frame).items():
        if cell.is_open:
            typer.echo(f"comt: left out, since nothing is chosen yet: {row} at {column}", err=True)
    cells = zip(frame["_cell"], frame["_run"], strict=True)
    frame = frame[[not cell.is_open and run.chosen is not False for cell, run in cells]]
    if frame.empty:
        raise nothing
    columns: dict[tuple[str, ...], str] = {}
    for name, own in frame.groupby("column", sort=False):
        columns.setdefault(tuple(own["id"]), str(name))
    return frame[frame["column"].isin(columns.values())]
