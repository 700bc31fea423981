"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), read by torchvision: 50,000 and 10,000 images of 32 pixels. torchvision
checks the files' MD5 sums, and unpacks the archive in the folder, or downloads it."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from tarfile import TarError
from typing import Any, ClassVar

import numpy as np

from comt_cli.data.images.dataset import ImageDataset, ImageSplit, histograms, mean_and_std
from comt_cli.data.images.pictures import torchvision_datasets
from comt_cli.data.images.settings import IMAGE_SPLITS, FolderSet, ImageDataSettings
from comt_cli.data.storage import ProgressCallback, file_lock, first_line
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, make_folder, sha256


class Cifar(FolderSet):
    """CIFAR-10 or CIFAR-100."""

    classes: ClassVar[Mapping[str, int]] = {"cifar10": 10, "cifar100": 100}
    names = tuple(classes)
    cache = "cifar"

    @classmethod
    def contradictions(cls, data: ImageDataSettings) -> Iterator[str]:
        if data.size != 32:
            yield f"size: the images of {data.images} are 32 pixels wide; leave the key out"
        if data.augmentation == "resized-crop-flip":
            yield f"augmentation: resized-crop-flip is for imagenet; {data.images} has crop and crop-flip"

    def read(self, name: str, progress: ProgressCallback) -> ImageDataset:
        data, folder = self.data, self.folder
        datasets = torchvision_datasets()
        kind = datasets.CIFAR10 if data.images == "cifar10" else datasets.CIFAR100
        if data.folder and not folder.is_dir():  # most likely a typing error, so nothing is downloaded there
            raise UserError(
                f"data.folder (comt plot-images: --folder): the folder {folder} for {data.images} does not exist",
                f"Correct it; or make the folder, {_bring(kind, folder)}; or leave the key out to use the cache.",
            )
        sources = _read(kind, data.images, folder, progress)
        counts = [self.count(split, len(source.data)) for split, source in zip(IMAGE_SPLITS, sources, strict=True)]
        both = [*zip(sources, counts, strict=True)]
        pixels = [np.ascontiguousarray(source.data[:count]) for source, count in both]
        labels = [np.array(source.targets[:count], dtype=np.int64) for source, count in both]
        parts = (*pixels, *(numbers.astype("<i8") for numbers in labels))
        content = sha256("".join(hashlib.sha256(part.data).hexdigest() for part in parts))[:16]
        mean, std = mean_and_std(histograms(pixels[0]))
        train, validation = map(ImageSplit, labels, pixels)
        return ImageDataset(name, content, tuple(sources[0].classes), mean, std, data.size, train, validation)


def _read(kind: Any, name: str, folder: Path, progress: ProgressCallback) -> list[Any]:
    """Both splits opened by torchvision; unpacked or downloaded first if the folder does not have them."""
    base = folder / kind.base_folder
    # The lock is in the cache, because the folder may be a user's, given by mistake.
    lock = cache_folder() / "images" / "locks" / (sha256(f"{name} {folder.resolve()}")[:16] + ".lock")
    with contextlib.nullcontext() if base.exists() else file_lock(lock, progress):
        is_there = base.exists()
        make_folder(folder)
        try:
            if not is_there:
                progress(f"unpacking {name} in {folder}, downloaded first where it is not there", 0, None)
            return [kind(folder, train=train, download=not is_there) for train in (True, False)]
        except (RuntimeError, OSError, EOFError, KeyError, ValueError, pickle.UnpicklingError, TarError) as error:
            raise UserError(
                f"{name} is damaged in {base}, or missing and cannot be downloaded: {first_line(error)}",
                f"Delete the damaged folder; with a network, {_bring(kind, folder)}; or name another folder: --set "
                "data.folder=/some/folder (comt plot-images: --folder)",
            ) from error


def _bring(kind: Any, folder: Path) -> str:
    return f"download {kind.url} into {folder} (comt checks and unpacks it)"
