"""A data set of images, opened: what a classifier must know of it, and its two splits.

Shapes: N images of a split, B of a batch, H rows and W columns of pixels, D draws of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.order import uniform_draws
from comt_cli.data.split import AnyBatch, Split

CROP_DRAWS = 3
"""What cropping and mirroring take: `draws[:, 0]` decides the mirror, 1 the rows and 2 the columns of the crop."""


@dataclass(frozen=True)
class ImageBatch(AnyBatch):
    """Images for one forward pass.

    Attributes:
        indices: int64 [B], the numbers of the images within their split.
        labels: int64 [B], their classes, or `IGNORE`.
        draws: float64 [B, D] in [0, 1), what chance does to each in training; None at evaluation.
        pixels: uint8 [B, H, W, 3] where images are read one by one; None where the split's `pixels` has them all.
    """

    counted = "labels"

    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    draws: NDArray[np.float64] | None = None
    pixels: NDArray[np.uint8] | None = None


class ImageSplit(Split[ImageBatch]):
    """Images that lie in memory, or in a file mapped into it.

    Attributes:
        labels: int64 [N], the class of each.
        pixels: uint8 [N, H, W, 3]; None where images are read one by one (`folder_split.FolderSplit`).
    """

    def __init__(self, labels: NDArray[np.int64], pixels: NDArray[np.uint8] | None) -> None:
        self.labels, self.pixels = labels, pixels

    def __len__(self) -> int:
        return len(self.labels)

    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every image has one."""
        return np.ones(len(indices), dtype=np.int64)

    def batch(self, indices: NDArray[np.int64]) -> ImageBatch:
        """The images with these numbers, int64 [B], as evaluation sees them. Raises `IndexError`."""
        indices = self._check(indices)
        return ImageBatch(indices, self.labels[indices])

    def train_batch(self, indices: NDArray[np.int64], seed: int, first: int) -> ImageBatch:
        return replace(self.batch(indices), draws=uniform_draws(seed, first, len(indices), CROP_DRAWS))


@dataclass(frozen=True)
class ImageDataset:
    """Images of one fingerprint.

    Attributes:
        fingerprint: the identity of the images (see `comt_cli.data.prepare`).
        content_hash: 16 hexadecimal digits over pixels and labels (imagenet: file names and labels).
        class_names: the name of each class, in the order of the labels.
        mean, std: of each of the three colours over the training split, where 1 is the brightest.
        size: height and width of an image.
        train, validation: the two splits.
    """

    fingerprint: str
    content_hash: str
    class_names: Sequence[str]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int
    train: ImageSplit
    validation: ImageSplit


Colours = tuple[float, float, float]


class ColourSums:
    """Sums over pixels in whole numbers, so that neither order nor block size matters."""

    def __init__(self) -> None:
        self._histograms_3V = np.zeros((3, 256), dtype=np.int64)

    def add(self, pixels: NDArray[np.uint8]) -> None:
        """Count the pixels of uint8 images [..., 3]."""
        for colour in range(3):
            self._histograms_3V[colour] += np.bincount(pixels[..., colour].reshape(-1), minlength=256)

    def mean_and_std(self) -> tuple[Colours, Colours]:
        """Mean and standard deviation of each colour, where 1 is the brightest.

        The deviation is at least half a step of brightness, so that images of one colour can be divided by it.
        """
        means, deviations = [], []
        for histogram in self._histograms_3V.tolist():
            count = sum(histogram)
            first = sum(value * times for value, times in enumerate(histogram))
            second = sum(value**2 * times for value, times in enumerate(histogram))
            means.append(first / count / 255)
            deviations.append(max(0.5, ((count * second - first**2) / count**2) ** 0.5) / 255)
        return (means[0], means[1], means[2]), (deviations[0], deviations[1], deviations[2])
