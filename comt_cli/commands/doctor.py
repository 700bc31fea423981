"""`comt doctor`: a numbered preflight of this machine, with a fix for whatever is amiss."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    runs: options.Runs = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of lines.")] = False,
) -> None:
    """Check what training needs. Python, PyTorch, devices, precision, memory, disk, text, images, kernels, recipes.

    Continues after a failure, says how to fix each, and ends with status 1 if any check failed. Changes and downloads
    nothing.

    Examples:

      comt doctor

      comt doctor --runs /scratch/runs --json
    """
    from comt_cli.doctor.checks import all_checks, run_check

    outcomes = []
    for number, (name, check) in enumerate(all_checks(runs).items(), 1):
        found = run_check(check)
        outcomes.append({"number": number, "name": name, **dataclasses.asdict(found)})
        if not as_json:
            status = typer.style(f"{found.status:4}", fg=_COLOURS[found.status])
            text = found.text.replace("\n", f"\n{' ' * 10}")
            typer.echo(f"{number:2}  {status}  {name}: {text}")
            if found.fix:
                typer.echo(f"          to fix it: {found.fix}")
    counts = Counter(outcome["status"] for outcome in outcomes)
    if as_json:
        typer.echo(json.dumps({"checks": outcomes, "failed": counts["fail"]}, indent=2))
    else:
        counted = f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed"
        typer.echo(f"\n{len(outcomes)} checks: {counted}")
    if counts["fail"]:
        raise typer.Exit(1)
