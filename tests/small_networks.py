"""Small networks and a batch for every task, and every method that fits its models: what the contract is tested on.

A task joins the contract suite with an entry in `SMALL`. Its methods are found as the program finds them; those of the
two tasks that tests compute with by name are in `method_cases` and `image_method_cases`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import caption_cases as captions
import glue_cases as glue
import image_method_cases as images
import masked_method_cases as masked
import method_cases as language
import pair_method_cases as pairs
import pytest
import torch
from initialised import initialised, shaken
from torch import Tensor

from comt_cli.models.base import Model
from comt_cli.models.build import wiring_of
from comt_cli.recipe.settings import NetworkSettings
from comt_cli.tasks import task_of
from comt_cli.tasks.settings.llama import ModelSettings
from comt_cli.tasks.settings.resnet import ResNetSettings

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Small:
    """What the contract needs of a task.

    Attributes:
        networks: settings of its smallest models, by name; the first one is tested where one is enough.
        medium: settings of a model with draws enough to see how its numbers are spread at the start.
        normal: whether its projections start as N(0, 0.02^2). Of others the model's own test has the start.
        dimensions: what `build` takes from the data.
        batch: inputs of three samples; `other` makes another batch of the same shape.
        loss: of what the model makes of the batch.
        bf16_error: by how much outputs in bf16 may be off, relative. Eight bits of mantissa, rounded some fifty times.
        stream: of its models (`models.base.Model.stream`).
        causal: outputs at a position of the first input, [B, T], depend on no later one.
        methods: every method by name, with variants that differ in kind.
    """

    networks: Mapping[str, NetworkSettings]
    medium: NetworkSettings
    dimensions: Mapping[str, int]
    batch: Batch
    other: Callable[[Batch], Batch]
    loss: Callable[[Tensor], Tensor]
    bf16_error: float
    stream: str
    causal: bool
    normal: bool = True
    methods: Mapping[str, dict[str, Any]] = field(default_factory=dict)


SMALL = {
    "train-lm": Small(
        networks={"llama": language.SETTINGS},
        medium=ModelSettings(size="tiny", width=256, ffn_width=512, layers=6, heads=4),
        dimensions={"vocabulary": language.VOCABULARY},
        batch=(language.TOKENS,),
        other=lambda batch: ((batch[0] + 7) % language.VOCABULARY,),
        loss=language.loss_of_logits,
        bf16_error=0.05,
        stream="tokens",
        causal=True,
        methods=language.METHODS,
    ),
    "train-resnet": Small(
        networks=images.NETWORKS,
        medium=ResNetSettings(size="resnet18", width=32, blocks=(1, 2)),
        dimensions={"classes": images.CLASSES},
        batch=(images.IMAGES,),
        other=lambda batch: (batch[0] * 2 - 1,),
        loss=lambda logits: torch.nn.functional.cross_entropy(logits.float(), images.LABELS),
        bf16_error=0.1,  # the norms divide by what three images of few pixels vary
        stream="maps",
        causal=False,
        methods=images.IMAGE_METHODS,
    ),
    "train-mt": Small(
        networks={"transformer": pairs.SETTINGS},
        medium=pairs.MEDIUM,
        dimensions={"vocabulary": pairs.VOCABULARY},
        batch=(pairs.SOURCE, pairs.TARGET),
        other=lambda batch: (batch[0], torch.where(batch[1] > 0, batch[1] % (pairs.VOCABULARY - 1) + 1, 0)),
        loss=pairs.loss_of_logits,
        bf16_error=0.05,
        stream="tokens",
        normal=False,
        causal=False,  # a target sees its whole source; what it sees of targets is in `test_encoder_decoder`
        methods=pairs.PAIR_METHODS,
    ),
    "train-caption": Small(
        networks={"captioner": captions.SETTINGS},
        medium=captions.MEDIUM,
        dimensions=captions.DIMENSIONS,
        batch=captions.BATCH,
        other=lambda batch: (batch[0] * 2 - 1, *batch[1:]),
        loss=pairs.loss_of_logits,
        bf16_error=0.05,
        stream="tokens",
        normal=False,
        causal=False,  # a word sees all regions
        methods=captions.CAPTION_METHODS,
    ),
    "train-bert": Small(
        networks={"bert": masked.SETTINGS},
        medium=masked.MEDIUM,
        dimensions={"vocabulary": masked.VOCABULARY},
        batch=(masked.TOKENS,),
        other=lambda batch: (torch.where(batch[0] > 0, batch[0] % (masked.VOCABULARY - 1) + 1, 0),),
        loss=masked.loss_of_logits,
        bf16_error=0.05,
        stream="tokens",
        normal=False,
        causal=False,
        methods=masked.MASKED_METHODS,
    ),
    "finetune": Small(
        networks={"classifier": masked.SETTINGS},
        medium=masked.MEDIUM,
        dimensions={"vocabulary": masked.VOCABULARY, "classes": glue.CLASSES},
        batch=(masked.TOKENS, glue.SEGMENTS),
        other=lambda batch: (torch.where(batch[0] > 0, batch[0] % (masked.VOCABULARY - 1) + 1, 0), 1 - batch[1]),
        loss=glue.loss_of_logits,
        bf16_error=0.05,
        stream="tokens",
        normal=False,
        causal=False,
        methods=masked.MASKED_METHODS,
    ),
}


class Case(NamedTuple):
    """A method on a small network of a task."""

    command: str
    network: str
    method: str

    @property
    def small(self) -> Small:
        return SMALL[self.command]

    @property
    def batch(self) -> Batch:
        return self.small.batch

    @property
    def options(self) -> dict[str, Any]:
        return self.small.methods[self.method]

    def built(self, seed: int = 1, method: str | None = None, settings: NetworkSettings | None = None) -> Model:
        """The model, or that of another method or of other settings; what was not initialised is NaN."""
        options = self.options if method is None else {"name": method}
        settings = settings or self.small.networks[self.network]
        return initialised(settings, wiring_of(options), seed, **self.small.dimensions)

    def shaken(self) -> Model:
        """As if trained a little."""
        return shaken(self.built())

    def shared(self) -> Model:
        """The same, made once: for tests that change no more of it than its gradients, its mode and its statistics."""
        model = _shared(self)
        model.zero_grad()
        return model.train()

    def loss(self, model: Model, batch: Batch | None = None) -> Tensor:
        return self.small.loss(model(*(self.batch if batch is None else batch)))


@functools.cache
def _shared(case: Case) -> Model:
    return case.shaken()


@functools.cache
def plain_model(command: str, network: str) -> Model:
    """That of the method that changes nothing, made once: nobody may change it."""
    return Case(command, network, "").built(method=task_of(command).plain_method)


ENCODER_WIRINGS = ("comt", "transponder-path", "headwise", "post-ln+transponder", "laurel-pa+comt", "sas", "dyt", "eau")
"""As `method_cases.WIRINGS`, for encoders and encoder-decoders, whose blocks take fewer."""


def tested_here(command: str) -> list[str]:
    """The methods that a task answers for: those that no task before it has."""
    before = set[str]()
    for earlier, small in SMALL.items():
        if earlier == command:
            break
        before |= small.methods.keys()
    return [name for name in SMALL[command].methods if name not in before]


def wirings(command: str) -> list[str]:
    """A method for each way in which a wiring changes how the task's models are run."""
    kinds = {"train-lm": language.WIRINGS, "train-resnet": images.IMAGE_KINDS}.get(command, ENCODER_WIRINGS)
    return [name for name in kinds if name in SMALL[command].methods]


def cases(*, networks: bool = False, every: bool = False, **wanted: Any) -> Any:
    """Parametrizes a test by `case`: a method for each kind of wiring, or with `every` also all methods that no earlier
    task has, on each task's first network, with `networks` on all.

    Of tasks whose `Small` has the attributes that are wanted. What a method does is its wiring, the same in every task.
    """
    found = [
        Case(command, network, name)
        for command, small in SMALL.items()
        if all(getattr(small, key) == value for key, value in wanted.items())
        for network in list(small.networks)[: None if networks else 1]
        for name in dict.fromkeys([*wirings(command), *(tested_here(command) if every else ())])
    ]
    return pytest.mark.parametrize("case", found, ids=["-".join(case) for case in found])
