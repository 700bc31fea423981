"""Starting from published weights: what must agree with them, and how what a method adds to their network starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from comt_cli.data.published import content_hash, located
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import misfits
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.layers.gates import Gate
from comt_cli.layers.initialise import Draw
from comt_cli.models.accounting import network_of
from comt_cli.models.build import empty_network, materialise, model_of, wiring_of
from comt_cli.runs.plan import RunSpec, WeightsStart
from comt_cli.tasks.settings.language import ModelSettings, Settings
from comt_cli.training.parallel import shard_of

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


def load_published(start: WeightsStart, model: nn.Module) -> None:
    """Give a model, which has its initial values, published weights, and what is added to them its start. Raises
    `UserError` where they are not those that the run was planned with."""
    own = model.state_dict()
    theirs = {name: shard_of(each, own[name]) for name, each in _read(start).model.state_dict().items()}
    _started(model, theirs, at_identity=start.added == "identity")


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
    """What a recipe says of a network, by key."""
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
