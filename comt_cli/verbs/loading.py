"""The word on what takes the time, before torch is imported: that takes seconds, in which nothing would be seen."""

from __future__ import annotations

import sys

import typer

from comt_cli.training.hardware import check_device_name


def loading(what: str, device: str | None = None) -> None:
    """Say on the error stream that `what` is being loaded, unless torch is there already. Raises `UserError` where
    `device` is certainly not here."""
    check_device_name(device)
    if "torch" not in sys.modules:
        typer.echo(f"loading {what} ...", err=True)
