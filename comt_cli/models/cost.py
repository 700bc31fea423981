"""What a model costs, and all that it depends on."""

from __future__ import annotations

import json
from dataclasses import dataclass

from comt_cli.recipe.image_settings import ImageSettings
from comt_cli.recipe.settings import Settings
from comt_cli.runs.plan import RunSpec

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


@dataclass(frozen=True)
class Network:
    """All that a cost depends on: runs that differ only in seed, or in most of the training, share one.

    Attributes:
        images: whether it is an image classifier.
        outputs: the size of the vocabulary, or the number of classes.
        length: tokens of a row, or pixels of a side.
        checkpointing: whether a language model computes its activations again.
    """

    images: bool
    model: str
    outputs: int
    method: str
    length: int
    checkpointing: bool = False


def network_of(spec: RunSpec) -> Network:
    """The network that a run trains."""
    settings, method = spec.settings, json.dumps(spec.method, sort_keys=True)
    model = settings.model.model_dump_json()
    if isinstance(settings, Settings):
        data, checkpointing = settings.data, settings.train.activation_checkpointing
        return Network(False, model, data.vocabulary_size, method, data.sequence_length, checkpointing)
    images = spec.settings_as(ImageSettings).data
    return Network(True, model, images.classes, method, images.size)
