"""Cost of a model, counted on the model itself: built on the meta device and run there once, so that no second
set of formulas can drift from the code."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import replace
from typing import Any

from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.methods import methods
from comt_cli.methods.mistakes import mistake_at, mistake_of
from comt_cli.models.base import Model
from comt_cli.models.build import empty_network, settings_from, wiring_of
from comt_cli.models.cost import Cost, Network
from comt_cli.models.flops import Linear, Trace, behind, flops_of_one, parameter_count, trace_of


def count(network: Network) -> tuple[Cost, bool]:
    """The cost of a network, and whether it depends on nothing but this package and PyTorch: a method may be made of
    layers from elsewhere, whose changes nobody would notice. With checkpointing, each block keeps its input, and the
    one that is being computed again everything. Raises `UserError` with the method's file where the network cannot be
    built or run, and one of the plain method can."""
    method = methods()[json.loads(network.method)["name"]]
    try:
        return _count(network)
    except (UserError, MemoryError, OSError):
        raise
    except Exception as error:
        if method.name == network.plain or sys.flags.dev_mode:
            raise
        _count(replace(network, method=json.dumps({"name": network.plain})))
        if (mistake := mistake_of(method, error)) is None:
            raise
        raise mistake from None


def _count(network: Network) -> tuple[Cost, bool]:
    model = _built(network.model, network.dimensions, json.loads(network.method))
    with trace_of(model) as trace:
        body, kept = _kept(trace, model)
        output = model.outputs(body)
    unused = _unused(model, output, methods()[json.loads(network.method)["name"]].__module__)
    flops = flops_of_one(trace, output)
    if network.recomputes:
        model.activation_checkpointing = True
        with Trace(trace.rows) as again:
            inputs = _kept(again, model)[1]
        blocks = sum(map(len, model.stacks.values()))
        two, three = (inputs.at(samples) + kept.at(samples) // blocks for samples in (2, 3))
        kept = Linear(three - two, 3 * two - 2 * three)
    kept += model.kept_behind_body
    plain = _plain_parameters(network.model, network.dimensions, network.plain)
    is_ours = all(type(module).__module__.partition(".")[0] in ("comt_cli", "torch") for module in model.modules())
    return Cost(parameter_count(model), plain, flops, kept.per_row, kept.always, unused), is_ours


def _unused(model: Model, output: Tensor, file: str) -> str:
    """Message about a parameter of a layer of the method's file that no object uses, so that it would never be
    trained; "" where all are used. One that, say, the last block does not use is no mistake."""
    used = {id(node.variable) for node in behind(output) if hasattr(node, "variable")}
    own = [
        (type(layer), name, id(parameter) in used or not parameter.requires_grad)
        for layer in model.modules()
        for name, parameter in (layer.named_parameters(recurse=False) if type(layer).__module__ == file else ())
    ]
    # By name: what a function defines is another class at each of its calls.
    trained = {(kind.__qualname__, name) for kind, name, is_trained in own if is_trained}
    left = ((kind, name) for kind, name, _ in own if (kind.__qualname__, name) not in trained)
    said = (mistake_at(kind, f"{kind.__name__} never uses its parameter {name}").message for kind, name in left)
    return next(said, "")


def _kept(trace: Trace, model: Model) -> tuple[Tensor, Linear]:
    """Output of the model's body, and the numbers that it saves for the backward pass."""
    return trace.kept_by(
        model,
        lambda: model.body(*model.example(trace.rows)),
        lambda tensor: not model.keeps(tensor, trace.rows),
    )


@functools.lru_cache(maxsize=64)
def _plain_parameters(model: str, dimensions: str, method: str) -> int:
    return parameter_count(_built(model, dimensions, {"name": method}))


def _built(model: str, dimensions: str, method: dict[str, Any]) -> Model:
    return empty_network(settings_from(model), wiring_of(method), **json.loads(dimensions))
