"""`comt train-lm`: train every run of a language-model recipe, and write its table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options


def train_lm(
    recipe: options.RecipeOption,
    scale: options.Scale = "smoke",
    rows: options.Rows = None,
    columns: options.Columns = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    device: options.Device = None,
    gpus: Annotated[int, typer.Option(min=1, help="Processes sharing every batch, one per GPU (or on the CPU).")] = 1,
    runs: options.Runs = Path("runs"),
    results: options.Results = Path("results"),
    overwrite: options.Overwrite = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew; earlier runs are moved aside, kept.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")] = False,
) -> None:
    """Train every run of a language-model recipe and write the table beside the paper's numbers.

    Finished runs are skipped and stopped ones go on, so the same command can always be given again. A table that is
    there already and has more finished runs, or was made with other settings than --set asks for, is kept.

    Examples:

      comt train-lm --recipe table3.yaml

      comt train-lm --recipe table3.yaml --rows pre-ln,pre-ln+comt --seeds 1-3

      comt train-lm --recipe table3.yaml --scale small --device cuda --set train.steps=2000
    """
    from comt_cli.commands.planning import plan_recipe

    planned = plan_recipe(recipe, scale, set_, rows=rows, columns=columns, seeds=seeds)
    if dry_run:
        from comt_cli.commands.show import print_plan

        print_plan(planned, runs, device)
        return

    from comt_cli.training.launch import train_on
    from comt_cli.training.table import is_main_process, set_aside

    if fresh and is_main_process():
        for moved in set_aside(planned.specs, runs):
            typer.echo(f"moved aside: {moved}", err=True)
    train_on(gpus, planned.specs, runs, device)
    if is_main_process():
        from comt_cli.report.write import print_report, write_report

        # The whole table, not only the part that was selected: training one row must not erase the others.
        table = plan_recipe(recipe, scale, set_, seeds=seeds)
        report = write_report(table.loaded, table.specs, runs, results, set_ or (), overwrite=overwrite)
        print_report(report)
