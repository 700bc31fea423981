"""The mean and spread of the colours of images, summed exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
