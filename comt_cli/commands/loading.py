"""What the verbs that need torch do before they import it: look at their arguments, and say what takes the time.

Importing torch takes seconds, in which nothing would be seen; a mistake in the arguments should not take them.
"""

from __future__ import annotations

import sys

import typer


def loading(what: str, device: str | None = None) -> None:
    """Say on the error stream that `what` is being loaded, unless torch is there already, and it takes no time.

    Raises:
        UserError: `device` is certainly not here.
    """
    from comt_cli.training.hardware import check_device_name

    check_device_name(device)
    if "torch" not in sys.modules:
        typer.echo(f"loading {what} ...", err=True)


def loading_model(source: str, device: str | None = None) -> None:
    """The same for the model at `source`. Raises `UserError` where the device or the model is certainly not there."""
    from comt_cli.exchange.sources import check_source
    from comt_cli.training.hardware import check_device_name

    check_device_name(device)
    check_source(source)
    loading("the model", device)
