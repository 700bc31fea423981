"""What a model costs, counted on the model itself: built on the meta device and run there, so that no second set of
formulas can drift from the code."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from comt_cli.models.build import empty_model, empty_resnet, image_wiring_of, wiring_of
from comt_cli.models.flops import flops_of_image, flops_of_row, parameter_count
from comt_cli.models.llama import Llama
from comt_cli.recipe.image_settings import ImageTrainSettings, ResNetSettings
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.settings import ModelSettings, Settings

PLAIN = "pre-ln"
"""The method against whose model extra parameters are counted: LLaMA as published, the papers' baseline."""

PLAIN_IMAGE = "addition"
"""The same for image classifiers: ResNets as published."""


@dataclass(frozen=True)
class Cost:
    """Parameters are counts; FLOPs are of matrix products (2 per multiply-add, attention counted in full, as usual).

    A row is a row of tokens, or an image. For the backward pass `kept_per_row` numbers are kept for every row, and
    `kept_always` however many rows there are: a gated projection keeps its weights joined with its gates'.
    """

    parameters: int
    plain_parameters: int
    flops_per_row: int
    kept_per_row: int
    kept_always: int

    @property
    def extra_parameters(self) -> int:
        """How many parameters the method adds to the plain model of the same size; negative where it saves."""
        return self.parameters - self.plain_parameters

    @property
    def extra_parameters_percent(self) -> float:
        """`extra_parameters` in per cent of the plain model's."""
        return 100 * self.extra_parameters / self.plain_parameters


def cost_of(spec: RunSpec) -> Cost:
    """The cost of a run's model. Runs that differ only in seed, or in most of the training, share one count."""
    settings, method = spec.settings, json.dumps(spec.method, sort_keys=True)
    model = settings.model.model_dump_json()
    if isinstance(settings, Settings):
        data, checkpointing = settings.data, settings.train.activation_checkpointing
        return _cost(model, data.vocabulary_size, method, data.sequence_length, checkpointing)
    return _image_cost(model, settings.data.classes, method, settings.data.size)


def total_flops(spec: RunSpec) -> float:
    """FLOPs of the whole training, forward and backward (evaluation not counted)."""
    return float(cost_of(spec).flops_per_row) * spec.settings.train.batch_size * spec.settings.train.steps


def training_bytes(spec: RunSpec, rows_at_once: int) -> int:
    """Estimated device memory of training: weights, gradients, the optimiser's state (Adam's two moments, or the
    momentum of stochastic gradient descent), and what one micro-batch keeps for the backward pass. An estimate: the
    allocator, temporary buffers and a language model's current block of logits come on top; a compiled step needs less.
    """
    cost = cost_of(spec)
    train = spec.settings.train
    precision = train.precision
    moments = (1 if train.momentum else 0) if isinstance(train, ImageTrainSettings) else 2
    state = (2 + moments) * (2 if precision == "bf16-pure" else 4)
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


@functools.lru_cache(maxsize=256)
def _image_cost(model_json: str, classes: int, method_json: str, size: int) -> Cost:
    settings = ResNetSettings.model_validate_json(model_json)
    model = empty_resnet(settings, classes, image_wiring_of(json.loads(method_json)))
    plain = empty_resnet(settings, classes, image_wiring_of({"name": PLAIN_IMAGE}))

    def kept(images: int) -> int:
        x_BCHW = torch.zeros(images, 3, size, size, device="meta").to(memory_format=torch.channels_last)
        return _kept_by(model, lambda: model(x_BCHW))

    two, three = kept(2), kept(3)  # not one, as above; batch norm also needs two values
    per_row = three - two
    return Cost(parameter_count(model), parameter_count(plain), flops_of_image(model, size), per_row, two - 2 * per_row)


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
    tokens = torch.zeros(rows, length, dtype=torch.long, device="meta")
    # On the meta device attention runs unfused and keeps its [T, T] weights; real devices run it fused and do not.
    weights = ((length, length), rows * model.shape.heads * length * length)
    return _kept_by(model, lambda: model.hidden(tokens), lambda kept: (kept.shape[-2:], kept.numel()) == weights)


def _kept_by(model: nn.Module, run: Callable[[], Tensor], ignored: Callable[[Tensor], bool] = lambda _: False) -> int:
    """Numbers that `run` keeps for its backward pass, what the model itself holds and what is `ignored` apart."""
    held = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not ignored(tensor):
            kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = run()  # held until all is counted: with it goes what it keeps
        storages = {key: tensor for key, tensor in kept.items() if key not in held}
        numbers = sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in storages.values())
    del output
    return numbers
