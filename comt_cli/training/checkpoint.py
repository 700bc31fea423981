"""Save and resume a run: everything that must survive an interruption, in one file."""

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
    """Counters saved with every checkpoint. Seconds cover `timed_steps` steps over all starts of the run. `tokens` are
    the targets seen. `best_value` is the value of the task's first metric at `best_step` (`train.select`). `chosen` is
    1 once the weights are the run's final ones."""

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
    """`optimizer.state_dict()` as without sharding: one group with all parameters in the model's order. All processes
    must call it; those that do not `keep` get no tensors."""
    parameters = list(model.parameters())
    states = {
        index: full_tensors(optimizer.state[parameter], keep=keep)
        for index, parameter in enumerate(parameters)
        if parameter in optimizer.state
    }
    group = optimizer.param_groups[0] | {"params": list(range(len(parameters)))}
    return {"state": states, "param_groups": [group]}


def random_states(device: torch.device) -> dict[str, Any]:
    """The state of every generator that a step on `device` may use, as tensors and plain values."""
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
    """Restore the task's model, the optimiser and the random generators from the checkpoint at `path`. Returns its
    counters; those of step 0 if there is no checkpoint. Raises `UserError`."""
    spec, world, model = task.spec, task.world, task.model
    if not world.broadcast(path.exists()):
        return Counters()
    anew = f"Delete {path} to start this run again, or use --fresh to start all runs of the command again."
    if path.with_name("result.json").exists():
        anew = "The run's final weights are lost; --fresh trains it again."
    # Not onto the device, where it would need as much memory again. On the CPU the optimiser would keep mapped pages.
    mapped = world.device.type == "cuda"
    state = read_own(path, spec.id, anew, mapped=mapped) if path.exists() else {"progress": {}}  # refused below
    with _restoring(path, anew):
        counters = Counters(**state["progress"])
    step = world.broadcast(counters.step)
    if counters.step != step:
        raise UserError(
            f"process {world.rank} found step {counters.step} in {path}, the first process step {step}",
            "All processes must see the same run directory; put --runs on a shared file system.",
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
    """Load the mean of the weights in these files into the model; all processes call it. Raises `UserError`."""
    means = mean_weights(paths, spec.id, "The run cannot end without this file; train it again with --fresh.")
    _give(model, model.state_dict(), means)


def merge_lora(model: nn.Module, spec: RunSpec) -> None:
    """Add the product of LoRA's matrices to the frozen weights, and set B to zero. All processes call it."""
    if spec.settings.train.lora is not None:
        own = model.state_dict()
        _give(model, own, merged(full_tensors(own, keep=True), spec.settings.train))


def _give(model: nn.Module, own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    given = unmerged(weights, own)
    model.load_state_dict({name: shard_of(each.to(own[name].dtype), own[name]) for name, each in given.items()})


def load_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore the optimiser from `full_optimizer_state`; each process takes its shard."""
    parameters = list(model.parameters())
    position = {parameter: index for index, parameter in enumerate(parameters)}
    states = {
        index: {
            # Only the step count is a scalar; the other states have the parameter's shape and sharding.
            key: shard_of(value, parameters[index]) if value.dim() else value
            for key, value in state.items()
        }
        for index, state in saved["state"].items()
    }
    # The groups' hyperparameters come from the run's settings, and the learning rate is set before every step.
    groups = [own | {"params": [position[each] for each in own["params"]]} for own in optimizer.param_groups]
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def restore_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Restore every generator."""
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
    """Report entries that another version of comt wrote in an intact checkpoint."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, AssertionError) as error:
        raise UserError(f"{path} cannot be restored: {type(error).__name__}: {first_line(error)}", hint) from error
