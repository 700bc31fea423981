"""Going on from a checkpoint, if it is this run's and every process sees the same one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from comt_cli.data import Dataset
from comt_cli.errors import UserError
from comt_cli.models.checkpoint_file import read_state
from comt_cli.recipe.plan import RunSpec
from comt_cli.training.checkpoint import restore_random_states
from comt_cli.training.counters import Counters
from comt_cli.training.distribution import World


def resume(
    path: Path,
    spec: RunSpec,
    dataset: Dataset,
    world: World,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> Counters:
    """Put the model, the optimiser and the random generators back to where the checkpoint at `path` left them.

    Returns the counters to go on from: those of step 0 where the main process sees no checkpoint.

    Raises:
        UserError: the checkpoint cannot be read, is another run's, or not the one that the main process sees.
    """
    if not world.broadcast(path.exists()):
        return Counters()
    # Onto the CPU: beside the model on the device it would take as much room again.
    state = read_state(path, mapped=False)
    if state.get("id") != spec.id:
        raise UserError(f"{path} belongs to run {state.get('id')}, not {spec.id}", "Move it out of the run directory.")
    if state["data"] != dataset.content_hash:
        raise UserError(
            f"{path} was trained on other tokens than those prepared here",
            "The same text can give another vocabulary under another version of sentencepiece. "
            "Train anew with --fresh.",
        )
    counters = Counters(**state["progress"])
    step = world.broadcast(counters.step)
    if counters.step != step:
        raise UserError(
            f"{path} is of step {counters.step} for process {world.rank}, and of step {step} for the first",
            "All processes must see the same run directory: put --runs on a file system that they share.",
        )
    model.load_state_dict(state["model"])
    if state["optimizer"] is not None:
        optimizer.load_state_dict(state["optimizer"])
    restore_random_states(state["random"], world.device)
    return counters
