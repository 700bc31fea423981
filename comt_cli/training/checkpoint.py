"""Everything that must survive a stop, in one dictionary and one file.

The file is written beside the old one, flushed, and renamed over it: a kill at any moment leaves one whole checkpoint.
It holds tensors and plain values only and is read with `weights_only=True`: a stranger's checkpoint runs no code.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from comt_cli.data import Dataset
from comt_cli.files import atomic_file
from comt_cli.models.checkpoint_file import FORMAT
from comt_cli.recipe.plan import RunSpec


def save_checkpoint(
    path: Path,
    spec: RunSpec,
    dataset: Dataset,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    progress: dict[str, Any],
) -> None:
    """Write the state after a step. `progress` has the counters of the loop; `optimizer` is None for a finished run.

    Raises:
        StorageError: the disk is full or the folder gone; the checkpoint written before is whole.
    """
    state = {
        "format": FORMAT,
        "spec": spec.model_dump(mode="json"),
        "id": spec.id,
        "vocabulary": spec.settings.data.vocabulary_size,
        "tokenizer": dataset.tokenizer.to_json(),
        "data": dataset.content_hash,
        "model": model.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "progress": progress,
        "random": random_states(),
    }
    with atomic_file(path) as handle:
        torch.save(state, handle)


def random_states() -> dict[str, Any]:
    """The state of every random generator a step could draw from, as tensors and plain values."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    return {
        "python": random.getstate(),
        "numpy": {
            "key": numpy_state["state"]["key"].tolist(),
            "pos": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Put every generator back to where it was."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    stored = states["numpy"]
    key = np.array(stored["key"], dtype=np.uint32)
    np.random.set_state(("MT19937", key, stored["pos"], stored["has_gauss"], stored["gauss"]))
    torch.set_rng_state(states["torch"].cpu())
    if torch.cuda.is_available() and states["cuda"]:
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
