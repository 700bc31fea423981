"""Sets of images, their settings and their identity. Importing it imports no NumPy."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field

from comt_cli.data.prepare import Manifest, Prepared
from comt_cli.data.settings import DataSection, Named, name_of
from comt_cli.data.storage import ProgressCallback, no_progress, stamp_of
from comt_cli.errors import UserError
from comt_cli.files import Cache, cache_folder
from comt_cli.recipe.settings import Count, WholeNumber

FORMAT = 4  # version of images and their order, see tests/contract/test_cache_versions.py
_CONTENTS = ("image-contents", str(FORMAT))  # the cache of folders' content hashes

Augmentation = Literal["none", "crop", "crop-flip", "resized-crop-flip"]
"""`crop`: the image padded by an eighth of its side and cropped at a random position; `crop-flip`: also mirrored with
probability 1/2; `resized-crop-flip`: a random part scaled to size, and mirrored with probability 1/2."""

ImageSplitName = Literal["train", "validation"]
IMAGE_SPLITS: tuple[ImageSplitName, ...] = ("train", "validation")


class ImageSet(Named):
    """Images of classes, rendered into the cache or read from a folder. `names` are the keys of `classes`."""

    package = "comt_cli.data.images.sets"
    classes: ClassVar[Mapping[str, int]]
    data: ImageDataSettings

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        return [self.data.images]

    def count(self, split: ImageSplitName, there_are: int) -> int:
        """The number of images to use of a split: the requested one, or all. Raises `UserError` if there are fewer."""
        key = f"{split}_images"
        wanted: int | None = getattr(self.data, key)
        if wanted is not None and wanted > there_are:
            said = f"{wanted:,} images are requested, but this split of {self.data.images} has {there_are:,}"
            raise UserError(f"{key}: {said}", f"Use {key}: {there_are} or fewer, or leave it out to use all.")
        return wanted or there_are


class FolderSet(ImageSet):
    """Images in a folder."""

    cache: ClassVar[str]

    @property
    def folder(self) -> Path:
        """`data.folder`, by default the folder `cache` of the image cache."""
        return Path(self.data.folder).expanduser() if self.data.folder else cache_folder() / "images" / self.cache

    @abstractmethod
    def read(self, name: str, progress: ProgressCallback) -> Any:
        """The `ImageDataset` with fingerprint `name`. Raises `UserError`, and `StorageError` if writing fails."""


class ImageDataSettings(DataSection):
    """Data of image classification: the first `train_images` and `validation_images` of the splits, or all. `folder`
    has the images (None: the cache); it is not part of a run id."""

    kind = ImageSet
    named_by = "images"

    images: Annotated[str, name_of(ImageSet)] = "glyphs10"
    size: Annotated[WholeNumber, Field(ge=8, le=512)] = 32
    augmentation: Augmentation = "none"
    train_images: Count | None = None
    validation_images: Count | None = None
    folder: str | None = None

    @property
    def classes(self) -> int:
        return ImageSet.named(self.images).classes[self.images]


class ImageManifest(Manifest):
    """Record of rendered images."""

    identity: list[Any]
    class_names: tuple[str, ...]
    size: int
    images: dict[ImageSplitName, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class Kind(Prepared[ImageDataSettings, ImageSet]):
    """Images, rendered into the cache, or read from a folder whose content hash is cached."""

    cache = "images"
    manifest = ImageManifest
    keys = ("size", "train_images", "validation_images")

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        """Without augmentation, except for imagenet, whose images are cropped when they are read."""
        return {"format": FORMAT, "source": self.corpus.identity()}

    def known_content(self, name: str) -> str | None:
        """The content hash of a folder when it was last prepared here; None if its files have changed since."""
        if not isinstance(self.corpus, FolderSet):
            return super().known_content(name)
        with contextlib.suppress(OSError):
            return cast(str | None, Cache(*_CONTENTS).get([name, _stamp(self.corpus.folder)]))
        return None

    def prepare(self, progress: ProgressCallback = no_progress) -> Any:
        if not isinstance(self.corpus, FolderSet):
            return super().prepare(progress)
        name = self.fingerprint()
        dataset = self.corpus.read(name, progress)
        with contextlib.suppress(OSError):
            Cache(*_CONTENTS).put([name, _stamp(self.corpus.folder)], dataset.content_hash)
        return dataset


def _stamp(folder: Path) -> str:
    folders = [folder, *(entry for entry in folder.iterdir() if entry.is_dir())]
    return stamp_of(sorted(entry for each in folders for entry in each.iterdir()))
