"""The settings of a set of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from comt_cli.data.images.image_set import ImageSet
from comt_cli.data.settings import DataSection
from comt_cli.recipe.settings import Count, WholeNumber

if TYPE_CHECKING:
    SetName = str
else:
    SetName = Literal[ImageSet.all_names()]

Augmentation = Literal["none", "crop", "crop-flip", "resized-crop-flip"]
"""`crop`: the image padded by an eighth of its side and cut at a random place; `crop-flip`: mirrored half of the time
too; `resized-crop-flip`: a random part of random area and aspect, scaled to size, mirrored half of the time."""


class ImageDataSettings(DataSection):
    """What the model looks at. `folder` is where the images lie (None: the cache); it is no part of a run's identity.

    The first `train_images` and `validation_images` of either split are used, all where that is None.
    """

    kind = ImageSet
    named_by = "images"

    images: SetName = "glyphs10"
    size: Annotated[WholeNumber, Field(ge=8, le=512)] = 32
    augmentation: Augmentation = "none"
    train_images: Count | None = None
    validation_images: Count | None = None
    folder: str | None = None

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return ImageSet.named(self.images).classes[self.images]
