"""ImageNet from a folder, read image by image as training goes: `train/` and `val/` with a folder a class.

It is never downloaded: its licence asks everyone to do that for themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.data.images.image_set import FolderSet, how_many
from comt_cli.data.images.torchvision_import import torchvision_datasets
from comt_cli.data.storage import ProgressCallback, first_line
from comt_cli.errors import UserError
from comt_cli.files import canonical_json, sha256

if TYPE_CHECKING:
    from comt_cli.data.images.dataset import ImageDataset
    from comt_cli.data.images.folder_split import FolderSplit
    from comt_cli.data.images.settings import ImageDataSettings

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the training split, as everybody uses them: reading all of it to compute them would take an hour."""


class ImageNet(FolderSet):
    """The set.

    A file's place in its split is shuffled once and for all: the first so many hold all classes. Of the files' content
    their sizes stand for the pixels: copies that were scaled or encoded anew differ in them, and reading 140 GB before
    a run starts would take longer than people wait.
    """

    classes: ClassVar[Mapping[str, int]] = {"imagenet": 1000}
    names = tuple(classes)
    cache = "imagenet"

    @classmethod
    def contradictions(cls, data: ImageDataSettings) -> Iterator[str]:
        if data.augmentation in ("crop", "crop-flip"):
            yield "augmentation: images of different sizes need resized-crop-flip, or none"

    def identity(self) -> list[Any]:
        """The images are cropped as they are read."""
        return [self.data.images, self.data.augmentation]

    def read(self, name: str, progress: ProgressCallback) -> ImageDataset:
        """The images in the folder. Raises `UserError` where it is not as it must be, or has fewer than asked for."""
        from comt_cli.data.images.dataset import ImageDataset

        data, folder = self.data, self.folder
        progress("listing the files of imagenet", 0, None)
        train, validation = (_list(folder / part, data) for part in ("train", "val"))
        if train.classes != validation.classes:
            differs = sorted({*train.classes} ^ {*validation.classes})[0]
            raise _unfit(folder, f"the folders in train/ and val/ are not the same classes ({differs} is in one only)")
        splits = (
            _split(train, data, "train_images", data.train_images),
            _split(validation, data, "validation_images", data.validation_images),
        )
        content = [
            [[Path(file).relative_to(folder).as_posix(), Path(file).stat().st_size] for file in split.files]
            for split in splits
        ]
        return ImageDataset(
            fingerprint=name,
            content_hash=sha256(canonical_json(content))[:16],
            class_names=tuple(train.classes),
            mean=MEAN,
            std=STD,
            size=data.size,
            train=splits[0],
            validation=splits[1],
        )


def _list(folder: Path, data: ImageDataSettings) -> Any:
    """torchvision's list of the files and classes of one split."""
    try:
        listed = torchvision_datasets().ImageFolder(folder)
    except (OSError, ValueError) as error:  # FileNotFoundError: no folder of a class, or an empty one
        raise _unfit(folder.parent, first_line(error)) from error
    if len(listed.classes) != data.classes:
        raise _unfit(folder.parent, f"{folder} has {len(listed.classes)} folders of classes, not {data.classes}")
    return listed


def _split(listed: Any, data: ImageDataSettings, key: str, wanted: int | None) -> FolderSplit:
    import numpy as np

    from comt_cli.data.images.folder_split import FolderSplit
    from comt_cli.data.order import sample_indices

    count = how_many(key, wanted, len(listed.samples), data.images)
    order = sample_indices(0, 0, count, len(listed.samples)).tolist()
    files = [listed.samples[place][0] for place in order]
    labels = np.array([listed.samples[place][1] for place in order], dtype=np.int64)
    return FolderSplit(files, labels, data.size, crops=data.augmentation == "resized-crop-flip")


def _unfit(folder: Path, reason: str) -> UserError:
    return UserError(
        f"imagenet is not in {folder}: {reason}",
        "It must have train/ and val/, each with one folder of JPEG files a class (train/n01440764/*.JPEG), and is not "
        "downloaded: get it from image-net.org, and say where it lies with --set data.folder=/some/folder "
        "(of comt plot-images: --folder)",
    )
