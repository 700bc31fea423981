"""`comt train-lm`: train every run of a language-model recipe, and write its table."""

from __future__ import annotations

from pathlib import Path

from comt_cli.commands import options
from comt_cli.commands.train_recipe import Selection, Where, train_recipe


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
    results: options.Results = options.DEFAULT_RESULTS,
    overwrite: options.Overwrite = False,
    fresh: options.Fresh = False,
    dry_run: options.DryRun = False,
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
    selection = Selection(recipe, scale, rows, columns, seeds, set_, also)
    where = Where(device, gpus, jobs, slurm, track, runs, results)
    train_recipe("train-lm", selection, where, overwrite=overwrite, fresh=fresh, dry_run=dry_run)
