"""Start from the weights of another run, or from published ones: checks, and initialisation of added parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.data.published import content_hash, located
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import misfits, read_own
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.layers.gates import Gate
from comt_cli.layers.initialise import Draw
from comt_cli.models.accounting import network_of
from comt_cli.models.build import empty_network, materialise, model_of, new_parts, wiring_of
from comt_cli.models.pretrained import is_part, is_pretrained
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec, RunStart, WeightsStart
from comt_cli.tasks.settings.language import ModelSettings, Settings
from comt_cli.training.parallel import shard_of
from comt_cli.training.tasks import TaskRun

Tensors = Mapping[str, Tensor]  # by name
HEAD_CHANNELS = 4  # of the small networks in comparisons
ROUNDING = 1e-4
"""Tolerance for the identity, relative to the largest output: some networks add in another order."""


def check_published(specs: Sequence[RunSpec]) -> None:
    """Raises `UserError` if the networks of runs do not match the published weights from which they start, or would
    compute another function although additions start at the identity."""
    weights: dict[str, LoadedModel] = {}
    networks = {(network_of(spec), spec.start): spec for spec in specs}
    for (_, start), spec in networks.items():
        assert isinstance(start, WeightsStart)
        if start.weights not in weights:
            weights = {start.weights: _read(start)}  # one at a time, because they are large
        found, settings = weights[start.weights].model, spec.settings_as(Settings)
        mine = _numbers(settings.model, settings.data.vocabulary_size)
        theirs_by_key = _numbers(found.settings, found.vocabulary).items()
        wrong = [f"{key} is {mine[key]}, theirs is {right}" for key, right in theirs_by_key if mine[key] != right]
        if keys := "; ".join(wrong):
            raise UserError(f"the network of {spec.row} at {spec.column} does not match {start.weights}: {keys}")
        own, theirs = model_of(spec).state_dict(), found.state_dict()
        if unfit := misfits(theirs, {name: tensor for name, tensor in own.items() if name in theirs}):
            said = f"{start.weights} do not fit the network of the row {spec.row} (method {spec.method_words}): {unfit}"
            raise UserError(said, "Use a method that keeps the plain network's parameters.")
        if start.added == "identity" and (reason := _changed(spec)) is not None:
            said = f"{spec.row} (method {spec.method_words}) would not start with the weights' function: {reason}"
            raise UserError(said, "To start as in the method's paper: start: {weights: ..., added: paper}.")


def _started(model: nn.Module, theirs: Mapping[str, Tensor], *, at_identity: bool = True) -> Gate | None:
    """Load weights into a model with additional parameters; returns the first of its gates that cannot start at one."""
    model.load_state_dict(theirs, strict=False)
    gates = [module for module in model.modules() if at_identity and isinstance(module, Gate)]
    return next((gate for gate in gates if not gate.start_at_one()), None)


def _read(start: WeightsStart) -> LoadedModel:
    path = located(start.weights)
    if start.content not in (None, content_hash(start.weights)):
        raise UserError(f"{path} has changed since the run was planned", "Run the same command again to plan anew.")
    return load(path, LoadedModel)


def _numbers(model: ModelSettings, vocabulary: int) -> dict[str, str]:
    others = {key: getattr(model, key) for key in ("tied_embeddings", "rope_theta", "norm_eps")}
    every = {f"model.{key}": each for key, each in (model.shape()._asdict() | others).items()}
    every["data.vocabulary"] = vocabulary
    # 7 digits: files store 1e-5 in fp32.
    return {key: f"{each:.7g}" if isinstance(each, float) else json.dumps(each) for key, each in every.items()}


def _changed(spec: RunSpec) -> str | None:
    """Why a network of the run's method, started at the identity, computes another function than the plain network;
    None if it does not. Compares random networks of the same depth with few channels. Their streams have small values,
    so that a difference in a norm's epsilon alone shows."""
    settings = spec.settings_as(Settings).model
    small = settings.model_copy(update={"width": HEAD_CHANNELS * settings.shape().heads, "ffn_width": 24})
    plain, gated = (
        empty_network(small, wiring_of(method), vocabulary=16, length=8)
        for method in ({"name": spec.task.plain_method}, spec.method)
    )
    for model in (plain, gated):
        materialise(model, torch.device("cpu"), seed=0)
    draw = Draw(0)
    for name, parameter in plain.state_dict().items():
        draw.normal_(parameter, name, 0.02 if parameter.ndim > 1 else 0.5)  # norms far from 1, as after training
    if (stuck := _started(gated, plain.state_dict())) is not None:
        return f"its {type(stuck).__name__} cannot start at 1"
    with torch.no_grad():
        expected, found = (model(torch.arange(16).view(2, 8)) for model in (plain, gated))
    off = float((found - expected).abs().max() / expected.abs().max())
    return None if off < ROUNDING else f"its outputs differ by {100 * off:.2g} %"


