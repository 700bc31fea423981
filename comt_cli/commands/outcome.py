"""What follows training: a recipe's table with the figures beside it, or the figure that the recipe is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from comt_cli.campaign.outcomes import Summary
    from comt_cli.commands.planning import Planned
    from comt_cli.report.recipe_figure import RecipeFigure
    from comt_cli.report.write import Report


@dataclass(frozen=True)
class FigureState:
    """What there is to say of a figure's recipe, in a line.

    `figure` is there if it can be drawn and is not yet; `unwritten` if it is neither drawn nor can be.
    """

    text: str
    figure: RecipeFigure | None = None
    unwritten: bool = False


def write_outcome(
    planned: Planned,
    runs: Path,
    results: Path,
    *,
    overwrite: bool = False,
    draw: bool = True,
    shown: Planned | None = None,
) -> str | None:
    """Write and print the results of a plan's runs, below `results`. Files that are up to date are not written again.

    A table's recipe gets its table and the figures of its ablations, a figure's recipe its figure: drawing that needs
    torch; without `draw` only its state is printed. Of a table the rows and columns of the plan `shown` are printed, or
    all; all are written.

    Returns:
        Why nothing was written, which has been printed; None if it was, or is there as it should be.

    Raises:
        UserError, StorageError: a checkpoint cannot be read, or holds no such gates; a file cannot be written.
    """
    from comt_cli.commands.planning import with_contents
    from comt_cli.report.terminal import say, say_written
    from comt_cli.report.write import print_report

    planned = with_contents(planned, runs)
    if planned.loaded.recipe.figure is not None:
        state = figure_state(planned, runs, results, overwrite=overwrite)
        if state.figure is not None and draw:
            from comt_cli.analysis.verbs import draw_recipe

            say_written(draw_recipe(state.figure))
        else:
            say(state.text)
        return state.text if state.unwritten else None
    if planned.loaded.has_trials(planned.scale):
        from comt_cli.commands.sweep_outcome import write_sweep

        return write_sweep(planned, runs, results, overwrite=overwrite, shown=shown)
    report, drawn = _write_table(planned, runs, results, overwrite=overwrite)
    if report.unwritten is not None:
        say(report.unwritten, sys.stderr)
    print_report(report, shown=[(spec.row, spec.column) for spec in (shown or planned).specs])
    say_written(drawn)
    return report.unwritten


def write_outcomes(
    tables: Sequence[Planned],
    runs: Path,
    results: Path,
    *,
    overwrite: bool = False,
    shown: Sequence[Planned] | None = None,
) -> list[str]:
    """`write_outcome` for each of several plans, after training; one that cannot be written does not stop the others.

    Returns:
        Why tables and figures were not written; each reason has been printed.

    Raises:
        TrainingFailed: some could not be written; says which first. Its exit status is not that of bad input, which
            says that nothing was started.
        StorageError: a file cannot be written; says how to write it elsewhere.
        OSError: what was written cannot be printed.
    """
    from comt_cli.campaign.outcomes import TrainingFailed
    from comt_cli.errors import StorageError, UserError

    failed: list[UserError] = []
    unwritten: list[str | None] = []
    unprinted: OSError | None = None
    for position, (planned, part) in enumerate(zip(tables, shown or tables, strict=True)):
        try:
            if position:
                typer.echo()
            unwritten.append(write_outcome(planned, runs, results, overwrite=overwrite, shown=part))
        except StorageError as error:
            again = f"comt report {planned.loaded.file} --scale {planned.scale} --runs {runs} --results DIR"
            raise StorageError(
                error.message, f"No run is lost: with this command's other options, {again} writes it."
            ) from error
        except UserError as error:
            typer.echo(f"{planned.loaded.name} is not written: {error.message}", err=True)
            failed.append(error)
        except OSError as error:
            if error.filename is not None:
                raise
            unprinted = error  # nobody reads it any more: it is written, and so are those that follow
    if failed:
        raise TrainingFailed(failed[0].message, failed[0].hint)
    if unprinted is not None:
        raise unprinted
    return [reason for reason in unwritten if reason is not None]


def end(summary: Summary, unwritten: Sequence[str]) -> None:
    """The exit status of a command that trained: 1 where a run failed or is left, or something was not written.

    Raises:
        TrainingFailed: a run failed, or nobody has trained it.
    """
    summary.check()
    if unwritten:
        raise typer.Exit(1)


def check_results(tables: Sequence[Planned], results: Path) -> None:
    """Before training: raise `UserError` where the folder of a table or a figure cannot be written."""
    from comt_cli.files import check_writable

    for folder in dict.fromkeys(
        results / planned.scale / planned.loaded.folder.replace("/", "-") for planned in tables
    ):
        check_writable(folder, "--results")


def _kept(figure: RecipeFigure) -> str | None:
    """Why the figure that is there is not drawn over; None if it is."""
    reason = figure.of_another_recipe
    if reason is None and figure.is_there and figure.is_of_another_selection:
        reason = f"{figure.files[0]} is of another column or seed, or of more rows"
    if reason is None:
        return None
    return f"{reason}. Nothing is written: --results DIR draws the figure elsewhere, --overwrite in its place."


def outcome_as_json(
    planned: Planned, runs: Path, results: Path, *, overwrite: bool = False
) -> tuple[dict[str, Any], str | None]:
    """The same as plain data: a table is written, of a figure only the state is given. And why nothing was written."""
    from comt_cli.commands.planning import with_contents

    planned = with_contents(planned, runs)
    loaded = planned.loaded
    if loaded.has_trials(planned.scale):
        from comt_cli.commands.sweep_outcome import sweep_as_json

        return sweep_as_json(planned, runs, results, overwrite=overwrite)
    if loaded.recipe.figure is None:
        report = _write_table(planned, runs, results, overwrite=overwrite)[0]
        return report.as_json(), report.unwritten
    state = figure_state(planned, runs, results, overwrite=overwrite)
    who = {"title": loaded.recipe.title, "paper": loaded.folder, "figure": loaded.stem, "recipe": loaded.origin}
    return {**who, "scale": planned.scale, "state": state.text}, state.text if state.unwritten else None


def _write_table(planned: Planned, runs: Path, results: Path, *, overwrite: bool) -> tuple[Report, list[Path]]:
    """The table, and the figures that were drawn anew; none where the table was not written."""
    from comt_cli.report.write import write_exhibits, write_report

    report = write_report(planned.loaded, planned.specs, runs, results, overwrite=overwrite)
    if report.files is None:
        return report, []
    return report, write_exhibits("table", report.runs, planned.loaded, report.files)


def figure_state(planned: Planned, runs: Path, results: Path, *, overwrite: bool = False) -> FigureState:
    """How the figure of a recipe stands."""
    from comt_cli.recipe.load import available_recipes
    from comt_cli.report.recipe_figure import recipe_figure

    loaded = planned.loaded
    name = f"{loaded.name} ({planned.scale})"
    figure = recipe_figure(loaded, planned.specs, runs, results)
    if figure is None:
        text = f"{name} is not drawn: its row {loaded.recipe.baseline} was not selected."
        return FigureState(text, unwritten=True)
    if figure.is_fresh and not (overwrite and figure.undrawable is None):
        return FigureState(f"{name} is drawn: {figure.files[0]}")
    if figure.undrawable is not None:
        return FigureState(f"{name} is not drawn: {figure.undrawable}.", unwritten=True)
    if not overwrite and (kept := _kept(figure)) is not None:
        return FigureState(f"{name} is not drawn: {kept}", unwritten=True)
    recipe_said = loaded.name if available_recipes().get(loaded.name) == loaded.path else loaded.path
    command = f"comt {loaded.recipe.command} --recipe {recipe_said} --scale {planned.scale}"
    return FigureState(f"{name} is not drawn yet: {command} draws it.", figure)
