"""Options of the verbs that draw a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands.loading import loading_model

Text = Annotated[
    str | None,
    typer.Option(help="The text to observe the model on, 2 to 512 tokens; by default a sentence about a castle."),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the figures; below --results if not given.", file_okay=False)
]

OwnAxes = Annotated[
    bool,
    typer.Option(
        "--own-axes", help="Every panel has its own range of values and colours, instead of one range for all panels."
    ),
]


def chosen_model(source: str, runs: Path, scale: str | None, set_: Sequence[str] | None) -> str:
    """The model that `source` names or selects (see `model_source`), announced on the error stream before torch is
    imported. Raises `UserError` where it is certainly not there."""
    from comt_cli.commands.run_selectors import model_source

    found = model_source(source, runs, scale, set_)
    loading_model(found)
    return found
