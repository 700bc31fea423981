"""From a run's settings to a model: on the meta device to be counted, on a real one to be trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.methods.base import Wiring
from comt_cli.models.llama import Llama
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.settings import ModelSettings


def empty_model(settings: ModelSettings, vocabulary: int, wiring: Wiring) -> Llama:
    """The model on the meta device: every shape, no storage."""
    with torch.device("meta"):
        return Llama(settings, vocabulary, wiring)


def model_of(spec: RunSpec) -> Llama:
    """The model of a run, on the meta device."""
    return empty_model(spec.settings.model, spec.settings.data.vocabulary_size, wiring_of(spec.method))


def wiring_of(method: Mapping[str, Any]) -> Wiring:
    """The residual connection and gates of a method as `spec.json` names it."""
    return method_from(method).wiring()


def materialise(model: nn.Module, device: torch.device, seed: int) -> None:
    """Give a meta model storage on `device` and initial values: a pure function of `seed`, equal on every device."""
    model.to_empty(device=device)
    initialise(model, seed)
