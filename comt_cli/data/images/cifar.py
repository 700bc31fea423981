"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), as torchvision reads them: 50,000 and 10,000 images of 32 pixels.

Files are checked against torchvision's MD5 sums whenever they are opened, and downloaded where there are none.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from comt_cli.data.images.dataset import ImageDataset, ImageSide
from comt_cli.data.images.statistics import ColourSums
from comt_cli.data.images.subset import how_many
from comt_cli.data.images.torchvision_import import torchvision_datasets
from comt_cli.data.storage import ProgressCallback, file_lock, first_line, make_folder
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, sha256
from comt_cli.recipe.image_settings import ImageDataSettings


def cifar(data: ImageDataSettings, name: str, progress: ProgressCallback) -> ImageDataset:
    """The images of fingerprint `name`, from `data.folder` or the cache.

    Raises:
        UserError: they are neither there nor can be downloaded, or are damaged, or fewer than asked for.
        StorageError: the folder cannot be made.
    """
    folder = Path(data.folder).expanduser() if data.folder else cache_folder() / "images" / "cifar"
    datasets = torchvision_datasets()
    kind = datasets.CIFAR10 if data.images == "cifar10" else datasets.CIFAR100
    sources = _read(kind, data.images, folder, progress)
    counts = (
        how_many("train_images", data.train_images, len(sources[0].data), data.images),
        how_many("validation_images", data.validation_images, len(sources[1].data), data.images),
    )
    pixels = [np.ascontiguousarray(source.data[:count]) for source, count in zip(sources, counts, strict=True)]
    labels = [np.array(source.targets[:count], dtype=np.int64) for source, count in zip(sources, counts, strict=True)]
    sums = ColourSums()
    sums.add(pixels[0])
    mean, std = sums.mean_and_std()
    content = [
        hashlib.sha256(part.data).hexdigest() for part in (*pixels, *(numbers.astype("<i8") for numbers in labels))
    ]
    return ImageDataset(
        fingerprint=name,
        content_hash=sha256("".join(content))[:16],
        class_names=tuple(sources[0].classes),
        mean=mean,
        std=std,
        size=data.size,
        train=ImageSide(labels[0], pixels[0]),
        validation=ImageSide(labels[1], pixels[1]),
    )


def _read(kind: Any, name: str, folder: Path, progress: ProgressCallback) -> list[Any]:
    """Both sides as torchvision opens them, downloaded first where the folder has no such data."""
    if not (folder / kind.base_folder).exists():
        make_folder(folder)
        with file_lock(folder / f"{name}.lock", progress):
            if not (folder / kind.base_folder).exists():
                progress(f"downloading {name}", 0, None)
                _download(kind, name, folder)
    try:
        return [kind(folder, train=train) for train in (True, False)]
    except (RuntimeError, OSError, pickle.UnpicklingError, EOFError, KeyError, ValueError) as error:
        raise UserError(
            f"{name} is damaged or incomplete in {folder / kind.base_folder}: {first_line(error)}",
            f"Delete the folder {folder / kind.base_folder} and run the same command again, or copy it anew.",
        ) from error


def _download(kind: Any, name: str, folder: Path) -> None:
    try:
        kind(folder, train=True, download=True)
    except (RuntimeError, OSError) as error:  # urllib's errors are OSErrors; a wrong MD5 is a RuntimeError
        raise UserError(
            f"{name} is not in {folder} and cannot be downloaded: {first_line(error)}",
            f"Where there is a network, unpack {kind.url} and bring the folder {kind.base_folder} into {folder}; "
            "or say which folder has it: --set data.folder=/some/folder (of comt plot-images: --folder)",
        ) from error
