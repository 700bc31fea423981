"""Everything that must survive a stop, in one file, and resuming from it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import mean_weights, read_own
from comt_cli.models.pretrained import merged, unmerged
from comt_cli.runs.plan import RunSpec
from comt_cli.training.parallel import full_tensors, shard_of
from comt_cli.training.tasks import TaskRun


@dataclass
class Counters:
    """Saved with every checkpoint. Seconds are of `timed_steps` steps, over all starts of the run; `tokens` are the
    targets seen; `best_value` is that of the task's first metric at `best_step` (`train.select`); `chosen` is 1 once
    the weights are those that the run ends with."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    timed_steps: int = 0
    waiting_seconds: float = 0.0
    metrics_bytes: int = 0
    timings_bytes: int = 0
    gradients_bytes: int = 0
    last_finite_loss: float | None = None
    best_value: float | None = None
    best_step: int | None = None
    chosen: int = 0


# ---- saving


def full_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool) -> dict[str, Any]:
    """`optimizer.state_dict()` as it is where nothing is sharded: one group, of all parameters in the model's order.
    All processes must take part; those that do not `keep` get no tensors."""
    parameters = list(model.parameters())
    states = {
        index: full_tensors(optimizer.state[parameter], keep=keep)
        for index, parameter in enumerate(parameters)
        if parameter in optimizer.state
    }
    group = optimizer.param_groups[0] | {"params": list(range(len(parameters)))}
    return {"state": states, "param_groups": [group]}


def random_states(device: torch.device) -> dict[str, Any]:
    """The state of every generator a step on `device` could draw from, as tensors and plain values."""
    state: Any = np.random.get_state()
    _, key, pos, has_gauss, gauss = state
    return {
        "python": random.getstate(),
        "numpy": {"key": key.tolist(), "pos": pos, "has_gauss": has_gauss, "gauss": gauss},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


# ---- resuming


def resume(path: Path, task: TaskRun[Any], optimizer: torch.optim.Optimizer) -> Counters:
    """Put the task's model, the optimiser and the random generators back to where the checkpoint at `path` left them.
    Returns the counters to resume from: those of step 0 where there is no checkpoint. Raises `UserError`."""
    spec, world, model = task.spec, task.world, task.model
    if not world.broadcast(path.exists()):
        return Counters()
    anew = f"Delete {path} so that the run starts over; or --fresh trains all runs of the command anew."
    if path.with_name("result.json").exists():
        anew = "The weights that the run ended with are lost: --fresh trains it anew."
    # Not onto the device, where it would take as much room again; on the CPU the optimiser would keep the file's pages.
    state = read_own(path, spec.id, anew, mapped=world.device.type == "cuda")
    with _restoring(path, anew):
        counters = Counters(**state["progress"])
    step = world.broadcast(counters.step)
    if counters.step != step:
        raise UserError(
            f"{path} is of step {counters.step} for process {world.rank}, and of step {step} for the first",
            "All processes must see the same run directory: put --runs on a file system that they share.",
        )
    with _restoring(path, anew):
        own = model.state_dict()
        weights = unmerged(state["model"], own)
        model.load_state_dict({name: shard_of(full, own.get(name, full)) for name, full in weights.items()})
        if state["optimizer"] is not None:
            load_optimizer_state(model, optimizer, state["optimizer"])
        restore_random_states(state["random"], world.device)
    return counters


def load_weights(paths: Sequence[Path], spec: RunSpec, model: nn.Module) -> None:
    """Give the model the mean of the weights in these files; all processes call it. Raises `UserError`."""
    means = mean_weights(paths, spec.id, "What the run needs to end is lost: train it anew with --fresh.")
    _give(model, model.state_dict(), means)


def merge_lora(model: nn.Module, spec: RunSpec) -> None:
    """Add what LoRA has learned to the matrices beside it; B is zero then. All processes call it."""
    if spec.settings.train.lora is not None:
        own = model.state_dict()
        _give(model, own, merged(full_tensors(own, keep=True), spec.settings.train))


def _give(model: nn.Module, own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    given = unmerged(weights, own)
    model.load_state_dict({name: shard_of(each.to(own[name].dtype), own[name]) for name, each in given.items()})


def load_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Put the optimiser back to where `full_optimizer_state` found it, each process taking its shard."""
    parameters = list(model.parameters())
    position = {parameter: index for index, parameter in enumerate(parameters)}
    states = {
        index: {
            # Only the count of steps is a number; all else has the parameter's shape, and is sharded like it.
            key: shard_of(value, parameters[index]) if value.dim() else value
            for key, value in state.items()
        }
        for index, state in saved["state"].items()
    }
    # What a group learns with is the run's settings, and the learning rate is set before every step.
    groups = [own | {"params": [position[each] for each in own["params"]]} for own in optimizer.param_groups]
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def restore_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Put every generator back to where it was."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    stored = states["numpy"]
    key = np.array(stored["key"], dtype=np.uint32)
    np.random.set_state(("MT19937", key, stored["pos"], stored["has_gauss"], stored["gauss"]))
    torch.set_rng_state(states["torch"].cpu())
    if device.type == "cuda" and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


@contextlib.contextmanager
def _restoring(path: Path, hint: str) -> Iterator[None]:
    """An intact checkpoint may still hold something else, which another version has written."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, AssertionError) as error:
        raise UserError(f"{path} cannot be restored: {type(error).__name__}: {first_line(error)}", hint) from error
