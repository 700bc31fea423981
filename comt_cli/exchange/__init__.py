"""Trained models in files: comt's checkpoints, Hugging Face folders, GGUF. This module does not import torch."""

from __future__ import annotations

import re
from pathlib import Path

from comt_cli.errors import UserError

ACCEPTED = (
    "Give a run (table3:pre-ln), a run directory, a checkpoint.pt, a Hugging Face folder (config.json and "
    "safetensors), a hub name (owner/model), or a .gguf file."
)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def check_source(source: str) -> None:
    """Raise `UserError` for a source that is certainly not a model, before it is read."""
    path = Path(source)
    if not path.exists() and not HUB_NAME.fullmatch(source):
        raise UserError(f"there is no model {source}", ACCEPTED)
    if (path / "spec.json").is_file() and not (path / "checkpoint.pt").is_file():
        raise UserError(f"{path} is a run without a checkpoint", "Train it, or wait until it has saved one.")
