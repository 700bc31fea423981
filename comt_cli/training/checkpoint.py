"""Everything that must survive a stop, in one dictionary and one file; and resuming from it.

A kill at any moment leaves one intact checkpoint. It holds tensors and plain values only and is read with
`weights_only=True`: a stranger's checkpoint runs no code.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from torch import nn

from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.exchange.average import mean_weights
from comt_cli.exchange.checkpoint import read_state, write_state
from comt_cli.runs.plan import RunSpec
from comt_cli.training.parallel import full_tensors, shard_of
from comt_cli.training.tasks.base import TaskRun

_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Seconds = Annotated[float, Field(ge=0, lt=2**63)]


@dataclass(config=ConfigDict(strict=True, extra="forbid"))
class Counters:
    """Saved with every checkpoint. Seconds are of `timed_steps` steps and nothing else, over all starts of the run.

    `tokens` counts the targets seen: an image classifier's are images. `best_value` is that of the task's first metric
    at `best_step` (`train.select`); `chosen` is 1 once the weights are those that the run ends with.
    """

    step: _Count = 0
    tokens: _Count = 0
    seconds: _Seconds = 0.0
    timed_steps: _Count = 0
    waiting_seconds: _Seconds = 0.0
    metrics_bytes: _Count = 0
    timings_bytes: _Count = 0
    gradients_bytes: _Count = 0
    last_finite_loss: float | None = None
    best_value: float | None = None
    best_step: int | None = None
    chosen: _Count = 0

    @classmethod
    def restored(cls, progress: object, steps: int) -> Self:
        """The counters of a checkpoint of a run of `steps` steps. Raises `ValueError` where they are not such."""
        if (
            not isinstance(progress, dict)
            or not {"step", "tokens", "metrics_bytes", "timings_bytes"} <= progress.keys()
        ):
            raise ValueError(f"lacks counters: {progress!r}")
        try:
            found = cls(**progress)
        except ValidationError as error:
            problem = error.errors()[0]
            raise ValueError(f"has a wrong {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
        if found.step > steps:
            raise ValueError(f"is of step {found.step:,}, and the run has {steps:,}")
        return found


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
    """Write the state after a step. `progress` has the counters of the loop; `optimizer` is None for a finished run;
    `parts` is what models of this kind need besides (`TaskRun.checkpoint_parts`). Where the model is sharded, all
    processes call this, and the one that `writes` gets the full tensors. Raises `StorageError`; the checkpoint written
    before is intact."""
    # First of all: asking a sharded model for its state shards again what an evaluation has left gathered.
    weights = full_tensors(model.state_dict(), keep=writes)
    optimizer_state = None if optimizer is None else full_optimizer_state(model, optimizer, keep=writes)
    if not writes:
        return
    state = {
        "spec": spec.model_dump(mode="json"),
        "id": spec.id,
        **parts,
        "model": weights,
        "optimizer": optimizer_state,
        "progress": progress,
        "random": random_states(next(model.parameters()).device),
    }
    write_state(path, state)


def save_weights(path: Path, spec: RunSpec, step: int, model: nn.Module, *, writes: bool = True) -> None:
    """Write the weights after a step alone, for `load_weights`. As for `save_checkpoint`, all processes call it."""
    weights = full_tensors(model.state_dict(), keep=writes)
    if writes:
        write_state(path, {"spec": spec.model_dump(mode="json"), "id": spec.id, "step": step, "model": weights})


def load_weights(paths: Sequence[Path], spec: RunSpec, model: nn.Module) -> None:
    """Give the model the mean of the weights in these files, which is taken in float64; all processes call it. Raises
    `UserError` where a file is gone, damaged, or another run's or architecture's."""
    hint = "What the run needs to end is lost: train it anew with --fresh."
    means = mean_weights(paths, spec.id, hint)
    own = model.state_dict()
    with _naming(paths[-1], "weights", hint):
        model.load_state_dict({name: shard_of(mean.to(own[name].dtype), own[name]) for name, mean in means.items()})


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


def random_states(device: torch.device) -> dict[str, Any]:
    """The state of every generator a step on `device` could draw from, as tensors and plain values. Other GPUs are left
    alone: asking for their states takes memory on each and ties the checkpoint to their number."""
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


def read_own(path: Path, run: RunSpec, hint: str, *, mapped: bool = True) -> tuple[dict[str, Any], Counters]:
    """The checkpoint of a run, and its counters. Raises `UserError` where it cannot be read, with `hint` unless it is
    not there; or is another run's, which must not be deleted."""
    try:
        state = read_state(path, mapped=mapped)
    except UserError as error:
        raise UserError(error.message, hint if path.exists() else error.hint) from None
    if state.get("id") != run.id:
        raise UserError(f"{path} belongs to run {state.get('id')}, not {run.id}", "Move it out of the run directory.")
    try:
        return state, Counters.restored(state.get("progress"), run.settings.train.steps)
    except ValueError as error:
        raise UserError(f"{path}: its progress {error}", hint) from None


def resume(path: Path, task: TaskRun[Any], optimizer: torch.optim.Optimizer) -> Counters:
    """Put the task's model, the optimiser and the random generators back to where the checkpoint at `path` left them.
    Returns the counters to resume from: those of step 0 where the main process sees no checkpoint. Raises `UserError`
    where it cannot be read, is another run's, or not the one that the main process sees."""
    spec, world, model = task.spec, task.world, task.model
    if not world.broadcast(path.exists()):
        return Counters()
    anew = f"Delete {path} so that the run starts over; or --fresh trains all runs of the command anew."
    if path.with_name("result.json").exists():
        anew = "The weights that the run ended with are lost: --fresh trains it anew."
    # Not onto the device: beside the model it would take as much room again. A GPU reads its shard straight from the
    # file; on the CPU the optimiser would keep using the file's own pages.
    state, counters = read_own(path, spec, anew, mapped=world.device.type == "cuda")
    step = world.broadcast(counters.step)
    if counters.step != step:
        raise UserError(
            f"{path} is of step {counters.step} for process {world.rank}, and of step {step} for the first",
            "All processes must see the same run directory: put --runs on a file system that they share.",
        )
    with _naming(path, "weights", anew):
        own = model.state_dict()
        model.load_state_dict({name: shard_of(full, own.get(name, full)) for name, full in state["model"].items()})
    with _naming(path, "optimizer's state", anew):
        if state["optimizer"] is not None:
            load_optimizer_state(model, optimizer, state["optimizer"])
    with _naming(path, "random states", anew):
        restore_random_states(state["random"], world.device)
    return counters


@contextlib.contextmanager
def _naming(path: Path, part: str, hint: str) -> Iterator[None]:
    """A checkpoint that is intact by its checksums may still hold something else: a `UserError` names the part."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, AssertionError) as error:
        reason = f"it has no {error.args[0]!r}" if isinstance(error, KeyError) and error.args else first_line(error)
        raise UserError(f"{path}: its {part} cannot be restored: {reason}", hint) from error
