"""`glyphs10` and `glyphs100`: 50,000 images for training and 10,000 for validation, rendered once into the cache.

Both splits are drawn from the same faces: what is asked of a network is to read worn print, not a face that it never
saw. The splits share no image, since they are rendered from different random numbers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from comt_cli import __version__ as comt_version
from comt_cli.data.images.dataset import ImageDataset, ImageSplit
from comt_cli.data.images.glyph_faces import CHARACTERS, FACES, GlyphSet, font_hash, rasteriser
from comt_cli.data.images.glyph_render import VERSION, GlyphRenderer
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.images.statistics import ColourSums
from comt_cli.data.images.subset import how_many
from comt_cli.data.manifest import MANIFEST, FileRecord, PreparedFolder, content_hash, damaged, verify
from comt_cli.data.storage import ProgressCallback, file_lock, make_folder
from comt_cli.errors import StorageError, UserError
from comt_cli.files import atomic_file, cache_folder

TRAIN_IMAGES, VALIDATION_IMAGES = 50_000, 10_000
_PIXELS_AT_ONCE = 1 << 13  # of one thread: small arrays are reused, large ones go back to the system every time
_MOST_THREADS = 16

SplitName = Literal["train", "validation"]


class GlyphManifest(PreparedFolder):
    """Everything about a folder of rendered characters."""

    settings: dict[str, Any]
    identity: list[Any]
    versions: dict[str, str]
    class_names: tuple[str, ...]
    size: int
    images: dict[SplitName, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    files: tuple[FileRecord, ...]


def identity(name: GlyphSet) -> list[Any]:
    """What decides the pixels, besides size and counts: the renderer, the characters, the fonts themselves, and the
    versions of what rasterises them."""
    return [name, VERSION[name], CHARACTERS[name], FACES[name], font_hash(FACES[name]), rasteriser()]


def rendered_content(name: str) -> str | None:
    """The content hash of the rendered images of fingerprint `name`; None where there are none that can be read."""
    try:
        return content_hash(GlyphManifest.read(cache_folder() / "images" / name, name).files)
    except UserError:
        return None


def glyphs(data: ImageDataSettings, name: str, progress: ProgressCallback) -> ImageDataset:
    """The rendered images of fingerprint `name`, rendered now unless they were before.

    Of two processes at once one renders and the other waits; a rendering that was killed begins anew.

    Raises:
        UserError: rendered files are damaged, or more images are asked for than there are.
        StorageError: the disk is full or refuses.
    """
    counts: dict[SplitName, int] = {
        "train": how_many("train_images", data.train_images, TRAIN_IMAGES, data.images),
        "validation": how_many("validation_images", data.validation_images, VALIDATION_IMAGES, data.images),
    }
    folder = cache_folder() / "images" / name
    if not (folder / MANIFEST).exists():
        with file_lock(folder.with_name(f"{name}.lock"), progress):
            if not (folder / MANIFEST).exists():  # another process may have made it while we waited
                _write(data, counts, folder, name, progress)
    return _open(folder, name, progress)


def _open(folder: Path, name: str, progress: ProgressCallback) -> ImageDataset:
    manifest = GlyphManifest.read(folder, name)
    verify(folder, manifest.files, progress)
    try:
        train, validation = (_open_split(folder, manifest, split) for split in ("train", "validation"))
    except (OSError, ValueError) as error:  # removed or cut since the check
        raise damaged(folder / MANIFEST, str(error)) from error
    return ImageDataset(
        fingerprint=name,
        content_hash=content_hash(manifest.files),
        class_names=manifest.class_names,
        mean=manifest.mean,
        std=manifest.std,
        size=manifest.size,
        train=train,
        validation=validation,
    )


def _open_split(folder: Path, manifest: GlyphManifest, split: SplitName) -> ImageSplit:
    labels = np.fromfile(folder / _file_names(split)[1], dtype="<i8").astype(np.int64)
    shape = (manifest.images[split], manifest.size, manifest.size, 3)
    # Copy on write: torch wants memory that may be written, and nothing here does.
    return ImageSplit(labels, np.memmap(folder / _file_names(split)[0], dtype=np.uint8, mode="c", shape=shape))


def _file_names(split: SplitName) -> tuple[str, str]:
    return f"{split}.pixels", f"{split}.labels"


def _write(
    data: ImageDataSettings, counts: dict[SplitName, int], folder: Path, name: str, progress: ProgressCallback
) -> None:
    assert data.images in ("glyphs10", "glyphs100")
    make_folder(folder)
    for leftover in folder.glob(".*.tmp"):  # of a rendering that was killed; we hold the lock
        leftover.unlink(missing_ok=True)
    _check_room(data, counts, folder)
    sums, done, total = ColourSums(), 0, sum(counts.values())
    for split, count in counts.items():
        pixel_name, label_name = _file_names(split)
        renderer = GlyphRenderer(data.images, split, data.size)
        with atomic_file(folder / pixel_name) as handle:
            for pixels in _rendered(renderer, count):
                progress(f"rendering images of {data.images}", done, total)
                handle.write(pixels.tobytes())
                done += len(pixels)
                if split == "train":
                    sums.add(pixels)
        with atomic_file(folder / label_name) as handle:
            handle.write(renderer.labels(0, count).astype("<i8").tobytes())
    progress(f"rendering images of {data.images}", total, total)
    mean, std = sums.mean_and_std()
    paths = [folder / file for split in counts for file in _file_names(split)]
    GlyphManifest(
        fingerprint=name,
        settings=data.model_dump(mode="json", exclude={"folder", "augmentation"}),
        identity=identity(data.images),
        versions=_versions(),
        class_names=tuple(CHARACTERS[data.images]),
        size=data.size,
        images=counts,
        mean=mean,
        std=std,
        files=tuple(map(FileRecord.of, paths)),
    ).write(folder)


def _rendered(renderer: GlyphRenderer, count: int) -> Iterator[NDArray[np.uint8]]:
    """All images in order, in blocks; several blocks are rendered at once, since NumPy lets threads run."""
    block = max(1, _PIXELS_AT_ONCE // renderer.size**2)
    starts = range(0, count, block)
    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    with ThreadPoolExecutor(threads, thread_name_prefix="comt-render") as pool:
        for begin in range(0, len(starts), 2 * threads):  # no more blocks than that are held at once
            some = starts[begin : begin + 2 * threads]
            yield from pool.map(lambda start: renderer.render(start, min(block, count - start)), some)


def _versions() -> dict[str, str]:
    packages = {package: metadata.version(package) for package in ("matplotlib", "numpy")}
    return {"comt": comt_version, **rasteriser(), **packages}


def _check_room(data: ImageDataSettings, counts: dict[SplitName, int], folder: Path) -> None:
    needed, free = sum(counts.values()) * 3 * data.size**2, shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"{sum(counts.values()):,} images of {data.size} pixels need {needed / 1e9:.1f} GB; "
            f"{folder} has {free / 1e9:.1f} GB left",
            "Make room, use fewer or smaller images, or choose another cache folder: export COMT_CACHE=/some/folder",
        )
