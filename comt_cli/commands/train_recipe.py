"""The verbs that train: one for every task, with the same options. They train every run of a recipe and write its
table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from comt_cli.commands import options
from comt_cli.commands.options import Selection, Where
from comt_cli.errors import UserError
from comt_cli.tasks import Task


def training_verb(task: Task[Any]) -> Callable[..., None]:
    """The function of a task's verb; its help is the docstring of the task."""

    def train(
        recipe_: options.RecipeOrOption = None,
        *,
        recipe: options.RecipeOption = None,
        scale: options.Scale = "smoke",
        rows: options.Rows = None,
        columns: options.Columns = None,
        seeds: options.Seeds = None,
        set_: options.Set = None,
        sweep: options.Sweep = None,
        also: options.Also = None,
        device: options.Device = None,
        gpus: options.Gpus = 1,
        jobs: options.Jobs = None,
        slurm: options.Slurm = None,
        track: options.Track = None,
        runs: options.Runs = Path("runs"),
        results: options.Results = options.DEFAULT_RESULTS,
        overwrite: options.Overwrite = False,
        fresh: options.Fresh = False,
        dry_run: options.DryRun = False,
    ) -> None:
        named = options.one_of(recipe_, recipe, "--recipe", f"comt {task.command} {recipe}")
        if named is None:
            raise UserError("no recipe was given", f"comt recipes lists them; then comt {task.command} RECIPE")
        selection = Selection(named, scale, rows, columns, seeds, set_, also, sweep)
        where = Where(device, gpus, jobs, slurm, track, runs, results)
        train_recipe(task.command, selection, where, overwrite=overwrite, fresh=fresh, dry_run=dry_run)

    train.__doc__ = type(task).__doc__
    return train


def end_of_torchrun(code: str | int | None) -> None:
    """End this process with the status of a `SystemExit` of `code`, if it is one of torchrun's that has trained: its
    threads outlive that (see `end_process`). Any other is left to its interpreter."""
    if "TORCHELASTIC_RUN_ID" in os.environ and "torch.distributed" in sys.modules:
        from comt_cli.training.processes import end_process

        end_process(code if isinstance(code, int) else int(code is not None))


def train_recipe(
    command: str, selection: Selection, where: Where, *, overwrite: bool, fresh: bool, dry_run: bool
) -> None:
    """Train the runs selected of a recipe of `command` and write its table, or print the plan.

    Raises:
        UserError: the recipe is wrong, or another command's; nothing was started. See also `train_on`.
    """
    from comt_cli.campaign.executor import check_training
    from comt_cli.commands.outcome import check_results, end, write_outcomes
    from comt_cli.commands.plan_costs import Trained
    from comt_cli.commands.planning import also_rows, plan_loaded
    from comt_cli.commands.show import print_plan
    from comt_cli.commands.slurm_jobs import read_slurm_site, submit_runs
    from comt_cli.commands.sweep_training import check_edges, check_processes, known_runs, print_cost, train_planned
    from comt_cli.methods import catalogue
    from comt_cli.recipe.load import find_recipe, load_recipe
    from comt_cli.runs.known import adopt_contents
    from comt_cli.runs.shared import set_aside
    from comt_cli.training.processes import is_main_process
    from comt_cli.training.trackers import tracking

    recipe, scale, runs = selection.recipe, selection.scale, where.runs
    added = also_rows(selection.also)
    site = read_slurm_site(where.slurm, where.gpus, where.jobs) if where.slurm is not None else None
    loaded = load_recipe(
        find_recipe(recipe), catalogue(), selection.overrides or (), scale, added, sweep=selection.sweep or ()
    )
    _check_command(loaded.recipe.command, command, recipe)
    planned = plan_loaded(loaded, scale, rows=selection.rows, columns=selection.columns, seeds=selection.seeds)
    # The whole table, not only the part that is selected: training one row must not erase the others.
    table = plan_loaded(loaded, scale, seeds=selection.seeds)
    check_processes([planned])
    if dry_run:
        print_plan(planned, runs, Trained(where.device, where.jobs, where.gpus), fresh=fresh, site=site)
        return
    check_results([table], where.results)
    with tracking(where.track):
        if site is not None:
            print_cost([planned], runs, where)
            submit_runs(known_runs(planned, runs), runs, where.device, site, fresh=fresh)
            if loaded.has_trials(scale):
                typer.echo("When the trials have ended, the same command submits the runs at what they chose.")
            typer.echo(f"The table, of what is done: comt report {recipe} --scale {scale}, with the same options")
            check_edges([planned], runs)
            return
        if fresh and is_main_process():
            check_training(where.gpus, planned.specs, where.device, where.jobs)
            for moved in set_aside(adopt_contents(known_runs(planned, runs), runs, ambiguous=True), runs):
                typer.echo(f"moved aside: {moved}", err=True)
        summary = train_planned([planned], runs, where)
    unwritten: list[str] = []
    if is_main_process():
        unwritten = write_outcomes([table], runs, where.results, overwrite=overwrite, shown=[planned])
    summary.check()
    check_edges([planned], runs)
    end(summary, unwritten)


def _check_command(wanted: str, command: str, recipe: str) -> None:
    """Raise `UserError` where a recipe is another command's."""
    from comt_cli.recipe.load import also_called

    if wanted != command:
        others = also_called(recipe)
        instead = f"comt {wanted} --recipe {recipe}" + (f"\n  {others}" if others is not None else "")
        raise UserError(f"{recipe} is a recipe of comt {wanted}, not of comt {command}", instead)
