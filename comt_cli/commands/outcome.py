"""What follows training: a recipe's table with the figures of its ablations, or the figure that the recipe is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from comt_cli.commands.planning import Planned
    from comt_cli.recipe.load import LoadedRecipe
    from comt_cli.recipe.schema import Figure as FigureSettings
    from comt_cli.report.recipe_figure import RecipeFigure
    from comt_cli.report.table import Table
    from comt_cli.report.write import Report


def write_outcome(
    planned: Planned,
    runs: Path,
    results: Path,
    overrides: Sequence[str] = (),
    *,
    overwrite: bool = False,
    draw: bool = True,
) -> None:
    """Write and print what the runs of a plan have come to, below `results`. What is there already is not made again.

    A table's recipe gets its table and the figures of its ablations, a figure's recipe its figure: drawing that needs
    torch, and without `draw` only its state is told. `overrides` are the `--set` arguments behind the plan.

    Raises:
        UserError, StorageError: a checkpoint cannot be read, or holds no such gates; a file cannot be written.
    """
    from comt_cli.commands.planning import with_contents
    from comt_cli.report.write import print_report

    planned = with_contents(planned, runs)
    if planned.loaded.recipe.figure is not None:
        state, figure = figure_state(planned, runs, results, overrides, overwrite=overwrite)
        if figure is not None and draw:
            for path in _write_recipe_figure(planned.loaded.recipe.figure, figure):
                typer.echo(f"wrote {path}")
        else:
            typer.echo(state)
        return
    report, drawn = _write_table(planned, runs, results, overrides, overwrite=overwrite)
    print_report(report)
    for path in drawn:
        typer.echo(f"wrote {path}")


def write_outcomes(
    tables: Sequence[Planned], runs: Path, results: Path, overrides: Sequence[str] = (), *, overwrite: bool = False
) -> None:
    """`write_outcome` for each of several plans, after training; one that cannot be written does not stop the others.

    Raises:
        TrainingFailed: some could not be written; says which first. Its exit status is not that of bad input, which
            says that nothing was started.
        StorageError: a file cannot be written.
    """
    from comt_cli.errors import StorageError, UserError
    from comt_cli.training.many.outcomes import TrainingFailed

    failed: list[UserError] = []
    for position, planned in enumerate(tables):
        if position:
            typer.echo()
        try:
            write_outcome(planned, runs, results, overrides, overwrite=overwrite)
        except StorageError:
            raise
        except UserError as error:
            recipe = planned.loaded.recipe
            typer.echo(f"{recipe.paper}/{recipe.table} is not written: {error.message}", err=True)
            failed.append(error)
    if failed:
        raise TrainingFailed(failed[0].message, failed[0].hint)


def outcome_as_json(
    planned: Planned, runs: Path, results: Path, overrides: Sequence[str] = (), *, overwrite: bool = False
) -> dict[str, Any]:
    """The same as plain data: a table is written, of a figure only the state is told."""
    from comt_cli.commands.planning import with_contents

    planned = with_contents(planned, runs)
    recipe = planned.loaded.recipe
    if recipe.figure is None:
        return _write_table(planned, runs, results, overrides, overwrite=overwrite)[0].as_json()
    state, _ = figure_state(planned, runs, results, overrides, overwrite=overwrite)
    who = {"title": recipe.title, "paper": recipe.paper, "figure": recipe.table, "recipe": planned.loaded.path.name}
    return {**who, "scale": planned.scale, "state": state}


def _write_table(
    planned: Planned, runs: Path, results: Path, overrides: Sequence[str], *, overwrite: bool
) -> tuple[Report, list[Path]]:
    """The table, and the figures that were drawn anew; none where the table was not written."""
    from comt_cli.report.write import write_report

    report = write_report(planned.loaded, planned.specs, runs, results, overrides, overwrite=overwrite)
    drawn = write_ablations(planned.loaded, report.table, results) if report.files is not None else []
    return report, drawn


def write_ablations(loaded: LoadedRecipe, table: Table, results: Path) -> list[Path]:
    """Draw those ablations of a table whose numbers are not those drawn already; returns the files that were written.

    `table` must be the one that was written: a table that is kept keeps its figures.
    """
    from comt_cli.report.ablation import ablation_data, ablation_stem

    written = []
    for name in loaded.recipe.ablations:
        data = ablation_data(loaded, table, name)
        if data is None:
            continue
        folder, stem = ablation_stem(results, table, name)
        text = data.csv()
        pictures = [folder / f"{stem}.png", folder / f"{stem}.pdf"]
        if _content(folder / f"{stem}.csv") == text and all(path.exists() for path in pictures):
            continue
        from comt_cli.report import figures

        written += figures.write_figure(figures.draw_ablation(data), text, folder, stem)
    return written


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def figure_state(
    planned: Planned, runs: Path, results: Path, overrides: Sequence[str] = (), *, overwrite: bool = False
) -> tuple[str, RecipeFigure | None]:
    """What there is to say of a figure's recipe, in a line; and the figure, if it can be drawn and is not yet."""
    from comt_cli.recipe.load import available_recipes
    from comt_cli.report.recipe_figure import recipe_figure

    recipe = planned.loaded.recipe
    name = f"{recipe.paper}/{recipe.table} ({planned.scale})"
    figure = recipe_figure(planned.loaded, planned.specs, runs, results)
    if figure is None:
        return f"{name} is not drawn: its row {recipe.baseline} was not selected.", None
    if figure.is_fresh:
        return f"{name} is drawn: {figure.files[0]}", None
    if figure.undrawable is not None:
        return f"{name} is not drawn: {figure.undrawable}.", None
    if not overwrite and figure.is_there and (overrides or figure.is_of_another_selection):
        where = "--results DIR draws it elsewhere, --overwrite in its place"
        return f"{name} is not drawn: {figure.files[0]} is of another column, seed or settings ({where}).", None
    by_name = f"{recipe.paper}/{recipe.table}"
    recipe_said = by_name if available_recipes().get(by_name) == planned.loaded.path else planned.loaded.path
    command = f"comt {recipe.command} --recipe {recipe_said} --scale {planned.scale}"
    return f"{name} is not drawn yet: {command} draws it.", figure


