"""The file that training writes and everything else reads: one dictionary of tensors and plain values.

It is read with `weights_only=True`: a checkpoint from a stranger runs no code.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comt_cli.errors import UserError

FORMAT = 1
_ZIP = b"PK\x03\x04"
"""What a file of torch.save begins with."""
ACCEPTED = (
    "Give a checkpoint.pt or run directory of comt, a Hugging Face folder (config.json and safetensors), "
    "a hub name (owner/model), or a .gguf file."
)


def read_state(path: Path, device: torch.device | str = "cpu", *, mapped: bool = True) -> dict[str, Any]:
    """The dictionary of a checkpoint file, its tensors on `device`; nothing in it is executed.

    `mapped` tensors are read from the file when they are used, so that a model can be had without its optimizer's
    state, which is twice as large.

    Raises:
        UserError: the file is not there, cut short, foreign, or of another format; says what it holds.
    """
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}")
    with path.open("rb") as handle:
        start = handle.read(4)
    if start != _ZIP:
        raise UserError(f"{path} is not a checkpoint: it begins with {start!r}, not with {_ZIP!r}", ACCEPTED)
    try:
        # Foreign archives (TorchScript's) warn.
        with warnings.catch_warnings(action="ignore"):
            state = torch.load(path, map_location=device, weights_only=True, mmap=mapped)
    except Exception as error:  # torch.load has no error type of its own: zip, pickle, key and runtime errors all occur
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path} cannot be read as a checkpoint: {reason}", "It is cut short, or not of comt."
        ) from None
    if not isinstance(state, dict) or "spec" not in state or "model" not in state:
        raise UserError(f"{path} is not a checkpoint of comt: it holds {_what(state)}", ACCEPTED)
    if state.get("format") != FORMAT:
        raise UserError(f"{path} is a checkpoint of format {state.get('format')!r}; this comt reads format {FORMAT}")
    weights = state["model"]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()
        for name, tensor in weights.items()
    ):
        raise UserError(f"{path}: its model is {_what(weights)}, not floating-point tensors by name")
    if missing := [key for key in ("vocabulary", "tokenizer") if key not in state]:
        raise UserError(f"{path} lacks {' and '.join(missing)}")
    return state


def _what(value: Any) -> str:
    if isinstance(value, dict):
        if value and all(isinstance(item, Tensor) for item in value.values()):
            return f"{len(value)} tensors ({', '.join(map(str, list(value)[:3]))}, ...)"
        return f"a dictionary with {', '.join(map(str, list(value)[:6])) or 'nothing'}"
    return f"a {type(value).__name__}"
