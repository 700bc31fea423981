"""`comt reproduce`: every recipe there is, trained, tabled and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import options

if TYPE_CHECKING:
    from comt_cli.recipe.plan import RunSpec


def reproduce(
    scale: options.Scale = "smoke",
    papers: Annotated[str | None, typer.Option(metavar="A,B", help="Only these papers' recipes.")] = None,
    seeds: options.Seeds = None,
    device: options.Device = None,
    gpus: Annotated[int, typer.Option(min=1, help="Processes sharing every batch, one per GPU (or on the CPU).")] = 1,
    runs: options.Runs = Path("runs"),
    results: options.Results = Path("results"),
) -> None:
    """Train every recipe that has the scale, write its table, and draw what its networks do.

    Figures are of the first seed: the residual stream of the baseline and of every gated row, and the gates of the
    latter. What is done already is not done again.

    Example:

      comt reproduce --scale smoke
    """
    from comt_cli.commands.analyze_gates import analyze_gates
    from comt_cli.commands.figure_options import run_figure_folder
    from comt_cli.commands.planning import plan_recipe
    from comt_cli.commands.plot_cosine import plot_cosine
    from comt_cli.errors import UserError
    from comt_cli.recipe.load import available_recipes, select
    from comt_cli.recipe.run_directory import RunDirectory, RunState
    from comt_cli.report.write import print_report, write_report
    from comt_cli.training.launch import train_on
    from comt_cli.training.table import is_main_process

    recipes = available_recipes()
    chosen = select(papers, dict.fromkeys(name.partition("/")[0] for name in recipes), "paper")
    # Every recipe is checked before the first is trained.
    planned = [
        plan_recipe(path, scale, seeds=seeds) for name, path in recipes.items() if name.partition("/")[0] in chosen
    ]
    if not planned:
        raise UserError("there are no recipes to reproduce", "comt recipes lists where they are looked for.")
    for table in planned:
        train_on(gpus, table.specs, runs, device)
        if not is_main_process():
            continue
        print_report(write_report(table.loaded, table.specs, runs, results))
        for spec in _to_draw(table.specs, table.loaded.recipe.baseline):
            directory = RunDirectory.of(runs, spec)
            if directory.state() is not RunState.done or _is_newer(
                run_figure_folder(spec, results), directory.checkpoint_file
            ):
                continue
            plot_cosine(str(directory.path), results=results)
            if "sites" in spec.method:
                analyze_gates(str(directory.path), results=results)


def _to_draw(specs: list[RunSpec], baseline: str) -> list[RunSpec]:
    """The runs of the first seed whose figures are wanted: the baseline's, and those with gates."""
    first = specs[0].seed
    return [spec for spec in specs if spec.seed == first and (spec.row == baseline or "sites" in spec.method)]


def _is_newer(folder: Path, checkpoint: Path) -> bool:
    figures = list(folder.glob("*.png")) if folder.is_dir() else []
    return bool(figures) and min(path.stat().st_mtime for path in figures) > checkpoint.stat().st_mtime
