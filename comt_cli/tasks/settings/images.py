"""The settings of a ResNet, the sizes that a recipe can name, and how image classifiers learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PositiveFloat

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.recipe.settings import (
    CapturedTraining,
    Count,
    Fraction,
    Layers,
    NetworkSettings,
    RunSettings,
    StepsOrShare,
    WholeNumber,
)


class ResNetSize(NamedTuple):
    """Block, blocks of each stage, and channels of the first stage, which double with each stage. `basic` and
    `bottleneck` (four times as wide outside) are from He et al. 2016a, `preact` is the two-layer block of 2016b."""

    block: Literal["basic", "bottleneck", "preact"]
    blocks: tuple[int, ...]
    width: int


RESNET_SIZES: dict[str, ResNetSize] = {
    "resnet18": ResNetSize("basic", (2, 2, 2, 2), 64),
    "resnet50": ResNetSize("bottleneck", (3, 4, 6, 3), 64),
    "resnet152": ResNetSize("bottleneck", (3, 8, 36, 3), 64),
    "preact-resnet110": ResNetSize("preact", (18, 18, 18), 16),
}

MAX_CHANNELS = 2**14  # of the first stage; each later one has twice as many


class ResNetSettings(NetworkSettings):
    """A ResNet: a named size, whose width and blocks may be overridden, and its stem."""

    sizes: ClassVar[Mapping[str, ResNetSize]] = RESNET_SIZES

    family: Literal["resnet"] = "resnet"
    size: str = "resnet18"
    stem: Literal["3x3", "7x7"] = "3x3"
    width: Annotated[WholeNumber, Field(gt=0, le=MAX_CHANNELS)] | None = None
    blocks: Annotated[tuple[Layers, ...], Field(min_length=1, max_length=5)] | None = None

    def shape(self) -> ResNetSize:
        return ResNetSize(RESNET_SIZES[self.size].block, **self._numbers(("blocks", "width")))


def _listed(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given  # later checks are strict and refuse lists


Milestones = Annotated[tuple[Count, ...], BeforeValidator(_listed)]

MilestonesOrShares = Annotated[tuple[StepsOrShare, ...], BeforeValidator(_listed)]
"""Milestones as in recipes and `--set`: each in steps, or as a share of them."""


class ImageTrainSettings(CapturedTraining):
    """Training of an image classifier: stochastic gradient descent with momentum. `step` multiplies the rate by 0.1
    after each of `milestones`. The rate equals `warmup_learning_rate` during the warm-up if that is given; else it
    rises from 0. `gradient_norms_every` logs the gradient norm of every convolution."""

    moments: ClassVar[Mapping[str, Any]] = {"warmup_steps": StepsOrShare, "milestones": MilestonesOrShares}
    optimizer: ClassVar[str] = "sgd"

    batch_size: Count = 64
    learning_rate: PositiveFloat = 0.01
    schedule: Literal["cosine", "linear", "constant", "step"] = "linear"
    milestones: Milestones = ()
    warmup_learning_rate: PositiveFloat | None = None
    momentum: Fraction = 0.9
    nesterov: bool = False
    gradient_norms_every: Count | None = None

    def optimizer_state(self, trained: int, matrices: int) -> int:
        return trained if self.momentum else 0

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if (self.schedule == "step") != bool(self.milestones):
            yield "milestones: apply to schedule: step, which needs at least one"
        if list(self.milestones) != sorted(set(self.milestones)):
            yield "milestones: should be steps in rising order"
        if self.milestones and self.milestones[-1] >= self.steps:
            yield f"milestones: {self.milestones[-1]} is not below the number of steps, {self.steps}; give earlier ones"
        if self.warmup_learning_rate is not None and not self.warmup_steps:
            yield "warmup_learning_rate: needs a warm-up; set warmup_steps"
        if self.nesterov and not self.momentum:
            yield "nesterov: needs a momentum above 0"


class ImageSettings(RunSettings):
    """Everything that decides a run of an image classifier, apart from its method and its seed."""

    model: ResNetSettings
    data: ImageDataSettings
    train: ImageTrainSettings
