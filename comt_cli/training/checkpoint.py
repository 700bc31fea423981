"""Everything that must survive a stop, in one file; resuming from it, and starting from another run's weights."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from torch import nn

from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import mean_weights, problem_of, read_state
from comt_cli.models.accounting import network_of
from comt_cli.models.build import model_of, new_parts
from comt_cli.models.pretrained import is_part, is_pretrained, merged, unmerged
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import NO_WEIGHTS, RunSpec, RunStart, WeightsStart
from comt_cli.training.parallel import full_tensors, shard_of
from comt_cli.training.published import check_published, load_published
from comt_cli.training.tasks import TaskRun

_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Seconds = Annotated[float, Field(ge=0, lt=2**63)]
Tensors = Mapping[str, torch.Tensor]  # by name


@dataclass(config=ConfigDict(strict=True, extra="forbid"))
class Counters:
    """Saved with every checkpoint. Seconds are of `timed_steps` steps, over all starts of the run; `tokens` are the
    targets seen; `best_value` is that of the task's first metric at `best_step` (`train.select`); `chosen` is 1 once
    the weights are those that the run ends with."""

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
        """The counters of a checkpoint of a run of `steps` steps. Raises `ValueError`."""
        if not isinstance(progress, dict) or not {"step", "tokens", "metrics_bytes", "timings_bytes"} <= set(progress):
            raise ValueError(f"lacks counters: {progress!r}")
        try:
            found = cls(**progress)
        except ValidationError as error:
            raise ValueError(f"has a wrong {problem_of(error)}") from None
        if found.step > steps:
            raise ValueError(f"is of step {found.step:,}, and the run has {steps:,}")
        return found


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
    state, counters = _read_own(path, spec, anew, mapped=world.device.type == "cuda")
    step = world.broadcast(counters.step)
    if counters.step != step:
        raise UserError(
            f"{path} is of step {counters.step} for process {world.rank}, and of step {step} for the first",
            "All processes must see the same run directory: put --runs on a file system that they share.",
        )
    with _naming(path, "weights", anew):
        own = model.state_dict()
        weights = unmerged(state["model"], own)
        model.load_state_dict({name: shard_of(full, own.get(name, full)) for name, full in weights.items()})
    with _naming(path, "optimizer's state", anew):
        if state["optimizer"] is not None:
            load_optimizer_state(model, optimizer, state["optimizer"])
    with _naming(path, "random states", anew):
        restore_random_states(state["random"], world.device)
    return counters


def load_weights(paths: Sequence[Path], spec: RunSpec, model: nn.Module) -> None:
    """Give the model the mean of the weights in these files; all processes call it. Raises `UserError`."""
    hint = "What the run needs to end is lost: train it anew with --fresh."
    means = mean_weights(paths, spec.id, hint)
    own = model.state_dict()
    with _naming(paths[-1], "weights", hint):
        _give(model, own, means)


def merge_lora(model: nn.Module, spec: RunSpec) -> None:
    """Add what LoRA has learned to the matrices beside it; B is zero then. All processes call it."""
    if spec.settings.train.lora is not None:
        own = model.state_dict()
        _give(model, own, merged(full_tensors(own, keep=True), spec.settings.train))


def _give(model: nn.Module, own: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
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


def _read_own(path: Path, run: RunSpec, hint: str, *, mapped: bool = True) -> tuple[dict[str, Any], Counters]:
    """The checkpoint of a run, and its counters; another run's must not be deleted."""
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


