"""`comt doctor`: a numbered preflight of this machine, with a fix for whatever is amiss."""

from __future__ import annotations

from typing import Annotated

import typer

from comt_cli.commands import options


def doctor(
    runs: options.Runs = options.DEFAULT_RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of lines.")] = False,
) -> None:
    """Check what training needs. Python, PyTorch, devices, precision, memory, disk, text, images, kernels, recipes.

    Continues after a failure, says how to fix each, and ends with status 1 if any check failed. Changes and downloads
    nothing.

    Examples:

      comt doctor

      comt doctor --runs /scratch/runs --json
    """
    from comt_cli.doctor.checks import print_checks

    if print_checks(runs, as_json=as_json):
        raise typer.Exit(1)
