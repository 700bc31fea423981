"""`comt curves`: the learning curves of a recipe's runs, and from when on its rows differ from the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import options

if TYPE_CHECKING:
    from comt_cli.commands.planning import Planned
    from comt_cli.report.curves import Cells


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
    runs: options.Runs = Path("runs"),
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
    from comt_cli.commands.planning import also_rows, check_added, plan_recipe
    from comt_cli.errors import UserError
    from comt_cli.recipe.problems import nearest
    from comt_cli.report.curves import curves_caption, findings, read_curves
    from comt_cli.report.write import place

    added = also_rows(also)
    planned = plan_recipe(
        recipe, scale, set_, runs=runs, columns=columns, seeds=seeds, also=added, sweep=sweep, rows=rows
    )
    check_added(added, [planned.loaded])
    cells, loaded = _cells(planned, runs), planned.loaded
    found, known = read_curves(cells, runs, loaded.recipe.baseline, quantity)
    if not found.drawn and known:
        raise UserError(f"the logs have no {quantity}", nearest(quantity, known))
    if not found.drawn:
        raise UserError(
            f"no run of {loaded.name} at scale {scale} below {runs} has a log",
            f"comt {loaded.recipe.command} --recipe {recipe} --scale {scale} trains them; "
            "--runs, --set and --seeds, as they were given to the training, show others.",
        )

    from comt_cli.report import figures
    from comt_cli.report.figures.folders import of_all
    from comt_cli.report.terminal import say_written

    frame = found.frame()
    label = "training loss" if quantity == "loss" else quantity.replace("_", " ")
    figure = figures.draw_curves(frame, found.unit, label, found.baseline)
    caption = curves_caption(found, loaded.recipe.title, loaded.changed(scale))
    figures.sign(figure, caption.trained)
    name = "curves" if quantity == "loss" else f"curves-{quantity}"
    if rows or columns or seeds or also:  # beside the recipe's own, not in its place
        name += f"-{of_all(spec.id for spec in planned.specs)}"
    folder, stem = place(results, scale, loaded.folder, f"{loaded.outputs(scale)}-{name}")
    say_written(figures.write_figure(figure, frame, folder, stem, caption))
    for sentence in findings(found):
        typer.echo(f"{sentence}.")


def _cells(planned: Planned, runs: Path) -> Cells:
    """The runs of every cell that are shown: of a grid those of the chosen point, of a sweep those at the own best. Of
    columns that show several metrics of the same runs the first.

    Raises:
        UserError: nothing is chosen yet; see also `Collection.check_contents`.
    """
    from comt_cli.commands.planning import with_contents
    from comt_cli.errors import UserError
    from comt_cli.report.collect import collect
    from comt_cli.report.sweep import read_sweep

    loaded, specs = planned.loaded, with_contents(planned, runs).specs
    grid = loaded.grids.get(planned.scale)
    if loaded.has_trials(planned.scale):
        state = read_sweep(loaded, planned.scale, specs, runs)
        specs = [spec for each in state.shown["own"].values() for spec in each]
        if not specs:
            raise UserError(
                f"nothing is chosen at scale {planned.scale} yet", "comt status says what is left to train."
            )
    found = collect(specs, runs, choose_by=None if grid is None else grid.metric, remarks=False)
    found.check_contents()
    for row, column in (name for name, cell in found.cells.items() if cell.is_open):
        typer.echo(f"comt: left out, since nothing is chosen yet: {row} at {column}", err=True)
    cells = {name: cell for name, cell in found.cells.items() if not cell.is_open}
    if not cells:
        raise UserError(f"nothing is chosen at scale {planned.scale} yet", "comt status says what is left to train.")
    columns: dict[tuple[str, ...], str] = {}
    for _, column in cells:
        ids = tuple(run.spec.id for (_, at), cell in cells.items() if at == column for run in cell.runs)
        columns.setdefault(ids, column)
    return {name: cell.runs for name, cell in cells.items() if name[1] in columns.values()}
