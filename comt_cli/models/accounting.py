"""What a model costs, counted on the model itself: built on the meta device and run there, so that no second set of
formulas can drift from the code."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from comt_cli.models.build import empty_model, wiring_of
from comt_cli.models.flops import flops_of_row, parameter_count
from comt_cli.models.llama import Llama
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.settings import ModelSettings

PLAIN = "pre-ln"
"""The method against whose model extra parameters are counted: LLaMA as published, the papers' baseline."""


@dataclass(frozen=True)
class Cost:
    """Parameters are counts; FLOPs are of matrix products (2 per multiply-add, attention counted in full, as usual).

    For the backward pass `kept_per_row` numbers are kept for every row of tokens, and `kept_always` however many rows
    there are: a gated projection keeps its weights joined with its gates'.
    """

    parameters: int
    plain_parameters: int
    flops_per_row: int
    kept_per_row: int
    kept_always: int

    @property
    def extra_parameters(self) -> int:
        """How many parameters the method adds to the plain Pre-LN model of the same size; negative where it saves."""
        return self.parameters - self.plain_parameters

    @property
    def extra_parameters_percent(self) -> float:
        """`extra_parameters` in per cent of the plain model's."""
        return 100 * self.extra_parameters / self.plain_parameters


def cost_of(spec: RunSpec) -> Cost:
    """The cost of a run's model. Runs that differ only in seed, or in most of the training, share one count."""
    settings = spec.settings
    return _cost(
        settings.model.model_dump_json(),
        settings.data.vocabulary_size,
        json.dumps(spec.method, sort_keys=True),
        settings.data.sequence_length,
        settings.train.activation_checkpointing,
    )


def total_flops(spec: RunSpec) -> float:
    """FLOPs of the whole training, forward and backward (evaluation not counted)."""
    return float(cost_of(spec).flops_per_row) * spec.settings.train.batch_size * spec.settings.train.steps


def training_bytes(spec: RunSpec, rows_at_once: int) -> int:
    """Estimated device memory of training: weights, gradients, Adam's two moments, and what one micro-batch keeps for
    the backward pass. An estimate: the allocator, temporary buffers and the head's current block of logits come on top;
    a compiled step needs less."""
    cost = cost_of(spec)
    precision = spec.settings.train.precision
    state = 4 * (2 if precision == "bf16-pure" else 4)
    activation = 4 if precision == "fp32" else 2
    return cost.parameters * state + (cost.kept_always + cost.kept_per_row * rows_at_once) * activation


@functools.lru_cache(maxsize=256)
def _cost(model_json: str, vocabulary: int, method_json: str, length: int, checkpointing: bool) -> Cost:
    settings = ModelSettings.model_validate_json(model_json)
    wiring = wiring_of(json.loads(method_json))
    model = empty_model(settings, vocabulary, wiring)
    plain = empty_model(settings, vocabulary, wiring_of({"name": PLAIN}))
    # Not one row: with it some views need no copy, and share storage that they do not otherwise.
    two, three = (_kept(model, length, rows, checkpointing) for rows in (2, 3))
    per_row = three - two
    return Cost(parameter_count(model), parameter_count(plain), flops_of_row(model, length), per_row, two - 2 * per_row)


def _kept(model: Llama, length: int, rows: int, checkpointing: bool) -> int:
    """Numbers kept for the backward pass of `rows` rows.

    The head's loss never keeps logits, only the gradients of its input and of its matrix. With checkpointing, each
    block keeps its input, and the one that is being computed again everything.
    """
    blocks = _kept_below_the_head(model, length, rows)
    if checkpointing:
        model.activation_checkpointing = True
        blocks = _kept_below_the_head(model, length, rows) + blocks // model.shape.layers
        model.activation_checkpointing = False
    return blocks + rows * length * model.shape.width + model.head_weight.numel()


def _kept_below_the_head(model: Llama, length: int, rows: int) -> int:
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}
    # On the meta device attention runs unfused and keeps its [T, T] weights; real devices run it fused and do not.
    weights = ((length, length), rows * model.shape.heads * length * length)

    def keep(tensor: Tensor) -> Tensor:
        if (tensor.shape[-2:], tensor.numel()) != weights:
            kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    tokens = torch.zeros(rows, length, dtype=torch.long, device="meta")
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model.hidden(tokens)
        storages = {key: tensor for key, tensor in kept.items() if key not in parameters}
        return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in storages.values())
