"""`comt evaluate`: finished runs evaluated again, for what their results lack."""

from __future__ import annotations

from pathlib import Path

import typer

from comt_cli.commands import options
from comt_cli.commands.loading import loading


def evaluate(
    chosen: options.ManyRuns,
    device: options.Device = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
) -> None:
    """Evaluate finished runs again, for metrics that came later.

    The weights that a run has ended with are evaluated on its validation and test data, and what its result lacks is
    added to it. Nothing that is there changes:
    every value must come out as it was, but for rounding, else that is said and nothing is added. The result says what
    was added, when, and by which versions and commit; tables show it when they are written anew. What a run that ends
    with an average has of its last weights alone (last_test_...) cannot be had again.

    Examples:

      comt evaluate table3:pre-ln+comt

      comt evaluate sas/table3 --scale smoke
    """
    from comt_cli.commands.run_selectors import run_folders
    from comt_cli.errors import UserError
    from comt_cli.runs.directory import RunDirectory

    folders = [RunDirectory(path.parent if path.is_file() else path) for path in run_folders(chosen, runs, scale, set_)]
    # A run that was moved aside has the id of the one in its place. What is no run is told before torch is loaded.
    every = {(directory.spec().id, directory.path.resolve()): directory for directory in folders}
    loading("PyTorch", device)
    from comt_cli.training.again import NotAsBefore, evaluate_again
    from comt_cli.training.devices import pick_device
    from comt_cli.training.parallel import World

    refused = 0
    for directory in every.values():
        typer.echo(f"evaluating {directory.shown} ...", err=True)
        try:
            added, off = evaluate_again(directory, World(pick_device(device)))
        except UserError as error:
            if len(every) == 1:
                raise
            refused += 1
            typer.echo(f"comt: {error}", err=True)
            continue
        said = ", ".join(added) or "nothing, it lacks nothing"
        typer.echo(f"{directory.shown}: all as before (largest difference {off:.1e} of a value); added: {said}")
    if refused:
        raise NotAsBefore(f"{refused} of {len(every)} runs got nothing", "The lines above say why.")
