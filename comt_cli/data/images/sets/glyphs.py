"""`glyphs10` and `glyphs100`: 50,000 images for training and 10,000 for validation, rendered once into the cache.

Both splits are drawn from the same faces: what is asked of a network is to read worn print, not a face that it never
saw. The splits share no image, since they are rendered from different random numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from comt_cli import __version__ as comt_version
from comt_cli.data.images.image_set import ImageManifest, ImageSplitName, RenderedSet, how_many
from comt_cli.data.prepared import FileRecord
from comt_cli.data.storage import ProgressCallback, check_room
from comt_cli.files import atomic_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from comt_cli.data.images.dataset import ImageDataset, ImageSplit
    from comt_cli.data.images.glyph_faces import GlyphSet
    from comt_cli.data.images.glyph_render import GlyphRenderer
    from comt_cli.data.images.settings import ImageDataSettings

TRAIN_IMAGES, VALIDATION_IMAGES = 50_000, 10_000
_PIXELS_AT_ONCE = 1 << 13  # of one thread: small arrays are reused, large ones go back to the system every time
_MOST_THREADS = 16


class Glyphs(RenderedSet):
    """Rendered characters."""

    classes: ClassVar[Mapping[str, int]] = {"glyphs10": 10, "glyphs100": 100}
    names = tuple(classes)
    order = 0

    def __init__(self, data: ImageDataSettings) -> None:
        super().__init__(data)
        self._name = cast("GlyphSet", data.images)

    @classmethod
    def contradictions(cls, data: ImageDataSettings) -> Iterator[str]:
        if data.augmentation == "resized-crop-flip":
            yield f"augmentation: resized-crop-flip is for imagenet; {data.images} has crop and crop-flip"
        if data.folder is not None:
            yield f"folder: {data.images} is drawn into the cache, and read from nowhere else; leave it out"

    def identity(self) -> list[Any]:
        """The renderer, the characters, the fonts themselves, and the versions of what rasterises them."""
        from comt_cli.data.images.glyph_faces import CHARACTERS, FACES, font_hash, rasteriser
        from comt_cli.data.images.glyph_render import VERSION

        faces = FACES[self._name]
        return [self._name, VERSION[self._name], CHARACTERS[self._name], faces, font_hash(faces), rasteriser()]

    def write(self, folder: Path, name: str, progress: ProgressCallback) -> ImageManifest:
        from comt_cli.data.images.dataset import ColourSums
        from comt_cli.data.images.glyph_faces import CHARACTERS, rasteriser
        from comt_cli.data.images.glyph_render import GlyphRenderer

        data, counts = self.data, self._counts()
        total = sum(counts.values())
        what = f"{total:,} images of {data.size} pixels"
        check_room(folder, total * 3 * data.size**2, what, "use fewer or smaller images")
        sums, done = ColourSums(), 0
        for split, count in counts.items():
            pixel_name, label_name = _file_names(split)
            renderer = GlyphRenderer(self._name, split, data.size)
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
        packages = {package: metadata.version(package) for package in ("matplotlib", "numpy")}
        return ImageManifest(
            fingerprint=name,
            settings=data.model_dump(mode="json", exclude={"folder", "augmentation"}),
            identity=self.identity(),
            versions={"comt": comt_version, **rasteriser(), **packages},
            class_names=tuple(CHARACTERS[self._name]),
            size=data.size,
            images=counts,
            mean=mean,
            std=std,
            files=tuple(FileRecord.of(folder / file) for split in counts for file in _file_names(split)),
        )

    def open(self, folder: Path, manifest: ImageManifest) -> ImageDataset:
        from comt_cli.data.images.dataset import ImageDataset

        return ImageDataset(
            fingerprint=manifest.fingerprint,
            content_hash=manifest.content_hash(),
            class_names=manifest.class_names,
            mean=manifest.mean,
            std=manifest.std,
            size=manifest.size,
            train=_open_split(folder, manifest, "train"),
            validation=_open_split(folder, manifest, "validation"),
        )

    def _counts(self) -> dict[ImageSplitName, int]:
        """How many images either split has. Raises `UserError` where more are asked for than there are."""
        data = self.data
        return {
            "train": how_many("train_images", data.train_images, TRAIN_IMAGES, data.images),
            "validation": how_many("validation_images", data.validation_images, VALIDATION_IMAGES, data.images),
        }


def _open_split(folder: Path, manifest: ImageManifest, split: ImageSplitName) -> ImageSplit:
    import numpy as np

    from comt_cli.data.images.dataset import ImageSplit

    labels = np.fromfile(folder / _file_names(split)[1], dtype="<i8").astype(np.int64)
    shape = (manifest.images[split], manifest.size, manifest.size, 3)
    # Copy on write: torch wants memory that may be written, and nothing here does.
    return ImageSplit(labels, np.memmap(folder / _file_names(split)[0], dtype=np.uint8, mode="c", shape=shape))


def _file_names(split: ImageSplitName) -> tuple[str, str]:
    return f"{split}.pixels", f"{split}.labels"


def _rendered(renderer: GlyphRenderer, count: int) -> Iterator[NDArray[np.uint8]]:
    """All images in order, in blocks; several blocks are rendered at once, since NumPy lets threads run."""
    block = max(1, _PIXELS_AT_ONCE // renderer.size**2)
    starts = range(0, count, block)
    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    with ThreadPoolExecutor(threads, thread_name_prefix="comt-render") as pool:
        for begin in range(0, len(starts), 2 * threads):  # no more blocks than that are held at once
            some = starts[begin : begin + 2 * threads]
            yield from pool.map(lambda start: renderer.render(start, min(block, count - start)), some)
