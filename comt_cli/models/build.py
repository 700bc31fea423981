"""From a run's settings to a model: on the meta device to be counted, on a real one to be trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from, naming_mistakes
from comt_cli.methods.base import ImageWiring, Wiring
from comt_cli.models.flops import flops_of_row, parameter_count
from comt_cli.models.llama import Llama
from comt_cli.models.preact_resnet import PreActResNet
from comt_cli.models.resnet import ResNet
from comt_cli.recipe.image_settings import ImageSettings, ResNetSettings
from comt_cli.recipe.settings import ModelSettings, Settings
from comt_cli.runs.plan import RunSpec

_LENGTH = 16
"""Tokens of the row on which FLOPs are made equal: gates and feed-forward networks cost the same at every position."""


@naming_mistakes()
def empty_model(settings: ModelSettings, vocabulary: int, wiring: Wiring) -> Llama:
    """The model on the meta device: every shape, no storage."""
    if wiring.widening is not None:
        settings = _widened(settings, vocabulary, wiring)
    with torch.device("meta"):
        return Llama(settings, vocabulary, wiring)


def _widened(settings: ModelSettings, vocabulary: int, wiring: Wiring) -> ModelSettings:
    """The settings with the feed-forward width that makes the cost nearest to that of the model to equal.

    The cost is linear in that width, so two counts give it.
    """
    widening = wiring.widening
    assert widening is not None
    plain, width = replace(wiring, widening=None), settings.shape().ffn_width

    def cost(of: Wiring, ffn_width: int) -> int:
        model = empty_model(settings.model_copy(update={"ffn_width": ffn_width}), vocabulary, of)
        return parameter_count(model) if widening.equal == "parameters" else flops_of_row(model, _LENGTH)

    one, next_one, wanted = cost(plain, width), cost(plain, width + 1), cost(widening.like, width)
    return settings.model_copy(update={"ffn_width": width + round((wanted - one) / (next_one - one))})


@naming_mistakes()
def empty_resnet(settings: ResNetSettings, classes: int, wiring: ImageWiring) -> ResNet:
    """The image classifier on the meta device: every shape, no storage.

    Raises:
        UserError: the wiring names a site that the blocks do not have.
    """
    kind = PreActResNet if settings.shape().block == "preact" else ResNet
    with torch.device("meta"):
        return kind(settings, classes, wiring)


def model_of(spec: RunSpec) -> Llama | ResNet:
    """The model of a run, on the meta device."""
    settings = spec.settings
    if isinstance(settings, Settings):
        return empty_model(settings.model, settings.data.vocabulary_size, wiring_of(spec.method))
    images = spec.settings_as(ImageSettings)
    return empty_resnet(images.model, images.data.classes, image_wiring_of(spec.method))


@naming_mistakes()
def wiring_of(method: Mapping[str, Any]) -> Wiring:
    """The residual connection and gates of a method as `spec.json` names it, for a language model."""
    return method_from(method).wiring()


@naming_mistakes()
def image_wiring_of(method: Mapping[str, Any]) -> ImageWiring:
    """The residual connection and modulators of a method as `spec.json` names it, for an image classifier."""
    return method_from(method).image_wiring()


def materialise(model: nn.Module, device: torch.device, seed: int, path: str = "") -> None:
    """Give a meta model storage on `device` and initial values: a pure function of `seed`, equal on every device.

    A part of a model gets the values it has in the whole if `path` says where in it the part stands.
    """
    model.to_empty(device=device)
    initialise(model, seed, path)