def _write_recipe_figure(settings: FigureSettings, figure: RecipeFigure) -> list[Path]:
    from comt_cli.files import write_text
    from comt_cli.report.csv_tables import runs_csv
    from comt_cli.report.figures import write_figure

    drawn, frame = _draw(settings, figure)
    written = write_figure(drawn, frame, figure.folder, figure.stem)
    write_text(figure.runs_csv, runs_csv(figure.runs))  # last: it says which runs the others are of
    return [*written, figure.runs_csv]


def _draw(settings: FigureSettings, figure: RecipeFigure) -> tuple[Figure, pd.DataFrame]:
    """The drawing that the recipe asks for, from what its runs left, and the numbers that were drawn."""
    from comt_cli.report import figures

    if settings.draw == "conv-gradients":
        from comt_cli.analysis.conv_gradients import conv_gradients

        return figures.draw_conv_gradients(conv_gradients(figure.directories))
    if settings.draw == "block-gradients":
        from comt_cli.analysis.block_gradients import block_gradients
        from comt_cli.models.load_image import load_image_model

        models = {row: load_image_model(directory.path) for row, directory in figure.directories.items()}
        return figures.draw_block_gradients(block_gradients(models))
    (directory,) = figure.directories.values()
    if settings.draw == "residual-shares":
        from comt_cli.analysis.residual_shares import residual_shares
        from comt_cli.models.load_image import load_image_model

        return figures.draw_residual_shares(residual_shares(load_image_model(directory.path)))
    return _draw_language_model(settings, directory.path)


def _draw_language_model(settings: FigureSettings, path: Path) -> tuple[Figure, pd.DataFrame]:
    from comt_cli.analysis.gates import channel_frame, gate_values, scalar_frame
    from comt_cli.analysis.residual_stream import residual_stream
    from comt_cli.errors import UserError
    from comt_cli.models.load import load_model
    from comt_cli.report import figures

    model = load_model(path)
    if settings.draw == "residual-stream":
        return figures.draw_residual_stream(residual_stream(model, settings.text))
    values = gate_values(model, settings.text)
    if settings.draw == "channel-gates":
        assert settings.site is not None  # the schema sees to that
        return figures.draw_gate_surfaces(channel_frame(values, settings.site, figures.MAX_CHANNELS), settings.site)
    if not values.sites("scalar"):
        raise UserError(f"{model.name} has no scalar gates to draw", "draw: channel-gates draws the others.")
    return figures.draw_gate_lines(scalar_frame(values))
