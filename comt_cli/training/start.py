"""Runs that start from another run's weights: what of these each parameter gets, and what must fit for that.

Every tensor of the started model is loaded, or lies in a part that is `new`; every tensor of the source is taken, or
lies in a part that is dropped (`drop`). Nothing is skipped silently: a model that was meant to be pre-trained and is
not would train all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from comt_cli.errors import UserError
from comt_cli.models.build import model_of
from comt_cli.models.cost import network_of
from comt_cli.recipe.problems import nearest
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import NO_WEIGHTS, RunSpec, RunStart
from comt_cli.training.checkpoint import read_own
from comt_cli.training.parallel import shard_of
from comt_cli.training.tasks.base import TaskRun

Shapes = Mapping[str, Sequence[int]]
"""Of the tensors of a model, by their names."""


def check_starts(specs: Iterable[RunSpec]) -> None:
    """Find out before anything is trained that the models of sources and started runs do not fit, or their data. Raises
    `UserError` with the first such run, and the tensors or settings."""
    seen = set()
    for spec in specs:
        start = spec.start
        if start is None:
            continue
        if (wrong := spec.task.start_mismatch(spec.settings, start.run.settings)) is not None:
            raise _refused(spec, wrong, "Give both recipes the same settings there, or start from another run.")
        key = (network_of(spec), network_of(start.run), start.new, start.drop)
        if key not in seen:
            seen.add(key)
            loaded_names(spec, _shapes(model_of(spec).state_dict()), _shapes(model_of(start.run).state_dict()))


def load_start(task: TaskRun[Any], directory: RunDirectory) -> None:
    """Give the task's model, which has its initial values, the weights that its source's last step has left; each
    process keeps its shard. `directory` is the started run's; its source is beside it.

    Raises:
        UserError: the source has not ended, has diverged, or its checkpoint is not there, damaged or another run's; or
            its tensors or its tokens are not those of the model.
    """
    spec, model = task.spec, task.model
    assert spec.start is not None
    state = _final_state(spec, RunDirectory(directory.path.with_name(spec.start.run.id)))
    weights, own = state["model"], model.state_dict()
    loaded = loaded_names(spec, _shapes(own), _shapes(weights))
    here, there = task.checkpoint_parts().get("tokenizer"), state.get("tokenizer")
    # Equal settings can still mean other tokens: of other text another vocabulary of the same size is made.
    of_tokens = any(state.get("vocabulary") in weights[name].shape for name in loaded)
    if here is not None and there is not None and here != there and of_tokens:
        raise _refused(spec, "its tokens are other texts", _anew(spec.start.run))
    # Not strict, since `loaded_names` is: it has what is new missing, and nothing else.
    model.load_state_dict({name: shard_of(weights[name], own[name]) for name in loaded}, strict=False)


def _final_state(spec: RunSpec, source: RunDirectory) -> Mapping[str, Any]:
    assert spec.start is not None
    run, result = spec.start.run, source.result()
    if result is None:
        raise _refused(spec, "it is not done", f"comt {run.command} trains it.")
    if result["state"] == "diverged":
        raise _refused(spec, f"it diverged at step {result.get('diverged_at')}", NO_WEIGHTS)
    state, counters = read_own(source.checkpoint_file, run, _anew(run))
    if counters.step != run.settings.train.steps:
        raise _refused(spec, f"{source.checkpoint_file} is of step {counters.step:,}, and not of the last", _anew(run))
    return state


def _refused(spec: RunSpec, reason: str, hint: str) -> UserError:
    start = spec.start
    assert start is not None
    own, source = (f"{run.paper}/{run.table} {run.row}, {run.column}, seed {run.seed}" for run in (spec, start.run))
    return UserError(f"{own} cannot start from {source}: {reason}", hint)


def _anew(run: RunSpec) -> str:
    return f"comt {run.command} --fresh trains it anew, with the recipe {run.paper}/{run.table} at scale {run.scale}."


def loaded_names(spec: RunSpec, own: Shapes, source: Shapes) -> list[str]:
    """The names of the tensors of a started model, of shapes `own`, that are loaded from a source of shapes `source`.
    Raises `UserError` that names tensors which are neither loaded nor new, of another shape, or not taken nor dropped,
    and parts without a tensor."""
    start = spec.start
    assert start is not None
    wrong = list(_unfitting(start, own, source))
    if wrong:
        hint = "start.new names the parts that the source lacks, start.drop those of its own that are not taken."
        raise _refused(spec, "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""), hint)
    return [name for name in own if not _is_in(name, start.new)]


def _unfitting(start: RunStart, own: Shapes, source: Shapes) -> Iterator[str]:
    for key, parts, names, whose in (("new", start.new, own, "the model"), ("drop", start.drop, source, "the source")):
        for part in parts:
            if not any(_is_in(name, (part,)) for name in names):
                known = dict.fromkeys(name.partition(".")[0] for name in names)
                yield f"{key} names {part}, and {whose} has no such part ({nearest(part, known)})"
    wanted = {name: list(shape) for name, shape in own.items() if not _is_in(name, start.new)}
    given = {name: list(shape) for name, shape in source.items() if not _is_in(name, start.drop)}
    for name, shape in wanted.items():
        if name not in given:
            dropped = ", whose tensor of this name is dropped" if name in source else ""
            yield f"{name} {shape} is not in the source{dropped}"
        elif given[name] != shape:
            yield f"{name} is {given[name]} in the source, and {shape} in the model"
    for name, shape in given.items():
        if name not in wanted:
            new = ", where it is new" if name in own else ""
            yield f"{name} {shape} of the source has no place in the model{new}"


def _is_in(name: str, parts: Iterable[str]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}
