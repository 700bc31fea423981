"""Starting from the weights of another run, or from published ones: what must agree with them, and how what a method
adds to their network starts."""

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
HEAD_CHANNELS = 4  # of the small networks that are compared
ROUNDING = 1e-4
"""Part of the largest output by which a network at the identity may be off: some add in another order."""


def check_published(specs: Sequence[RunSpec]) -> None:
    """Raises `UserError` where the networks of runs are not those of the published weights that they start from, or
    would compute something else with what is added to them at the identity."""
    weights: dict[str, LoadedModel] = {}
    networks = {(network_of(spec), spec.start): spec for spec in specs}
    for (_, start), spec in networks.items():
        assert isinstance(start, WeightsStart)
        if start.weights not in weights:
            weights = {start.weights: _read(start)}  # one at a time: they are large
        found, settings = weights[start.weights].model, spec.settings_as(Settings)
        mine = _numbers(settings.model, settings.data.vocabulary_size)
        theirs_by_key = _numbers(found.settings, found.vocabulary).items()
        wrong = [f"{key} is {mine[key]}, theirs is {right}" for key, right in theirs_by_key if mine[key] != right]
        if keys := "; ".join(wrong):
            raise UserError(f"the network of {spec.row} at {spec.column} is not that of {start.weights}: {keys}")
        own, theirs = model_of(spec).state_dict(), found.state_dict()
        if unfit := misfits(theirs, {name: tensor for name, tensor in own.items() if name in theirs}):
            said = f"{start.weights} do not fit the network of the row {spec.row} (method {spec.method_words}): {unfit}"
            raise UserError(said, "Take a method that keeps the plain network's parameters.")
        if start.added == "identity" and (reason := _changed(spec)) is not None:
            said = f"{spec.row} (method {spec.method_words}) would not start as what the weights compute: {reason}"
            raise UserError(said, "With start: {weights: ..., added: paper} it starts as its paper does, away from it.")


def _started(model: nn.Module, theirs: Mapping[str, Tensor], *, at_identity: bool = True) -> Gate | None:
    """Put weights into a model with more parameters than they are of; the first of its gates that cannot be one."""
    model.load_state_dict(theirs, strict=False)
    gates = [module for module in model.modules() if at_identity and isinstance(module, Gate)]
    return next((gate for gate in gates if not gate.start_at_one()), None)


def _read(start: WeightsStart) -> LoadedModel:
    path = located(start.weights)
    if start.content not in (None, content_hash(start.weights)):
        raise UserError(f"{path} was changed since the run was planned", "The same command plans it anew.")
    return load(path, LoadedModel)


def _numbers(model: ModelSettings, vocabulary: int) -> dict[str, str]:
    others = {key: getattr(model, key) for key in ("tied_embeddings", "rope_theta", "norm_eps")}
    every = {f"model.{key}": each for key, each in (model.shape()._asdict() | others).items()}
    every["data.vocabulary"] = vocabulary
    # Files have 1e-5 in fp32.
    return {key: f"{each:.7g}" if isinstance(each, float) else json.dumps(each) for key, each in every.items()}


def _changed(spec: RunSpec) -> str | None:
    """Why a network of the run's method, started at the identity, computes something else than the plain network; None
    where it does not. Seen on random networks of the same depth with few channels; numbers in their streams are small,
    so that what is the same but for a norm's epsilon is not taken for the identity."""
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
        draw.normal_(parameter, name, 0.02 if parameter.ndim > 1 else 0.5)  # norms are not near one, as after training
    if (stuck := _started(gated, plain.state_dict())) is not None:
        return f"its {type(stuck).__name__} cannot be one"
    with torch.no_grad():
        expected, found = (model(torch.arange(16).view(2, 8)) for model in (plain, gated))
    off = float((found - expected).abs().max() / expected.abs().max())
    return None if off < ROUNDING else f"its outputs are off by {100 * off:.2g} %"


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
    """Give the task's model, which has its initial values, the weights that its source's last step has left; or
    published ones, and what is added to them its start. `directory` is the started run's; its source is beside it.
    Raises `UserError`."""
    spec, model, own = task.spec, task.model, task.model.state_dict()
    if isinstance(spec.start, WeightsStart):
        theirs = {name: shard_of(each, own[name]) for name, each in _read(spec.start).model.state_dict().items()}
        _started(model, theirs, at_identity=spec.start.added == "identity")
        return
    assert spec.start is not None
    run, source = spec.start.run, RunDirectory(directory.path.with_name(spec.start.run.id))
    anew = f"comt {run.command} --fresh trains it anew, with the recipe {run.paper}/{run.table} at scale {run.scale}."
    source.result_if_done()
    state = read_own(source.checkpoint_file, run.id, anew)
    if state.get("progress", {}).get("step") != run.settings.train.steps:  # an average has none
        raise _refused(spec, f"{source.checkpoint_file} is not of the last step", anew)
    weights = state["model"]
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
