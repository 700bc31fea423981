"""What a set of images offers to settings and to preparation. Importing it imports no NumPy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from comt_cli.data.prepared import FileRecord, Manifest
from comt_cli.data.registry import Named
from comt_cli.data.storage import ProgressCallback
from comt_cli.errors import UserError
from comt_cli.files import cache_folder

if TYPE_CHECKING:
    from comt_cli.data.images.dataset import ImageDataset
    from comt_cli.data.images.settings import ImageDataSettings

ImageSplitName = Literal["train", "validation"]


class ImageManifest(Manifest):
    """Everything about a folder of rendered images."""

    settings: dict[str, Any]
    identity: list[Any]
    versions: dict[str, str]
    class_names: tuple[str, ...]
    size: int
    images: dict[ImageSplitName, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    files: tuple[FileRecord, ...]


class ImageSet(Named):
    """Images of classes, rendered into the cache or read from a folder. `names` are those of `classes`."""

    package = "comt_cli.data.images.sets"
    classes: ClassVar[Mapping[str, int]]

    data: ImageDataSettings

    def identity(self) -> list[Any]:
        """What decides the pixels, besides size and counts."""
        return [self.data.images]


class RenderedSet(ImageSet):
    """Images that are rendered into the cache."""

    @abstractmethod
    def write(self, folder: Path, name: str, progress: ProgressCallback) -> ImageManifest:
        """Render the images of fingerprint `name` into `folder`. Raises `UserError` and `StorageError`."""

    @abstractmethod
    def open(self, folder: Path, manifest: ImageManifest) -> ImageDataset:
        """Open what was written. Raises `OSError` and `ValueError`."""


class FolderSet(ImageSet):
    """Images that lie in a folder."""

    cache: ClassVar[str]
    """The folder of the cache where they are looked for."""

    @property
    def folder(self) -> Path:
        """Where the images lie: `data.folder`, else a folder in the cache."""
        return Path(self.data.folder).expanduser() if self.data.folder else cache_folder() / "images" / self.cache

    @abstractmethod
    def read(self, name: str, progress: ProgressCallback) -> ImageDataset:
        """The images of fingerprint `name`. Raises `UserError`, and `StorageError` where the disk refuses."""


def how_many(key: str, wanted: int | None, there_are: int, name: str) -> int:
    """`wanted` images, or all. Raises `UserError` where there are fewer."""
    if wanted is not None and wanted > there_are:
        raise UserError(
            f"{key}: {wanted:,} images are asked for; this split of {name} has {there_are:,}",
            f"Use {key}: {there_are} or fewer; leave it out to use all.",
        )
    return wanted or there_are