@contextlib.contextmanager
def _naming(path: Path, part: str, hint: str) -> Iterator[None]:
    """An intact checkpoint may still hold something else: a `UserError` names the part."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, AssertionError) as error:
        reason = f"it has no {error.args[0]!r}" if isinstance(error, KeyError) and error.args else first_line(error)
        raise UserError(f"{path}: its {part} cannot be restored: {reason}", hint) from error


# ---- starting from another run
# Every tensor of the started model is loaded or in a part that is `new`; every tensor of the source is taken or in a
# part that is dropped (`drop`). Nothing is skipped silently.


def check_starts(specs: Iterable[RunSpec]) -> None:
    """Raises `UserError` where models of sources and started runs do not fit, or their data."""
    seen = set()
    every = list(specs)
    check_published([spec for spec in every if isinstance(spec.start, WeightsStart)])
    for spec in every:
        start, given = spec.start, spec.settings.train.stored()
        of_added = [key for key in given if key.startswith("added_") or (key, given[key]) == ("pretrained", "frozen")]
        if of_added and start is not None and not new_parts(spec, model_of(spec)):
            said = f"train.{of_added[0]} is {given[of_added[0]]}, and nothing is added to its weights"
            raise _refused(spec, said, "Give it gates or another connection (start.new), or leave the key out.")
        if not isinstance(start, RunStart):
            continue
        if (wrong := spec.task.start_mismatch(spec.settings, start.run.settings)) is not None:
            raise _refused(spec, wrong, "Give both recipes the same settings there, or start from another run.")
        fitted = (network_of(spec), network_of(start.run), start.new, start.drop)
        if fitted not in seen:
            seen.add(fitted)
            loaded_names(spec, model_of(spec).state_dict(), model_of(start.run).state_dict())


def load_start(task: TaskRun[Any], directory: RunDirectory) -> None:
    """Give the task's model, which has its initial values, the weights that its source's last step has left, or
    published ones. `directory` is the started run's; its source is beside it. Raises `UserError`."""
    spec, model = task.spec, task.model
    if isinstance(spec.start, WeightsStart):
        load_published(spec.start, model)
        return
    assert spec.start is not None
    run, source = spec.start.run, RunDirectory(directory.path.with_name(spec.start.run.id))
    anew = f"comt {run.command} --fresh trains it anew, with the recipe {run.paper}/{run.table} at scale {run.scale}."
    result = source.result()
    if result is None:
        raise _refused(spec, "it is not done", f"comt {run.command} trains it.")
    if result["state"] == "diverged":
        raise _refused(spec, f"it diverged at step {result.get('diverged_at')}", NO_WEIGHTS)
    state, counters = _read_own(source.checkpoint_file, run, anew)
    if counters.step != run.settings.train.steps:
        raise _refused(spec, f"{source.checkpoint_file} is of step {counters.step:,}, and not of the last", anew)
    weights, own = state["model"], model.state_dict()
    loaded = loaded_names(spec, own, weights)
    here, there = task.checkpoint_parts().get("tokenizer"), state.get("tokenizer")
    # Equal settings can still mean other tokens: of other text another vocabulary of the same size is made.
    of_tokens = any(state.get("vocabulary") in weights[name].shape for name in loaded)
    if here is not None and there is not None and here != there and of_tokens:
        raise _refused(spec, "its tokens are other texts", anew)
    # Not strict, since `loaded_names` is: it has what is new missing, and nothing else.
    model.load_state_dict({name: shard_of(weights[name], own[name]) for name in loaded}, strict=False)


def _refused(spec: RunSpec, reason: str, hint: str) -> UserError:
    named = [f"{run.paper}/{run.table} {run.row}, {run.column}, seed {run.seed}" for run in (spec, *spec.sources[-1:])]
    own, source = (*named, spec.start.weights if isinstance(spec.start, WeightsStart) else "")[:2]
    return UserError(f"{own} cannot start from {source}: {reason}", hint)


def loaded_names(spec: RunSpec, own: Tensors, source: Tensors) -> list[str]:
    """The names of the tensors of a started model, `own`, that are loaded from those of a `source`. Raises `UserError`
    that names the tensors that do not fit."""
    assert isinstance(spec.start, RunStart)
    if wrong := list(_unfitting(spec.start, own, source)):
        hint = "start.new names the parts that the source lacks, start.drop those of its own that are not taken."
        raise _refused(spec, "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""), hint)
    return [name for name in own if is_pretrained(name, spec.start.new)]


def _unfitting(start: RunStart, own: Tensors, source: Tensors) -> Iterator[str]:
    for key, parts, names, whose in (("new", start.new, own, "the model"), ("drop", start.drop, source, "the source")):
        for part in parts:
            if not any(is_part(name, (part,)) for name in names):
                yield f"{key} names {part}, and {whose} has no such part"
    wanted = {name: list(own[name].shape) for name in own if is_pretrained(name, start.new)}
    given = {name: list(source[name].shape) for name in source if is_pretrained(name, start.drop)}
    for name in wanted | given:
        if wanted.get(name) != given.get(name):
            yield f"{name} is {given.get(name, 'not')} in the source, and {wanted.get(name, 'not')} in the model"
