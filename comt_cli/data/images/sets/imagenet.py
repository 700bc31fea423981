"""ImageNet from a folder with `train/` and `val/`, one folder per class in each, read image by image during training.
It is never downloaded, because its licence requires everyone to obtain it themselves."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Resampling

from comt_cli.data.images.dataset import ImageBatch, ImageDataset, ImageSplit
from comt_cli.data.images.pictures import open_picture, torchvision_datasets
from comt_cli.data.images.settings import FolderSet, ImageDataSettings, ImageSplitName
from comt_cli.data.order import sample_indices, uniform_draws
from comt_cli.data.storage import ProgressCallback, first_line, no_progress
from comt_cli.errors import UserError
from comt_cli.files import canonical_json, sha256

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The usual values for the training split; computing them would take an hour."""

DRAWS = 3 + 2 * 10
"""Draws per image: 0 for the mirror, 1 and 2 for the crop's position, then area and aspect of ten attempts."""


class ImageNet(FolderSet):
    """ImageNet, shuffled once, so that any first part has all classes. Its content hash uses file sizes."""

    classes: ClassVar[Mapping[str, int]] = {"imagenet": 1000}
    names = tuple(classes)
    cache = "imagenet"

    @classmethod
    def contradictions(cls, data: ImageDataSettings) -> Iterator[str]:
        if data.augmentation in ("crop", "crop-flip"):
            yield "augmentation: images of different sizes need resized-crop-flip, or none"

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        return [self.data.images, self.data.augmentation]

    def read(self, name: str, progress: ProgressCallback) -> ImageDataset:
        data, folder = self.data, self.folder
        progress("listing the files of imagenet", 0, None)
        train, validation = (_list(folder / part, data) for part in ("train", "val"))
        if train.classes != validation.classes:
            differs = sorted({*train.classes} ^ {*validation.classes})[0]
            raise _unfit(folder, f"train/ and val/ have different classes ({differs} is only in one of them)")
        splits = (self._split("train", train), self._split("validation", validation))
        files = [[Path(file) for file in split.files] for split in splits]
        content = [[[path.relative_to(folder).as_posix(), path.stat().st_size] for path in paths] for paths in files]
        content_hash = sha256(canonical_json(content))[:16]
        return ImageDataset(name, content_hash, tuple(train.classes), MEAN, STD, data.size, *splits)

    def _split(self, split: ImageSplitName, listed: Any) -> FolderSplit:
        count = self.count(split, len(listed.samples))
        order = sample_indices(0, 0, count, len(listed.samples)).tolist()
        files = [listed.samples[place][0] for place in order]
        labels = np.array([listed.samples[place][1] for place in order], dtype=np.int64)
        return FolderSplit(files, labels, self.data.size, crops=self.data.augmentation == "resized-crop-flip")


def _list(folder: Path, data: ImageDataSettings) -> Any:
    try:
        listed = torchvision_datasets().ImageFolder(folder)
    except (OSError, ValueError) as error:  # FileNotFoundError: a class without folder or images
        raise _unfit(folder.parent, first_line(error)) from error
    if len(listed.classes) != data.classes:
        raise _unfit(folder.parent, f"{folder} has {len(listed.classes)} class folders, not {data.classes}")
    return listed


def _unfit(folder: Path, reason: str) -> UserError:
    hint = (
        "It should have train/ and val/, each with one folder of JPEG files per class (train/n01440764/*.JPEG). It is "
        "not downloaded: get it from image-net.org, and give its folder by --set data.folder=/some/folder "
        "(comt plot-images: --folder)"
    )
    return UserError(f"imagenet is not in {folder}: {reason}", hint)


class FolderSplit(ImageSplit):
    """Image files, read and cropped to `size` when a batch is read. In training with `crops` a random part is scaled to
    `size` (`random_box`); else the centre is used."""

    def __init__(self, files: list[str], labels: NDArray[np.int64], size: int, *, crops: bool) -> None:
        super().__init__(labels, None)
        self.files, self.size, self.crops = files, size, crops
        self._pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 16), thread_name_prefix="comt-read-images")

    def batch(self, indices: NDArray[np.int64]) -> ImageBatch:
        batch = super().batch(indices)
        return replace(batch, pixels=self._read(batch.indices, None))

    def train_batch(self, indices: NDArray[np.int64], seed: int, first: int) -> ImageBatch:
        batch = super().batch(indices)
        draws = uniform_draws(seed, first, len(batch.indices), DRAWS)
        return replace(batch, draws=draws, pixels=self._read(batch.indices, draws if self.crops else None))

    def _read(self, indices: NDArray[np.int64], draws: NDArray[np.float64] | None) -> NDArray[np.uint8]:
        rows = [None] * len(indices) if draws is None else list(draws)
        images = list(self._pool.map(self._read_one, indices.tolist(), rows))
        return np.stack(images) if images else np.empty((0, self.size, self.size, 3), dtype=np.uint8)

    def _read_one(self, index: int, draws: NDArray[np.float64] | None) -> NDArray[np.uint8]:
        anew = "Copy the file again from the data set, then run the same command again: it continues from there."
        with open_picture(Path(self.files[index]), anew) as file:
            image = file.convert("RGB")  # reads the pixels; threads run meanwhile
        if draws is None:
            from torchvision.transforms import functional

            scaled = functional.resize(image, round(self.size * 256 / 224))  # its shorter side
            return np.asarray(functional.center_crop(scaled, [self.size, self.size]))
        box = random_box(image.width, image.height, draws)
        return np.asarray(image.crop(box).resize((self.size, self.size), Resampling.BILINEAR))


def random_box(width: int, height: int, draws: NDArray[np.float64]) -> tuple[int, int, int, int]:
    """The (left, top, right, bottom) of a random part: 8 to 100 % of the area, aspect 3/4 to 4/3 (Szegedy et al. 2015),
    as in torchvision's RandomResizedCrop. The first of ten attempts that fits is used; if none does, the centre with
    the nearest allowed aspect. `draws`: float64 [DRAWS] in [0, 1), of which 1 to 22 are used."""
    top_draw, left_draw = draws[1:3].tolist()
    for area_draw, aspect_draw in draws[3:DRAWS].reshape(-1, 2).tolist():
        area = width * height * (0.08 + 0.92 * area_draw)
        aspect = math.exp(math.log(3 / 4) + (math.log(4 / 3) - math.log(3 / 4)) * aspect_draw)
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(left_draw * (width - w + 1)), int(top_draw * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
