"""Which images a recipe means: their identity, and the data set itself. Importing it imports no NumPy."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.data.images.image_set import FolderSet, ImageManifest, ImageSet, RenderedSet
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.prepared import Prepared
from comt_cli.data.storage import ProgressCallback, make_folder, no_progress, state_of
from comt_cli.errors import StorageError
from comt_cli.files import cache_folder, canonical_json, read_json, sha256, write_json

if TYPE_CHECKING:
    from comt_cli.data.images.dataset import ImageDataset

FORMAT = 4
"""Raise it when the same settings may give other images, or the same in another order, than before
(tests/contract/test_cache_versions.py asks for it)."""


class Kind(Prepared[ImageDataSettings, ImageSet, ImageManifest, "ImageDataset"]):
    """Images, rendered into the cache, or read from a folder, of whose content a note is kept."""

    cache = "images"
    manifest = ImageManifest

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        """Source, size and counts.

        The folder they lie in, and what augmentation makes of them, are no part of it: but those of imagenet are
        cropped as they are read, so that what reads them cannot serve runs that crop and runs that do not.
        """
        data = self.data
        return {
            "format": FORMAT,
            "source": self.corpus.identity(),
            "size": data.size,
            "train_images": data.train_images,
            "validation_images": data.validation_images,
        }

    def write(self, folder: Path, name: str, progress: ProgressCallback) -> ImageManifest:
        assert isinstance(self.corpus, RenderedSet)
        return self.corpus.write(folder, name, progress)

    def open(self, folder: Path, manifest: ImageManifest) -> ImageDataset:
        assert isinstance(self.corpus, RenderedSet)
        return self.corpus.open(folder, manifest)

    def known_content(self, name: str) -> str | None:
        """The content hash of the images of fingerprint `name` as they were last prepared here; None if they were not,
        or if files were added to their folder, removed or replaced since."""
        if not isinstance(self.corpus, FolderSet):
            return super().known_content(name)
        try:
            note = read_json(self._note(name))
            content = note["content"] if note["folder"] == _stamp(self.corpus.folder) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return content if isinstance(content, str) else None

    def prepare(self, progress: ProgressCallback = no_progress) -> ImageDataset:
        if not isinstance(self.corpus, FolderSet):
            return super().prepare(progress)
        name = self.fingerprint()
        dataset = self.corpus.read(name, progress)
        if self.known_content(name) != dataset.content_hash:
            # In a cache that may only be read the content is found out anew every time.
            with contextlib.suppress(StorageError, OSError):
                make_folder(self._note(name).parent)
                write_json(self._note(name), {"content": dataset.content_hash, "folder": _stamp(self.corpus.folder)})
        return dataset

    def _note(self, name: str) -> Path:
        """Where the content of images is noted that are read from a folder: one note a folder of the user's."""
        assert isinstance(self.corpus, FolderSet)
        folder = str(self.corpus.folder.absolute()) if self.data.folder else ""
        return cache_folder() / "images" / "contents" / f"{name}-{sha256(folder)[:8]}.json"


def _stamp(folder: Path) -> str:
    """What changes with the files of a folder: the names in it and in its folders, and the `state_of` each. A folder of
    those has a new time when a file in it comes or goes; of a million images none is looked at by itself. A copy of all
    has other times and inodes: it is read once more. Raises `OSError`."""
    inner = [folder, *sorted(entry for entry in folder.iterdir() if entry.is_dir())]
    seen = []
    for entry in sorted(entry for each in inner for entry in each.iterdir()):
        size, *state = state_of(entry.stat())
        seen.append([entry.relative_to(folder).as_posix(), 0 if entry.is_dir() else size, *state])
    return sha256(canonical_json(seen))[:16]
