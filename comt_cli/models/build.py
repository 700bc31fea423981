"""Models from settings: on the meta device for counting, on a real device for training."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn

from comt_cli.errors import UserError
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from, naming_mistakes
from comt_cli.methods.base import Wiring
from comt_cli.methods.mistakes import mistake_at
from comt_cli.models.base import Model
from comt_cli.models.flops import flops_per_sample, parameter_count
from comt_cli.models.pretrained import LORA
from comt_cli.recipe.settings import NetworkSettings
from comt_cli.runs.plan import RunSpec, WeightsStart
from comt_cli.tasks.settings.language import ModelSettings

if TYPE_CHECKING:
    from comt_cli.models.llama import Llama


@overload
def empty_network(settings: ModelSettings, wiring: Wiring, **dimensions: int) -> Llama: ...
@overload
def empty_network(settings: NetworkSettings, wiring: Wiring, **dimensions: int) -> Model: ...
@naming_mistakes()
def empty_network(settings: Any, wiring: Wiring, **dimensions: int) -> Model:
    """Model on the meta device: all shapes, no storage. `dimensions` are arguments of its file's `build` that follow
    from the data, such as the vocabulary size. Raises `UserError` for a site that the blocks do not have."""
    if wiring.widening is not None:
        settings = _widened(settings, wiring, dimensions)
    with torch.device("meta"):
        return _architecture(settings.family).build(settings, wiring=wiring, **dimensions)


def _architecture(family: str) -> ModuleType:
    return importlib.import_module(f"comt_cli.models.{family}")


def settings_from(text: str) -> Any:
    """Settings of a model from their JSON."""
    return _architecture(json.loads(text)["family"]).SETTINGS.model_validate_json(text)


def _widened(settings: Any, wiring: Wiring, dimensions: Mapping[str, int]) -> Any:
    """Settings with the feed-forward width whose cost is nearest to the target's. The cost is linear in the width, so
    two counts suffice. Raises `UserError` if the width would be below 1."""
    widening = wiring.widening
    assert widening is not None
    plain, width = replace(wiring, widening=None), settings.shape().ffn_width

    def cost(of: Wiring, ffn_width: int) -> int:
        model = empty_network(settings.model_copy(update={"ffn_width": ffn_width}), of, **dimensions)
        return parameter_count(model) if widening.equal == "parameters" else flops_per_sample(model)

    one, next_one, wanted = cost(plain, width), cost(plain, width + 1), cost(widening.like, width)
    found = width + round((wanted - one) / (next_one - one))
    if found < 1:
        raise UserError(
            f"like: to cost as little, the feed-forward networks would need {found} channels; the least is 1",
            "Compare with a more expensive method, or use a wider feed-forward network.",
        )
    return settings.model_copy(update={"ffn_width": found})


def model_of(spec: RunSpec) -> Model:
    """Model of a run, on the meta device."""
    return empty_network(spec.settings.model, wiring_of(spec.method), **spec.task.dimensions(spec.settings))


def new_parts(spec: RunSpec, model: nn.Module) -> Sequence[str]:
    """Parts of a run's model that its start does not have, by the prefixes of their parameters' names. For published
    weights these are all parameters that a plain network lacks."""
    if not isinstance(spec.start, WeightsStart):
        return () if spec.start is None else spec.start.new
    return beyond(model_of(spec.model_copy(update={"method": {"name": spec.task.plain_method}})), model)


def beyond(plain: Any, model: Any) -> list[str]:
    """Names of parameters that a plain model does not have, without LoRA's."""
    known = plain.state_dict()
    return [name for name in model.state_dict() if name not in known and LORA not in name]


@naming_mistakes()
def wiring_of(method: Mapping[str, Any]) -> Wiring:
    """Wiring of a method as named in `spec.json`."""
    made = method_from(method)
    wiring = made.wiring()
    if not isinstance(wiring, Wiring):
        raise mistake_at(type(made), f"wiring() returns {type(wiring).__name__}, not Wiring")
    return wiring


@naming_mistakes()
def materialise(model: nn.Module, device: torch.device, seed: int, path: str = "") -> None:
    """Give a meta model storage on `device` and initial values, a pure function of `seed`, equal on every device. With
    its `path` in a larger model, a part gets the values that it has there."""
    model.to_empty(device=device)
    initialise(model, seed, path)
