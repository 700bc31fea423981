"""Which images a recipe means: their identity, and the data set itself."""

from __future__ import annotations

from typing import Any

from comt_cli.data.images.dataset import ImageDataset
from comt_cli.data.storage import ProgressCallback
from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.image_settings import ImageDataSettings

FORMAT = 1
"""Raise it when the same settings give other images or another order than before."""


def image_fingerprint(data: ImageDataSettings) -> str:
    """16 hexadecimal digits that identify the images that `data` describes; needs neither network nor data.

    The folder they lie in, and what augmentation makes of them, are no part of it: but those of imagenet are cropped as
    they are read, so that what reads them cannot serve runs that crop and runs that do not.
    """
    content = {
        "format": FORMAT,
        "source": _identity(data),
        "size": data.size,
        "train_images": data.train_images,
        "validation_images": data.validation_images,
    }
    return sha256(canonical_json(content))[:16]


def prepare_images(data: ImageDataSettings, progress: ProgressCallback) -> ImageDataset:
    """The images that `data` describes: rendered or downloaded now where they are not there.

    Raises:
        UserError: images are missing, damaged, or fewer than asked for; the hint says what would mend it.
        StorageError: the disk is full or refuses.
    """
    name = image_fingerprint(data)
    if data.images in ("glyphs10", "glyphs100"):
        from comt_cli.data.images.glyphs import glyphs

        return glyphs(data, name, progress)
    if data.images == "imagenet":
        from comt_cli.data.images.imagenet import imagenet

        return imagenet(data, name, progress)
    from comt_cli.data.images.cifar import cifar

    return cifar(data, name, progress)


def _identity(data: ImageDataSettings) -> list[Any]:
    """What decides the pixels, besides size and counts."""
    if data.images in ("glyphs10", "glyphs100"):
        from comt_cli.data.images.glyphs import identity

        return identity(data.images)
    return [data.images, data.augmentation] if data.images == "imagenet" else [data.images]
