"""What a model costs, counted on the model itself: built on the meta device and run there, so that no second set of
formulas can drift from the code."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from comt_cli.models.build import empty_model, wiring_of
from comt_cli.models.llama import Llama
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.settings import ModelSettings


@dataclass(frozen=True)
class Cost:
    """Parameters are counts; FLOPs are of matrix products (2 per multiply-add, attention counted in full, as usual);
    `activation_elements_per_row` are the numbers kept for the backward pass, for one row of tokens."""

    parameters: int
    plain_parameters: int
    flops_per_row: int
    activation_elements_per_row: int

    @property
    def extra_parameters(self) -> int:
        """How many parameters the gates add to the plain model with the same residual connection."""
        return self.parameters - self.plain_parameters

    @property
    def extra_parameters_percent(self) -> float:
        """`extra_parameters` in per cent of the plain model's."""
        return 100 * self.extra_parameters / self.plain_parameters


def parameter_count(model: torch.nn.Module) -> int:
    """Trainable numbers."""
    return sum(parameter.numel() for parameter in model.parameters())


def cost_of(spec: RunSpec) -> Cost:
    """The cost of a run's model. Runs that differ only in seed or training share one count."""
    settings = spec.settings
    return _cost(
        settings.model.model_dump_json(),
        settings.data.vocabulary_size,
        json.dumps(spec.method, sort_keys=True),
        settings.data.sequence_length,
    )


def total_flops(spec: RunSpec) -> float:
    """FLOPs of the whole training, forward and backward (evaluation not counted)."""
    return float(cost_of(spec).flops_per_row) * spec.settings.train.batch_size * spec.settings.train.steps


def training_bytes(spec: RunSpec, rows_at_once: int) -> int:
    """Estimated device memory of training: weights, gradients, Adam's two moments, and the activations of one
    micro-batch. An estimate: the allocator and temporary buffers come on top, a compiled step needs less."""
    cost = cost_of(spec)
    precision = spec.settings.train.precision
    state = 4 * (2 if precision == "bf16-pure" else 4)
    activation = 4 if precision == "fp32" else 2
    return cost.parameters * state + cost.activation_elements_per_row * rows_at_once * activation


@functools.lru_cache(maxsize=256)
def _cost(model_json: str, vocabulary: int, method_json: str, length: int) -> Cost:
    settings = ModelSettings.model_validate_json(model_json)
    wiring = wiring_of(json.loads(method_json))
    model = empty_model(settings, vocabulary, wiring)
    plain = empty_model(settings, vocabulary, wiring.without_gates())
    flops, kept = _measure(model, length)
    return Cost(parameter_count(model), parameter_count(plain), flops, kept)


def _measure(model: Llama, length: int) -> tuple[int, int]:
    """FLOPs, and elements kept for the backward pass, of one row."""
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        # On the meta device attention runs unfused and keeps its [T, T] weights; real devices run it fused and do not.
        if tensor.shape[-2:] != (length, length):
            kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with (
        FlopCounterMode(display=False) as counter,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        logits = model(tokens)
        torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum"))
    storages = {key: tensor for key, tensor in kept.items() if key not in parameters}
    elements = sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in storages.values())
    return counter.get_total_flops(), elements
