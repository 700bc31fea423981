"""The names that public LLaMA checkpoints give their tensors, and the way from them to our fused ones and back.

Both use the same layout of rotary channels (i turns with i + E/2), so that nothing is permuted, only split and joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.layers.projection import Projections
from comt_cli.methods import method_from
from comt_cli.models.build import empty_network
from comt_cli.models.llama import Llama
from comt_cli.tasks.settings.llama import ModelSettings

_OUTER = {
    "embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_INNER = {
    "attention_connection.norm.weight": "input_layernorm.weight",
    "mlp_connection.norm.weight": "post_attention_layernorm.weight",
}
_MODULE = {"attention": "self_attn", "mlp": "mlp"}


def split_weights(model: Llama) -> dict[str, Tensor]:
    """A plain LLaMA's tensors under their public names, the fused projections split by site (views, no copies)."""
    return {public: tensor for _, parts in _parts(model) for public, tensor in parts.items()}


def join_weights(settings: ModelSettings, vocabulary: int, given: Mapping[str, Tensor], origin: str) -> Llama:
    """The plain LLaMA that holds the tensors `given` under their public names; their types are kept.

    Raises:
        UserError: a tensor is missing, has another shape than `settings` say, or has no place in this model.
    """
    # Before anything is built: a forged number of layers must not keep the machine busy.
    present = {name.split(".")[2] for name in given if name.startswith("model.layers.")}
    if settings.shape().layers > len(present):
        raise UserError(f"{origin} says it has {settings.shape().layers} layers, and has tensors of {len(present)}")
    _check_sizes(settings, vocabulary, given, origin)
    model = empty_network(settings, method_from({"name": "pre-ln"}).wiring(), vocabulary=vocabulary)
    state, used = {}, set()
    for name, parts in _parts(model):
        for public, expected in parts.items():
            if public not in given:
                raise UserError(f"{origin} lacks the tensor {public}")
            found = given[public]
            if found.shape != expected.shape or not found.is_floating_point():
                raise UserError(
                    f"{origin}: {public} is {list(found.shape)} {_type(found)}; its configuration makes it "
                    f"{list(expected.shape)}, of floating-point numbers"
                )
            used.add(public)
        state[name] = torch.cat([given[public] for public in parts]) if len(parts) > 1 else given[next(iter(parts))]
    if unknown := sorted(set(given) - used):
        names = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        raise UserError(f"{origin} holds tensors that a LLaMA has no place for: {names}")
    model.load_state_dict(state, assign=True)
    return model


def _check_sizes(settings: ModelSettings, vocabulary: int, given: Mapping[str, Tensor], origin: str) -> None:
    """Compare the configuration's sizes with those of the tensors that show them, before a model of that size is built.

    Raises:
        UserError: they differ.
    """
    shape = settings.shape()
    for name, expected in (
        ("model.embed_tokens.weight", [vocabulary, shape.width]),
        ("model.layers.0.mlp.gate_proj.weight", [shape.ffn_width, shape.width]),
    ):
        if name in given and list(given[name].shape) != expected:
            raise UserError(f"{origin}: {name} is {list(given[name].shape)}; its configuration makes it {expected}")


def _parts(model: Llama) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Each of the model's parameters by name, with the public tensors it is made of, in the order of its rows."""
    fused = {path: module for path, module in model.named_modules() if isinstance(module, Projections)}
    for name, tensor in model.state_dict().items():
        if name in _OUTER:
            yield name, {_OUTER[name]: tensor}
            continue
        _, layer, rest = name.split(".", 2)
        prefix = f"model.layers.{layer}"
        if rest in _INNER:
            yield name, {f"{prefix}.{_INNER[rest]}": tensor}
        else:
            module = _MODULE[rest.split(".")[0]]
            weights = fused[name.removesuffix(".weight")].site_weights()
            yield name, {f"{prefix}.{module}.{site}.weight": part.detach() for site, part in weights.items()}


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
