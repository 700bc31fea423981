"""Runs beside each other: two cells paired by seed, and the learning curves of a recipe's rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import options
from comt_cli.commands.options import OfRuns, Selection
from comt_cli.errors import UserError
from comt_cli.recipe.problems import nearest
from comt_cli.report import format
from comt_cli.report.compare import HEADS, LAST, as_json, comparison, sides_frame
from comt_cli.report.exhibits.curves import Curves
from comt_cli.report.frame import cells_of, runs_frame
from comt_cli.report.sweep import read_sweep
from comt_cli.report.terminal import print_texts, say_written
from comt_cli.report.write import place, write_exhibit
from comt_cli.verbs.plan import Planned, plan_selected
from comt_cli.verbs.select import cell_directories

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

_RUN = f"A run directory; {options.SELECTOR}. Without a seed all seeds of the cell."


def compare(
    baseline: Annotated[str, options.run_argument(_RUN, "BASELINE")],
    run: Annotated[str, options.run_argument("The same.", "RUN")],
    *,
    of: OfRuns,
    in_json: options.AsJson = False,
) -> None:
    """Compare two runs, or two cells over their seeds. Shows settings, metrics, costs, and the loss at equal budgets.

    Differences are of the second to the first, paired by seed, with the interval and the verdict that tables use, and
    what so many seeds would show. What makes the comparison unfair is said first. Trains nothing, writes nothing.

    Examples:

      comt compare table3:pre-ln table3:pre-ln+comt

      comt compare table3@steps-200:pre-ln table3@steps-200:pre-ln+comt

      comt compare table3:pre-ln::1 table3:pre-ln+comt::1 --json
    """
    named = {"baseline": baseline, "run": run}
    frame = comparison(sides_frame({side: (text, cell_directories(text, of)) for side, text in named.items()}))
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


def curves(
    recipe: options.RecipeArgument,
    *,
    of: Selection,
    quantity: Annotated[
        str, typer.Option(help="The loss of training, or what was logged on validation data.")
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
    from comt_cli.report.figures.write import of_all

    planned, exhibit = plan_selected(recipe, of, runs=runs), Curves(quantity)
    loaded = planned.loaded
    frame = exhibit.frame(_shown_runs(planned, runs))
    if frame.empty:
        if frame.attrs["known"]:
            raise UserError(f"the logs have no {quantity}", nearest(quantity, frame.attrs["known"]))
        hint = "--runs, --set and --seeds, as they were given to the training, show others."
        raise UserError(f"no run of {loaded.name} at scale {of.scale} below {runs} has a log", hint)
    name = exhibit.name
    if of.rows or of.columns or of.seeds or of.also:  # beside the recipe's own, not in its place
        name += f"-{of_all(spec.id for spec in planned.specs)}"
    folder, stem = place(results, of.scale, loaded.folder, f"{loaded.outputs(of.scale)}-{name}")
    say_written(write_exhibit(exhibit, frame, folder, stem, anew=True))
    for sentence in frame.attrs["findings"]:
        typer.echo(f"{sentence}.")


def _shown_runs(planned: Planned, runs: Path) -> pd.DataFrame:
    """The runs of every cell that are shown: of a grid those of the chosen point, of a sweep those at the own best. Of
    columns that show several metrics of the same runs the first. Raises `UserError` where nothing is chosen yet."""
    loaded, specs = planned.loaded, planned.with_contents(runs).specs
    if planned.has_trials:
        state = read_sweep(loaded, planned.scale, specs, runs)
        specs = [spec for each in state.shown["own"].values() for spec in each]
    frame = runs_frame(loaded, specs, runs) if specs else None
    if frame is not None:
        for (row, column), cell in cells_of(frame).items():
            if cell.is_open:
                typer.echo(f"comt: left out, since nothing is chosen yet: {row} at {column}", err=True)
        cells = zip(frame["_cell"], frame["_run"], strict=True)
        frame = frame[[not cell.is_open and run.chosen is not False for cell, run in cells]]
    if frame is None or frame.empty:
        raise UserError(f"nothing is chosen at scale {planned.scale} yet", "comt status says what is left to train.")
    columns: dict[tuple[str, ...], str] = {}
    for name, own in frame.groupby("column", sort=False):
        columns.setdefault(tuple(own["id"]), str(name))
    return frame[frame["column"].isin(columns.values())]
