"""The settings of a set of images."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from comt_cli.recipe.settings import Count, Section, WholeNumber

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


class ImageDataSettings(Section):
    """What the model looks at. `folder` is where the images lie (None: the cache); it is no part of a run's identity.

    The first `train_images` and `validation_images` of either split are used, all where that is None.
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
