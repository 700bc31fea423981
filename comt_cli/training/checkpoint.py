"""Everything that must survive a stop, in one dictionary and one file.

The file is written beside the old one, flushed, and renamed over it: a kill at any moment leaves one whole checkpoint.
It holds tensors and plain values only and is read with `weights_only=True`: a stranger's checkpoint runs no code.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import nn

from comt_cli.files import atomic_file
from comt_cli.models.checkpoint_file import FORMAT
from comt_cli.recipe.plan import RunSpec
from comt_cli.training.sharding import gathered, part_of


def save_checkpoint(
    path: Path,
    spec: RunSpec,
    parts: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    progress: dict[str, Any],
    *,
    writes: bool = True,
) -> None:
    """Write the state after a step. `progress` has the counters of the loop; `optimizer` is None for a finished run.
    `parts` is what models of this kind need besides (`Task.checkpoint_parts`).

    Where the model is cut among processes, all of them call this, and the one that `writes` is given the whole.

    Raises:
        StorageError: the disk is full or the folder gone; the checkpoint written before is whole.
    """
    # First of all: a sharded model that is asked for its state cuts again what an evaluation has left whole.
    weights = gathered(model.state_dict(), keep=writes)
    optimizer_state = None if optimizer is None else whole_optimizer_state(model, optimizer, keep=writes)
    if not writes:
        return
    state = {
        "format": FORMAT,
        "spec": spec.model_dump(mode="json"),
        "id": spec.id,
        **parts,
        "model": weights,
        "optimizer": optimizer_state,
        "progress": progress,
        "random": random_states(next(model.parameters()).device),
    }
    with atomic_file(path) as handle:
        writer = _Writer(handle)
        try:
            torch.save(state, writer)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise (writer.ended_by or error) from None


def whole_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool) -> dict[str, Any]:
    """`optimizer.state_dict()` as it is where nothing is cut: one group, of all parameters in the model's order.

    All processes must take part; those that do not `keep` get no tensors.
    """
    parameters = list(model.parameters())
    states = {
        index: gathered(optimizer.state[parameter], keep=keep)
        for index, parameter in enumerate(parameters)
        if parameter in optimizer.state
    }
    group = optimizer.param_groups[0] | {"params": list(range(len(parameters)))}
    return {"state": states, "param_groups": [group]}


def load_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Put the optimiser back to where `whole_optimizer_state` found it, each process taking its part."""
    parameters = list(model.parameters())
    position = {parameter: index for index, parameter in enumerate(parameters)}
    states = {
        index: {
            # Only the count of steps is a number; all else has the parameter's shape, and is cut as that is.
            key: part_of(value, parameters[index]) if value.dim() else value
            for key, value in state.items()
        }
        for index, state in saved["state"].items()
    }
    (group,) = saved["param_groups"]
    groups = [group | {"params": [position[each] for each in own["params"]]} for own in optimizer.param_groups]
    optimizer.load_state_dict({"state": states, "param_groups": groups})


class _Writer:
    """A file that remembers what ended its writing: of a full disk, and of a Ctrl-C, torch's archive writer makes an
    error of its own, that some offset was not reached."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self.ended_by: OSError | KeyboardInterrupt | None = None

    def write(self, content: Any) -> int:
        try:
            return self._handle.write(content)
        except (OSError, KeyboardInterrupt) as error:
            self.ended_by = error
            raise

    def flush(self) -> None:
        self._handle.flush()


def random_states(device: torch.device) -> dict[str, Any]:
    """The state of every generator a step on `device` could draw from, as tensors and plain values.

    Other GPUs are left alone: asking for their states takes memory on each and ties the checkpoint to their number.
    """
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
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Put every generator back to where it was; a state of a kind of device that is not `device` is left out."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    stored = states["numpy"]
    key = np.array(stored["key"], dtype=np.uint32)
    np.random.set_state(("MT19937", key, stored["pos"], stored["has_gauss"], stored["gauss"]))
    torch.set_rng_state(states["torch"].cpu())
    if device.type == "cuda" and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
