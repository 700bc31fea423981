"""Inputs of image classifiers: crops and mirrors against slicing, the same for every way of cutting a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from comt_cli.data.images.dataset import ImageBatch, ImageDataset, ImageSplit
from comt_cli.data.images.settings import Augmentation
from comt_cli.data.order import uniform_draws
from comt_cli.layers.image_input import ImageInput

CPU = torch.device("cpu")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def make_dataset(size: int = 16, count: int = 9, *, whole: bool = True) -> ImageDataset:
    pixels = np.random.default_rng(0).integers(1, 256, (count, size, size, 3), dtype=np.uint8)
    side = ImageSplit(np.arange(count) % 4, pixels if whole else None)
    return ImageDataset("f", "c", tuple("abcd"), MEAN, STD, size, side, side)


def as_batch(dataset: ImageDataset, indices: list[int], draws: NDArray[np.float64] | None) -> ImageBatch:
    numbers = np.array(indices)
    return ImageBatch(numbers, dataset.train.labels[numbers], draws)


def normalised(pixels: NDArray[Any]) -> NDArray[np.float64]:
    return ((pixels / 255 - MEAN) / STD).transpose(0, 3, 1, 2)


INDICES = [3, 0, 8, 3, 5, 1, 7]


@pytest.mark.parametrize(("augmentation", "size"), [("crop", 16), ("crop-flip", 16), ("crop-flip", 33), ("crop", 8)])
def test_a_crop_is_a_slice_of_the_padded_image(augmentation: Augmentation, size: int) -> None:
    dataset = make_dataset(size)
    edge = size // 8
    indices = list(np.arange(200) % 9)
    draws = uniform_draws(1, 0, 200, 3)
    x, _ = ImageInput(dataset, "train", augmentation, CPU)(as_batch(dataset, indices, draws))
    padded = np.pad(dataset.train.pixels, ((0, 0), (edge, edge), (edge, edge), (0, 0)))  # type: ignore[arg-type]
    seen = set()
    expected = []
    for index, (flip, down, right) in zip(indices, draws, strict=True):
        top, left = int(down * (2 * edge + 1)), int(right * (2 * edge + 1))
        cut = padded[index, top : top + size, left : left + size]
        mirrored = augmentation == "crop-flip" and flip < 0.5
        seen.add((top, left, mirrored))
        expected.append(cut[:, ::-1] if mirrored else cut)
    assert np.allclose(x.numpy(), normalised(np.stack(expected)), atol=1e-5)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(2 * edge + 1))
    assert {mirrored for *_, mirrored in seen} == ({True, False} if augmentation == "crop-flip" else {False})


@pytest.mark.parametrize("augmentation", ["none", "crop", "crop-flip"])
def test_evaluation_sees_images_as_they_are(augmentation: Augmentation) -> None:
    dataset = make_dataset()
    x, labels = ImageInput(dataset, "validation", augmentation, CPU)(as_batch(dataset, INDICES, None))
    assert x.shape == (7, 3, 16, 16)
    assert x.dtype == torch.float32
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == dataset.train.labels[INDICES].tolist()
    assert labels.dtype == torch.int64
    assert np.allclose(x.numpy(), normalised(dataset.train.pixels[INDICES]), atol=1e-5)  # type: ignore[index]
