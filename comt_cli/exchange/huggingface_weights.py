"""The way from the tensors of public checkpoints to our fused ones and back, by the names of a `Layout`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.exchange.huggingface_layout import Layout, layout_of
from comt_cli.layers.projection import Projections
from comt_cli.methods import method_from
from comt_cli.models.build import empty_network


def split_weights(model: Any) -> dict[str, Tensor]:
    """A plain model's tensors under their public names, the fused projections split by site (views, no copies)."""
    layout = _layout(model.settings)
    return {public: tensor for _, parts in _parts(model, layout) for public, tensor in parts.items()}


def join_weights(settings: Any, vocabulary: int, given: Mapping[str, Tensor], origin: str) -> Any:
    """The plain model that holds the tensors `given` under their public names; their types are kept.

    Raises:
        UserError: a tensor is missing, has another shape than `settings` say, or has no place in this model; or one
            that the model shares is not the same in both places.
    """
    layout = _layout(settings)
    for copy, original in layout.shared.items():
        if copy in given and original in given and not _equal(given[copy], given[original]):
            raise UserError(
                f"{origin}: {copy} is not {original}",
                f"Our {layout.ours} has one tensor for both: these weights are not tied.",
            )
    known = {name: layout.weight_name(name, settings) for name in given}
    given = {name: given[public] for public, name in known.items() if name is not None}
    # Before anything is built: a forged number of layers must not keep the machine busy.
    prefix = f"{layout.blocks}."
    present = {name.removeprefix(prefix).split(".")[0] for name in given if name.startswith(prefix)}
    if settings.shape().layers > len(present):
        raise UserError(f"{origin} says it has {settings.shape().layers} layers, and has tensors of {len(present)}")
    for name, expected in layout.sizes(settings, vocabulary).items():
        if name in given and list(given[name].shape) != expected:
            raise UserError(f"{origin}: {name} is {list(given[name].shape)}; its configuration makes it {expected}")
    model: Any = empty_network(settings, method_from({"name": layout.method}).wiring(), vocabulary=vocabulary)
    state, used = {}, set()
    for name, parts in _parts(model, layout):
        for public, expected_tensor in parts.items():
            if public not in given:
                raise UserError(f"{origin} lacks the tensor {public}")
            found = given[public]
            if found.shape != expected_tensor.shape or not found.is_floating_point():
                raise UserError(
                    f"{origin}: {public} is {list(found.shape)} {_type(found)}; its configuration makes it "
                    f"{list(expected_tensor.shape)}, of floating-point numbers"
                )
            used.add(public)
        state[name] = torch.cat([given[public] for public in parts]) if len(parts) > 1 else given[next(iter(parts))]
    if unknown := sorted(set(given) - used):
        names = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        raise UserError(f"{origin} holds tensors that {layout.words} has no place for: {names}")
    model.load_state_dict(state, assign=True)
    return model


def _layout(settings: Any) -> Layout:
    layout = layout_of(settings.family)
    assert layout is not None  # no other models come here
    return layout


def _parts(model: Any, layout: Layout) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Each of the model's parameters by name, with the public tensors it is made of, in the order of its rows."""
    fused = {path: module for path, module in model.named_modules() if isinstance(module, Projections)}
    for name, tensor in model.state_dict().items():
        if name in layout.outer:
            yield name, {layout.outer[name]: tensor}
            continue
        _, layer, rest = name.split(".", 2)
        prefix = f"{layout.blocks}.{layer}"
        if rest in layout.inner:
            yield name, {f"{prefix}.{layout.inner[rest]}": tensor}
        else:
            path, _, kind = name.rpartition(".")  # its weight, or its bias
            module = fused[path]
            rows = zip(module.sites, torch.split(tensor, module.widths), strict=True)
            yield name, {f"{prefix}.{layout.sites[site.name]}.{kind}": part.detach() for site, part in rows}


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.float(), other.float())


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
