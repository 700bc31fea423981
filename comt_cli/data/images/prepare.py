"""Which images a recipe means: their identity, and the data set itself."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.storage import ProgressCallback, make_folder, no_progress, state_of
from comt_cli.errors import StorageError
from comt_cli.files import cache_folder, canonical_json, read_json, sha256, write_json

if TYPE_CHECKING:
    from comt_cli.data.images.dataset import ImageDataset

FORMAT = 4
"""Raise it when the same settings may give other images, or the same in another order, than before
(tests/contract/test_cache_versions.py asks for it)."""


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


def known_image_content(data: ImageDataSettings, name: str) -> str | None:
    """The content hash of the images of fingerprint `name` as they were last prepared here; None if they were not, or
    if files were added to their folder, removed or replaced since."""
    if data.images in ("glyphs10", "glyphs100"):
        from comt_cli.data.images.glyphs import rendered_content

        return rendered_content(name)
    try:
        note = read_json(_content_note(data, name))
        content = note["content"] if note["folder"] == _stamp(data) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content if isinstance(content, str) else None


def _stamp(data: ImageDataSettings) -> str:
    """What changes with the files of the folder: the names in it and in its folders, and the `state_of` each. A folder
    of those has a new time when a file in it comes or goes; of a million images none is looked at by itself. A copy of
    all has other times and inodes: it is read once more.

    Raises:
        OSError: there is no such folder, or it may not be read.
    """
    folder = folder_of(data)
    inner = [folder, *sorted(entry for entry in folder.iterdir() if entry.is_dir())]
    seen = []
    for entry in sorted(entry for each in inner for entry in each.iterdir()):
        size, *state = state_of(entry.stat())
        seen.append([entry.relative_to(folder).as_posix(), 0 if entry.is_dir() else size, *state])
    return sha256(canonical_json(seen))[:16]


def folder_of(data: ImageDataSettings) -> Path:
    """Where images lie that are not rendered: `data.folder`, else a folder in the cache."""
    if data.folder:
        return Path(data.folder).expanduser()
    return cache_folder() / "images" / ("imagenet" if data.images == "imagenet" else "cifar")


def _content_note(data: ImageDataSettings, name: str) -> Path:
    """Where the content of images is noted that are read from a folder of the user's: one note a folder."""
    folder = str(folder_of(data).absolute()) if data.folder else ""
    return cache_folder() / "images" / "contents" / f"{name}-{sha256(folder)[:8]}.json"


def _noting_content(data: ImageDataSettings, name: str, dataset: ImageDataset) -> ImageDataset:
    """`dataset`, whose content is noted. In a cache that may only be read it is found out anew every time."""
    note = _content_note(data, name)
    if known_image_content(data, name) != dataset.content_hash:
        with contextlib.suppress(StorageError, OSError):
            make_folder(note.parent)
            write_json(note, {"content": dataset.content_hash, "folder": _stamp(data)})
    return dataset


def prepare_images(data: ImageDataSettings, progress: ProgressCallback | None = None) -> ImageDataset:
    """The images that `data` describes: rendered or downloaded now where they are not there.

    Raises:
        UserError: images are missing, damaged, or fewer than asked for; the hint says how to fix it.
        StorageError: the disk is full or refuses.
    """
    progress = progress or no_progress
    name = image_fingerprint(data)
    if data.images in ("glyphs10", "glyphs100"):
        from comt_cli.data.images.glyphs import glyphs

        return glyphs(data, name, progress)
    if data.images == "imagenet":
        from comt_cli.data.images.imagenet import imagenet

        return _noting_content(data, name, imagenet(data, folder_of(data), name, progress))
    from comt_cli.data.images.cifar import cifar

    return _noting_content(data, name, cifar(data, folder_of(data), name, progress))


def _identity(data: ImageDataSettings) -> list[Any]:
    """What decides the pixels, besides size and counts."""
    if data.images in ("glyphs10", "glyphs100"):
        from comt_cli.data.images.glyphs import identity

        return identity(data.images)
    return [data.images, data.augmentation] if data.images == "imagenet" else [data.images]