# ---- starting from another run
# Every tensor of the started model is loaded or in a `new` part; every tensor of the source is loaded or in a `drop`
# part. Nothing is skipped silently.


def check_starts(specs: Iterable[RunSpec]) -> None:
    """Raises `UserError` if the models or the data of sources and started runs do not match."""
    seen = set()
    every = list(specs)
    check_published([spec for spec in every if isinstance(spec.start, WeightsStart)])
    for spec in every:
        start, given = spec.start, spec.settings.train.stored()
        of_added = [key for key in given if key.startswith("added_") or (key, given[key]) == ("pretrained", "frozen")]
        if of_added and start is not None and not new_parts(spec, model_of(spec)):
            said = f"train.{of_added[0]} is {given[of_added[0]]}, but nothing is added to its weights"
            raise _refused(spec, said, "Add gates, another connection or start.new, or leave the key out.")
        if not isinstance(start, RunStart):
            continue
        if (wrong := spec.task.start_mismatch(spec.settings, start.run.settings)) is not None:
            raise _refused(spec, wrong, "Use equal settings in both recipes, or start from another run.")
        fitted = (network_of(spec), network_of(start.run), start.new, start.drop)
        if fitted not in seen:
            seen.add(fitted)
            loaded_names(spec, model_of(spec).state_dict(), model_of(start.run).state_dict())


def load_start(task: TaskRun[Any], directory: RunDirectory) -> None:
    """Load into the task's initialised model the final weights of its source, or published weights with their
    additions' start. `directory` is the started run's; the source's is next to it. Raises `UserError`."""
    spec, model, own = task.spec, task.model, task.model.state_dict()
    if isinstance(spec.start, WeightsStart):
        theirs = {name: shard_of(each, own[name]) for name, each in _read(spec.start).model.state_dict().items()}
        _started(model, theirs, at_identity=spec.start.added == "identity")
        return
    assert spec.start is not None
    run, source = spec.start.run, RunDirectory(directory.path.with_name(spec.start.run.id))
    anew = f"Train it again with comt {run.command} --fresh (recipe {run.paper}/{run.table}, scale {run.scale})."
    source.result_if_done()
    state = read_own(source.checkpoint_file, run.id, anew)
    if state.get("progress", {}).get("step") != run.settings.train.steps:  # averages have no progress
        raise _refused(spec, f"{source.checkpoint_file} is not from the last step", anew)
    weights = state["model"]
    loaded = loaded_names(spec, own, weights)
    here, there = task.checkpoint_parts().get("tokenizer"), state.get("tokenizer")
    # With equal settings, another text still gives another vocabulary of the same size.
    of_tokens = any(state.get("vocabulary") in weights[name].shape for name in loaded)
    if here is not None and there is not None and here != there and of_tokens:
        raise _refused(spec, "its vocabulary has other tokens", anew)
    # Not strict, because new parts are missing; `loaded_names` has checked all others.
    model.load_state_dict({name: shard_of(weights[name], own[name]) for name in loaded}, strict=False)


def _refused(spec: RunSpec, reason: str, hint: str) -> UserError:
    named = [f"{run.paper}/{run.table} {run.row}, {run.column}, seed {run.seed}" for run in (spec, *spec.sources[-1:])]
    own, source = (*named, spec.start.weights if isinstance(spec.start, WeightsStart) else "")[:2]
    return UserError(f"{own} cannot start from {source}: {reason}", hint)


def loaded_names(spec: RunSpec, own: Tensors, source: Tensors) -> list[str]:
    """The names of the tensors of a started model, `own`, that are loaded from a `source`. Raises `UserError` naming
    tensors that do not match."""
    assert isinstance(spec.start, RunStart)
    if wrong := list(_unfitting(spec.start, own, source)):
        hint = "List parts that the source lacks in start.new, and parts of the source to leave out in start.drop."
        raise _refused(spec, "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""), hint)
    return [name for name in own if is_pretrained(name, spec.start.new)]


def _unfitting(start: RunStart, own: Tensors, source: Tensors) -> Iterator[str]:
    for key, parts, names, whose in (("new", start.new, own, "the model"), ("drop", start.drop, source, "the source")):
        for part in parts:
            if not any(is_part(name, (part,)) for name in names):
                yield f"{key} names {part}, but {whose} has no such part"
    wanted = {name: list(own[name].shape) for name in own if is_pretrained(name, start.new)}
    given = {name: list(source[name].shape) for name in source if is_pretrained(name, start.drop)}
    for name in wanted | given:
        if wanted.get(name) != given.get(name):
            yield f"{name} is {given.get(name, 'not')} in the source, and {wanted.get(name, 'not')} in the model"
