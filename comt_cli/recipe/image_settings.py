"""What a run of an image classifier is told: the counterpart of `settings.py` for `comt train-resnet`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from comt_cli.recipe.problems import nearest
from comt_cli.recipe.settings import (
    Count,
    Fraction,
    Layers,
    NetworkSettings,
    RunSettings,
    Section,
    StepsOrShare,
    Training,
    WholeNumber,
)
from comt_cli.recipe.sizes import RESNET_SIZES, ResNetSize

ImageSet = Literal["glyphs10", "glyphs100", "cifar10", "cifar100", "imagenet"]
Augmentation = Literal["none", "crop", "crop-flip", "resized-crop-flip"]
"""`crop`: the image padded by an eighth of its side and cut at a random place; `crop-flip`: mirrored half of the time
too; `resized-crop-flip`: a random part of random area and aspect, scaled to size, mirrored half of the time."""

IMAGE_CLASSES: dict[ImageSet, int] = {
    "glyphs10": 10,
    "glyphs100": 100,
    "cifar10": 10,
    "cifar100": 100,
    "imagenet": 1000,
}


def _listed(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given  # a recipe's list: checking is strict after this


MAX_CHANNELS = 2**14
"""Of the first stage; each later one has twice as many."""

Milestones = Annotated[tuple[Count, ...], BeforeValidator(_listed)]
MilestonesOrShares = Annotated[tuple[StepsOrShare, ...], BeforeValidator(_listed)]
"""What recipes and `--set` may say: each in steps, or as a share of them."""


class ResNetSettings(NetworkSettings):
    """A ResNet: a named size, whose width and blocks may be overridden, and its stem."""

    family: Literal["resnet"] = "resnet"
    size: str = "resnet18"
    stem: Literal["3x3", "7x7"] = "3x3"
    width: Annotated[WholeNumber, Field(gt=0, le=MAX_CHANNELS)] | None = None
    blocks: Annotated[tuple[Layers, ...], Field(min_length=1, max_length=5)] | None = None

    @model_validator(mode="after")
    def _shape_fits(self) -> Self:
        if self.size not in RESNET_SIZES:
            raise ValueError(f"size: no size is called {self.size!r}; {nearest(self.size, RESNET_SIZES)}")
        return self

    def shape(self) -> ResNetSize:
        """What the model is built from: the named size with the overrides applied."""
        size = RESNET_SIZES[self.size]
        return ResNetSize(size.block, self.blocks or size.blocks, self.width or size.width)


class ImageDataSettings(Section):
    """What the model looks at. `folder` is where the images lie (None: the cache); it is no part of a run's identity.

    The first `train_images` and `validation_images` of either side are used, all where that is None.
    """

    images: ImageSet = "glyphs10"
    size: Annotated[WholeNumber, Field(ge=8, le=512)] = 32
    augmentation: Augmentation = "none"
    train_images: Count | None = None
    validation_images: Count | None = None
    folder: str | None = None

    @model_validator(mode="after")
    def _size_fits(self) -> Self:
        if self.images in ("cifar10", "cifar100") and self.size != 32:
            raise ValueError(f"size: the images of {self.images} are 32 pixels wide; leave the key out")
        if self.images == "imagenet" and self.augmentation in ("crop", "crop-flip"):
            raise ValueError("augmentation: images of different sizes need resized-crop-flip, or none")
        if self.images != "imagenet" and self.augmentation == "resized-crop-flip":
            raise ValueError(f"augmentation: resized-crop-flip is for imagenet; {self.images} has crop and crop-flip")
        if self.images.startswith("glyphs") and self.folder is not None:
            raise ValueError(f"folder: {self.images} is drawn into the cache, and read from nowhere else; leave it out")
        return self

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return IMAGE_CLASSES[self.images]


class ImageTrainSettings(Training):
    """How an image classifier learns: stochastic gradient descent with momentum.

    `step` multiplies the rate by a tenth after each of `milestones`. `warmup_learning_rate` is held during the warm-up
    where it is given; else the rate rises from 0. `gradient_norms_every` logs every convolution's gradient norm.
    """

    moments: ClassVar[Mapping[str, Any]] = {"warmup_steps": StepsOrShare, "milestones": MilestonesOrShares}

    batch_size: Count = 64
    learning_rate: PositiveFloat = 0.01
    schedule: Literal["cosine", "linear", "constant", "step"] = "linear"
    milestones: Milestones = ()
    warmup_learning_rate: PositiveFloat | None = None
    momentum: Fraction = 0.9
    nesterov: bool = False
    gradient_norms_every: Count | None = None

    @property
    def moments_per_parameter(self) -> int:
        return 1 if self.momentum else 0

    @property
    def held_rate(self) -> float | None:
        return self.warmup_learning_rate

    @property
    def drops(self) -> tuple[int, ...]:
        return self.milestones

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if (self.schedule == "step") != bool(self.milestones):
            yield "milestones: belong to the schedule step, which needs at least one"
        if list(self.milestones) != sorted(set(self.milestones)):
            yield "milestones: should be steps in rising order"
        if self.milestones and self.milestones[-1] >= self.steps:
            yield (
                f"milestones: the rate cannot fall after {self.milestones[-1]} of {self.steps} steps; "
                f"give steps below {self.steps}"
            )
        if self.warmup_learning_rate is not None and not self.warmup_steps:
            yield "warmup_learning_rate: there is no warm-up; give warmup_steps"
        if self.nesterov and not self.momentum:
            yield "nesterov: needs a momentum above 0"


class ImageSettings(RunSettings):
    """Everything that decides a run of an image classifier, apart from its method and its seed."""

    model: ResNetSettings
    data: ImageDataSettings
    train: ImageTrainSettings
