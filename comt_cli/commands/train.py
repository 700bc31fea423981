"""The verbs that train: one for every task, with the same options. They train every run of a recipe and write its
table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from comt_cli.commands import options
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
        runs: options.Runs = options.DEFAULT_RUNS,
        results: options.Results = options.DEFAULT_RESULTS,
        overwrite: options.Overwrite = False,
        fresh: options.Fresh = False,
        dry_run: options.DryRun = False,
    ) -> None:
        from comt_cli.verbs.cost import Where
        from comt_cli.verbs.train import train_recipe

        named = options.one_of(recipe_, recipe, "--recipe", f"comt {task.command} {recipe}")
        if named is None:
            raise UserError("no recipe was given", f"comt recipes lists them; then comt {task.command} RECIPE")
        where = Where(runs, results, device, gpus, jobs, slurm, track, overwrite)
        selected = (rows, columns, seeds, set_, sweep, also)
        train_recipe(task.command, named, scale, *selected, where, fresh=fresh, dry_run=dry_run)

    train.__doc__ = type(task).__doc__
    return train


def end_of_torchrun(code: str | int | None) -> None:
    """End this process with the status of a `SystemExit` of `code`, if it is one of torchrun's that has trained: its
    threads outlive that (see `end_process`). Any other is left to its interpreter."""
    if "TORCHELASTIC_RUN_ID" in os.environ and "torch.distributed" in sys.modules:
        from comt_cli.training.processes import end_process

        end_process(code if isinstance(code, int) else int(code is not None))
