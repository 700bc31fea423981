"""Going on from a checkpoint, if it is this run's and every process sees the same one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.models.checkpoint_file import read_state
from comt_cli.training.checkpoint import load_optimizer_state, restore_random_states
from comt_cli.training.counters import Counters
from comt_cli.training.sharding import part_of
from comt_cli.training.task import Task


def resume(
    path: Path,
    task: Task[Any],
    optimizer: torch.optim.Optimizer,
) -> Counters:
    """Put the task's model, the optimiser and the random generators back to where the checkpoint at `path` left them.

    Returns the counters to go on from: those of step 0 where the main process sees no checkpoint.

    Raises:
        UserError: the checkpoint cannot be read, is another run's, or not the one that the main process sees.
    """
    spec, world, model = task.spec, task.world, task.model
    if not world.broadcast(path.exists()):
        return Counters()
    anew = f"Delete {path} so that the run starts over; or --fresh trains all runs of the command anew."
    # Not onto the device: beside the model it would take as much room again. A GPU is given its part straight from the
    # file; on the CPU the optimiser would go on with the file's own pages.
    try:
        state = read_state(path, mapped=world.device.type == "cuda")
    except UserError as error:
        if not path.exists():  # another process sees one
            raise
        raise UserError(
            error.message,
            anew,
        ) from None
    if state.get("id") != spec.id:
        raise UserError(f"{path} belongs to run {state.get('id')}, not {spec.id}", "Move it out of the run directory.")
    try:
        counters = Counters.restored(state.get("progress"), spec.settings.train.steps)
    except ValueError as error:
        raise UserError(f"{path}: its progress {error}", anew) from None
    step = world.broadcast(counters.step)
    if counters.step != step:
        raise UserError(
            f"{path} is of step {counters.step} for process {world.rank}, and of step {step} for the first",
            "All processes must see the same run directory: put --runs on a file system that they share.",
        )
    with _naming(path, "weights", anew):
        own = model.state_dict()
        model.load_state_dict({name: part_of(whole, own.get(name, whole)) for name, whole in state["model"].items()})
    with _naming(path, "optimizer's state", anew):
        if state["optimizer"] is not None:
            load_optimizer_state(model, optimizer, state["optimizer"])
    with _naming(path, "random states", anew):
        restore_random_states(state["random"], world.device)
    return counters


@contextlib.contextmanager
def _naming(path: Path, part: str, hint: str) -> Iterator[None]:
    """A checkpoint is whole by its checksums, and may all the same hold something else: say which part does not fit.

    Raises:
        UserError: in the place of whatever error comes of using the part; not where the device has no room for it.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, AssertionError) as error:
        said = f"it has no {error.args[0]!r}" if isinstance(error, KeyError) and error.args else first_line(error)
        raise UserError(f"{path}: its {part} cannot be restored: {said}", hint) from error
