"""`comt reproduce`: every recipe there is, trained, tabled and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options


def reproduce(
    scale: options.Scale = "smoke",
    papers: Annotated[str | None, typer.Option(metavar="A,B", help="Only these papers' recipes.")] = None,
    seeds: options.Seeds = None,
    device: options.Device = None,
    gpus: Annotated[int, typer.Option(min=1, help="Processes sharing every batch, one per GPU (or on the CPU).")] = 1,
    runs: options.Runs = Path("runs"),
    results: options.Results = Path("results"),
    overwrite: options.Overwrite = False,
) -> None:
    """Train every recipe that has the scale, write its table, and draw what its networks do.

    All recipes are checked before the first run; those without the scale are named and skipped.

    Figures are of the first seed: the residual stream of the baseline and of every gated row, and the gates of the
    latter. What is done already is not done again.

    Example:

      comt reproduce --scale smoke
    """
    from comt_cli.commands.analyze_gates import analyze_gates
    from comt_cli.commands.figure_options import run_figure_folder
    from comt_cli.commands.planning import plan_loaded
    from comt_cli.commands.plot_cosine import plot_cosine
    from comt_cli.errors import UserError
    from comt_cli.methods import methods
    from comt_cli.models.build import wiring_of
    from comt_cli.recipe.load import available_recipes, load_recipe, select
    from comt_cli.recipe.run_directory import RunDirectory, RunState
    from comt_cli.report.write import print_report, write_report
    from comt_cli.training.launch import train_on
    from comt_cli.training.table import is_main_process

    recipes = available_recipes()
    chosen = select(papers, dict.fromkeys(name.partition("/")[0] for name in recipes), "paper")
    planned = []
    for name, path in recipes.items():
        if name.partition("/")[0] not in chosen:
            continue
        loaded = load_recipe(path, methods(), scale=scale)
        if scale in loaded.recipe.scales:
            planned.append(plan_loaded(loaded, scale, seeds=seeds))
        elif is_main_process():
            typer.echo(f"skipped: {name} has no scale {scale}, only {', '.join(loaded.recipe.scales)}", err=True)
    if not planned:
        raise UserError(f"there are no recipes to reproduce at scale {scale}", "comt recipes lists what there is.")
    for table in planned:
        train_on(gpus, table.specs, runs, device)
        if not is_main_process():
            continue
        print_report(write_report(table.loaded, table.specs, runs, results, overwrite=overwrite))
        for spec in (spec for spec in table.specs if spec.seed == table.specs[0].seed):
            has_gates = bool(wiring_of(spec.method).gates)
            if not has_gates and spec.row != table.loaded.recipe.baseline:
                continue
            directory = RunDirectory.of(runs, spec)
            if directory.state() is not RunState.done or _is_newer(
                run_figure_folder(spec, results), directory.checkpoint_file
            ):
                continue
            plot_cosine(str(directory.path), results=results)
            if has_gates:
                analyze_gates(str(directory.path), results=results)


def _is_newer(folder: Path, checkpoint: Path) -> bool:
    figures = list(folder.glob("*.png")) if folder.is_dir() else []
    return bool(figures) and min(path.stat().st_mtime for path in figures) > checkpoint.stat().st_mtime
