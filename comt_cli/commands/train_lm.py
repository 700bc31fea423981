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
    also: options.Also = None,
    device: options.Device = None,
    gpus: options.Gpus = 1,
    jobs: options.Jobs = None,
    slurm: options.Slurm = None,
    track: options.Track = None,
    runs: options.Runs = Path("runs"),
    results: options.Results = Path("results"),
    overwrite: options.Overwrite = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew; earlier runs are moved aside, kept.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")] = False,
) -> None:
    """Train every run of a language-model recipe and write the table beside the paper's numbers.

    Finished runs are skipped and stopped ones go on, so the same command can always be given again; on several
    machines that share the folder of the runs too, which then divide them. A run that fails does not stop the others.
    A table that is there already and has more finished runs, or was made with other settings than --set asks for, is
    kept.

    Examples:

      comt train-lm --recipe table3.yaml

      comt train-lm --recipe table3.yaml --rows pre-ln,pre-ln+comt --seeds 1-3

      comt train-lm --recipe table3.yaml --scale small --device cuda --set train.steps=2000

      comt train-lm --recipe table3.yaml --scale paper --slurm site.yaml --track tensorboard
    """
    from comt_cli.commands.planning import also_rows, plan_recipe
    from comt_cli.commands.slurm_jobs import read_slurm_site, submit_runs

    added = also_rows(also)
    site = read_slurm_site(slurm, gpus, jobs) if slurm is not None else None
    planned = plan_recipe(recipe, scale, set_, rows=rows, columns=columns, seeds=seeds, also=added)
    # The whole table, not only the part that is selected: training one row must not erase the others.
    table = plan_recipe(recipe, scale, set_, seeds=seeds, also=added)
    if dry_run:
        from comt_cli.commands.show import print_plan

        print_plan(planned, runs, device)
        return

    from comt_cli.commands.outcome import write_outcomes
    from comt_cli.recipe.shared_runs import set_aside
    from comt_cli.training.many.launch import check_training, train_on
    from comt_cli.training.processes import is_main_process
    from comt_cli.training.trackers import tracking

    with tracking(track):
        if site is not None:
            submit_runs(planned.specs, runs, device, site, fresh=fresh)
            typer.echo(f"The table, of what is done: comt report {recipe} --scale {scale}, with the same options")
            return
        if fresh and is_main_process():
            check_training(gpus, planned.specs, device, jobs)
            for moved in set_aside(planned.specs, runs):
                typer.echo(f"moved aside: {moved}", err=True)
        summary = train_on(gpus, planned.specs, runs, device, jobs)
    if is_main_process():
        write_outcomes([table], runs, results, set_ or (), overwrite=overwrite)
    summary.check()
