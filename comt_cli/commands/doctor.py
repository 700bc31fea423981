"""`comt doctor`: a numbered preflight of this machine, with a fix for whatever is amiss."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import options

if TYPE_CHECKING:
    from comt_cli.doctor.checks import Outcome

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
    for number, check in enumerate(all_checks(runs), 1):
        outcome = run_check(number, check)
        outcomes.append(outcome)
        if not as_json:
            _print(outcome)
    if as_json:
        checks = [dataclasses.asdict(outcome) for outcome in outcomes]
        typer.echo(json.dumps({"checks": checks, "failed": _count(outcomes, "fail")}, indent=2))
    else:
        warnings, failed = _count(outcomes, "warn"), _count(outcomes, "fail")
        typer.echo(
            f"\n{len(outcomes)} checks: {len(outcomes) - warnings - failed} ok, {warnings} to look at, {failed} failed"
        )
    if _count(outcomes, "fail"):
        raise typer.Exit(1)


def _print(outcome: Outcome) -> None:
    status = typer.style(f"{outcome.status:4}", fg=_COLOURS[outcome.status])
    text = outcome.text.replace("\n", f"\n{' ' * 10}")
    typer.echo(f"{outcome.number:2}  {status}  {outcome.name}: {text}")
    if outcome.fix:
        typer.echo(f"          to fix it: {outcome.fix}")


def _count(outcomes: Sequence[Outcome], status: str) -> int:
    return sum(outcome.status == status for outcome in outcomes)
