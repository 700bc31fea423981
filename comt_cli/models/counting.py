"""What a model costs, counted on the model itself: built on the meta device and run there once, so that no second
set of formulas can drift from the code."""

from __future__ import annotations

import functools
import json

import torch
from torch import Tensor

from comt_cli.models.build import empty_model, empty_resnet, image_wiring_of, wiring_of
from comt_cli.models.cost import PLAIN, PLAIN_IMAGE, Cost, Network
from comt_cli.models.flops import blank_images, flops_of_one, parameter_count
from comt_cli.models.llama import Llama
from comt_cli.models.resnet import ResNet
from comt_cli.models.trace import Linear, Trace, rows_to_trace
from comt_cli.recipe.image_settings import ResNetSettings
from comt_cli.recipe.settings import ModelSettings


def count(network: Network) -> tuple[Cost, bool]:
    """The cost of a network, and whether it depends on nothing but this package and PyTorch: a method may be made of
    layers from elsewhere, whose changes nobody would notice."""
    model, cost = _count_images(network) if network.images else _count_language(network)
    return cost, all(type(module).__module__.partition(".")[0] in ("comt_cli", "torch") for module in model.modules())


def _count_language(network: Network) -> tuple[Llama, Cost]:
    """The head's loss never keeps logits, only the gradients of its input and of its matrix. With checkpointing, each
    block keeps its input, and the one that is being computed again everything."""
    settings = ModelSettings.model_validate_json(network.model)
    model = empty_model(settings, network.outputs, wiring_of(json.loads(network.method)))
    length, layers = network.length, model.shape.layers
    with Trace(rows_to_trace(model, length, model.shape.heads * length**2)) as trace:
        hidden, blocks = _kept_below_the_head(trace, model, length)
        logits = model.logits(hidden)
    flops = flops_of_one(trace, logits, lambda rows: model(_blank_rows(rows, length)))
    if network.checkpointing:
        model.activation_checkpointing = True
        with Trace(trace.rows) as again:
            inputs = _kept_below_the_head(again, model, length)[1]
        two, three = (inputs.at(rows) + blocks.at(rows) // layers for rows in (2, 3))
        blocks = Linear(three - two, 3 * two - 2 * three)
    per_row = blocks.per_row + length * model.shape.width
    always = blocks.always + model.head_weight.numel()
    plain = _plain_parameters(network.model, network.outputs)
    return model, Cost(parameter_count(model), plain, flops, per_row, always)


def _count_images(network: Network) -> tuple[ResNet, Cost]:
    settings = ResNetSettings.model_validate_json(network.model)
    model = empty_resnet(settings, network.outputs, image_wiring_of(json.loads(network.method)))
    with Trace(rows_to_trace(model, network.length, network.length**2)) as trace:
        logits, kept = trace.kept_by(model, lambda: model(blank_images(trace.rows, network.length)))
    flops = flops_of_one(trace, logits, lambda images: model(blank_images(images, network.length)))
    plain = _plain_image_parameters(network.model, network.outputs)
    return model, Cost(parameter_count(model), plain, flops, kept.per_row, kept.always)


@functools.lru_cache(maxsize=64)
def _plain_parameters(model_json: str, vocabulary: int) -> int:
    settings = ModelSettings.model_validate_json(model_json)
    return parameter_count(empty_model(settings, vocabulary, wiring_of({"name": PLAIN})))


@functools.lru_cache(maxsize=64)
def _plain_image_parameters(model_json: str, classes: int) -> int:
    settings = ResNetSettings.model_validate_json(model_json)
    return parameter_count(empty_resnet(settings, classes, image_wiring_of({"name": PLAIN_IMAGE})))


def _blank_rows(rows: int, length: int) -> Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device="meta")


def _kept_below_the_head(trace: Trace, model: Llama, length: int) -> tuple[Tensor, Linear]:
    """What the head reads, and the numbers kept for the backward pass of all before it."""
    # On the meta device attention runs unfused and keeps its [T, T] weights; real devices run it fused and do not.
    weights = ((length, length), trace.rows * model.shape.heads * length * length)
    return trace.kept_by(
        model,
        lambda: model.hidden(_blank_rows(trace.rows, length)),
        lambda kept: (kept.shape[-2:], kept.numel()) == weights,
    )
