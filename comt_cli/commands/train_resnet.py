"""`comt train-resnet`: train every run of an image-classifier recipe, and write its table."""

from __future__ import annotations

from pathlib import Path

from comt_cli.commands import options
from comt_cli.commands.train_recipe import Selection, Where, train_recipe


def train_resnet(
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
    """Train every run of an image-classifier recipe and write the table beside the paper's numbers.

    Finished runs are skipped and stopped ones go on, as with comt train-lm, whose options these are.

    At scale smoke the images are glyphs, drawn here. CIFAR is downloaded once; ImageNet is read from the folder that
    --set data.folder=DIR names.

    Examples:

      comt train-resnet --recipe table1.yaml

      comt train-resnet --recipe table1.yaml --rows baseline,pixel --seeds 1-3

      comt train-resnet --recipe sas/table4 --scale small --device cuda
    """
    selection = Selection(recipe, scale, rows, columns, seeds, set_, also)
    where = Where(device, gpus, jobs, slurm, track, runs, results)
    train_recipe("train-resnet", selection, where, overwrite=overwrite, fresh=fresh, dry_run=dry_run)
