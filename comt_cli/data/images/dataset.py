"""Data sets of images: their splits, and rendered images in the cache.

Shapes: N images of a split, B of a batch, H rows and W columns of pixels, D draws of a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.images.sets import glyphs
from comt_cli.data.images.settings import IMAGE_SPLITS, ImageManifest, ImageSplitName, Kind
from comt_cli.data.order import uniform_draws
from comt_cli.data.prepare import Manifest
from comt_cli.data.split import AnyBatch, Split
from comt_cli.data.storage import ProgressCallback
from comt_cli.files import atomic_file

_PIXELS_AT_ONCE = 1 << 13  # per thread: memory of small arrays is reused, that of large ones is returned every time

CROP_DRAWS = 3
"""Draws for cropping and mirroring: 0 for the mirror, 1 for the crop's rows, 2 for its columns."""

Colours = tuple[float, float, float]


@dataclass(frozen=True)
class ImageBatch(AnyBatch):
    """Images for one forward pass: `indices` int64 [B] within the split; `labels` int64 [B], or `IGNORE`; `draws`
    float64 [B, D] in [0, 1) for augmentation, or None; `pixels` uint8 [B, H, W, 3] (None: the split's)."""

    counted = "labels"

    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    draws: NDArray[np.float64] | None = None
    pixels: NDArray[np.uint8] | None = None


class ImageSplit(Split[ImageBatch]):
    """Images in memory or memory-mapped: `labels` int64 [N]; `pixels` uint8 [N, H, W, 3] (None: files)."""

    def __init__(self, labels: NDArray[np.int64], pixels: NDArray[np.uint8] | None) -> None:
        self.labels, self.pixels = labels, pixels

    def __len__(self) -> int:
        return len(self.labels)

    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ones(len(indices), dtype=np.int64)

    def batch(self, indices: NDArray[np.int64]) -> ImageBatch:
        indices = self._check(indices)
        return ImageBatch(indices, self.labels[indices])

    def train_batch(self, indices: NDArray[np.int64], seed: int, first: int) -> ImageBatch:
        return replace(self.batch(indices), draws=uniform_draws(seed, first, len(indices), CROP_DRAWS))


@dataclass(frozen=True)
class ImageDataset:
    """Images of one fingerprint. `content_hash` covers pixels and labels (imagenet: file names and sizes). `mean` and
    `std` are per colour over the training split, with 1 as the maximum brightness. `size` is height and width."""

    fingerprint: str
    content_hash: str
    class_names: Sequence[str]
    mean: Colours
    std: Colours
    size: int
    train: ImageSplit
    validation: ImageSplit


def histograms(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Counts of each brightness per colour of images [..., 3]: int64 [3, 256]."""
    return np.array([np.bincount(pixels[..., colour].reshape(-1), minlength=256) for colour in range(3)], np.int64)


def mean_and_std(histograms_3V: NDArray[np.int64]) -> tuple[Colours, Colours]:
    """Mean and standard deviation of each colour, with 1 as the maximum brightness. They are computed from integers, so
    that the order of pixels does not matter. The standard deviation is at least half a step of brightness, so that it
    can divide."""
    found = []
    for histogram in histograms_3V.tolist():
        count, first, second = (
            sum(value**power * times for value, times in enumerate(histogram)) for power in range(3)
        )
        found.append((first / count / 255, max(0.5, ((count * second - first**2) / count**2) ** 0.5) / 255))
    (red, red_std), (green, green_std), (blue, blue_std) = found
    return (red, green, blue), (red_std, green_std, blue_std)


# ---- rendered images


def write(kind: Kind, folder: Path, name: str, progress: ProgressCallback) -> Manifest:
    """Render the images."""
    data, stage = kind.data, f"rendering images of {kind.data.images}"
    counts = {split: kind.corpus.count(split, there_are) for split, there_are in glyphs.IMAGES.items()}
    total = sum(counts.values())
    sums, done = np.zeros((3, 256), dtype=np.int64), 0
    for split, count in counts.items():
        renderer = glyphs.GlyphRenderer(data.images, split, data.size)
        with atomic_file(folder / f"{split}.pixels") as handle:
            for pixels in _rendered(renderer, count):
                progress(stage, done, total)
                handle.write(pixels.tobytes())
                done += len(pixels)
                if split == "train":
                    sums += histograms(pixels)
        with atomic_file(folder / f"{split}.labels") as handle:
            handle.write(renderer.labels(0, count).astype("<i8").tobytes())
    progress(stage, total, total)
    mean, std = mean_and_std(sums)
    names = [f"{split}.{part}" for split in counts for part in ("pixels", "labels")]
    own = {"identity": kind.corpus.identity(), "class_names": tuple(glyphs.CHARACTERS[data.images])}
    return kind.record(name, folder, names, **own, size=data.size, images=counts, mean=mean, std=std)


def opened(kind: Kind, folder: Path, manifest: ImageManifest) -> ImageDataset:  # noqa: ARG001 - as of every kind
    """Open the images."""

    def split(name: ImageSplitName) -> ImageSplit:
        labels = np.fromfile(folder / f"{name}.labels", dtype="<i8").astype(np.int64)
        shape = (manifest.images[name], manifest.size, manifest.size, 3)
        # Copy on write: torch requires writable memory, although nothing is written.
        return ImageSplit(labels, np.memmap(folder / f"{name}.pixels", dtype=np.uint8, mode="c", shape=shape))

    content, names, size = manifest.content_hash(), manifest.class_names, manifest.size
    train, validation = map(split, IMAGE_SPLITS)
    return ImageDataset(manifest.fingerprint, content, names, manifest.mean, manifest.std, size, train, validation)


def _rendered(renderer: glyphs.GlyphRenderer, count: int) -> Iterator[NDArray[np.uint8]]:
    """All images in order, in blocks, several of which are rendered in parallel threads."""
    block = max(1, _PIXELS_AT_ONCE // renderer.size**2)
    starts = range(0, count, block)
    threads = min(os.cpu_count() or 1, 16)
    with ThreadPoolExecutor(threads, thread_name_prefix="comt-render") as pool:
        for begin in range(0, len(starts), 2 * threads):  # limits the blocks in memory
            some = starts[begin : begin + 2 * threads]
            yield from pool.map(lambda start: renderer.render(start, min(block, count - start)), some)
