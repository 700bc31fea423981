"""What a model costs, counted on the model itself: built on the meta device and run there once, so that no second
set of formulas can drift from the code."""

from __future__ import annotations

import functools
import json
from typing import Any

from torch import Tensor

from comt_cli.models.base import Model
from comt_cli.models.build import empty_network, settings_from, wiring_of
from comt_cli.models.cost import Cost, Network
from comt_cli.models.flops import flops_of_one, parameter_count, trace_of
from comt_cli.models.trace import Linear, Trace


def count(network: Network) -> tuple[Cost, bool]:
    """The cost of a network, and whether it depends on nothing but this package and PyTorch: a method may be made of
    layers from elsewhere, whose changes nobody would notice.

    With checkpointing, each block keeps its input, and the one that is being computed again everything.
    """
    model = _built(network.model, network.dimensions, json.loads(network.method))
    with trace_of(model) as trace:
        body, kept = _kept(trace, model)
        output = model.outputs(body)
    flops = flops_of_one(trace, output, lambda samples: model(*model.example(samples)))
    if network.recomputes:
        model.activation_checkpointing = True
        with Trace(trace.rows) as again:
            inputs = _kept(again, model)[1]
        blocks = sum(map(len, model.stacks.values()))
        two, three = (inputs.at(samples) + kept.at(samples) // blocks for samples in (2, 3))
        kept = Linear(three - two, 3 * two - 2 * three)
    per_sample, always = kept.per_row + model.kept_behind_body.per_row, kept.always + model.kept_behind_body.always
    plain = _plain_parameters(network.model, network.dimensions, network.plain)
    is_ours = all(type(module).__module__.partition(".")[0] in ("comt_cli", "torch") for module in model.modules())
    return Cost(parameter_count(model), plain, flops, per_sample, always), is_ours


def _kept(trace: Trace, model: Model) -> tuple[Tensor, Linear]:
    """What the model's body puts out, and how many numbers it keeps for the backward pass."""
    return trace.kept_by(
        model,
        lambda: model.body(*model.example(trace.rows)),
        lambda tensor: not model.keeps(tensor, trace.rows),
    )


@functools.lru_cache(maxsize=64)
def _plain_parameters(model: str, dimensions: str, method: str) -> int:
    return parameter_count(_built(model, dimensions, {"name": method}))


def _built(model: str, dimensions: str, method: dict[str, Any]) -> Model:
    built: Model = empty_network(settings_from(model), wiring_of(method), **json.loads(dimensions))
    return built
