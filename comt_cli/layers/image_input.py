"""Input of image networks: batches of image numbers, augmented and normalised on the device.

Shapes: N images of a split, B of a batch, S rows and columns of an image.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.data.images.dataset import ImageBatch, ImageDataset
from comt_cli.data.images.settings import Augmentation


class ImageInput:
    """Converts a batch of one split of `dataset` to (x, labels) on the device. x is fp32 [B, 3, S, S] in channels-last
    memory, normalised by the mean and standard deviation of the training split; labels are int64 [B]. If the split
    holds all its pixels, they are kept on the device as bytes. A batch with draws is augmented: `crop` pads an image
    with S // 8 black pixels on every side and cuts S x S at a random position (He et al. 2016: 4 pixels for 32);
    `crop-flip` also mirrors half of the images. Images of `resized-crop-flip` were cut when they were read and are only
    mirrored. A batch without draws, as in evaluation, is not augmented."""

    def __init__(
        self, dataset: ImageDataset, split_name: Literal["train", "validation"], augmentation: Augmentation,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.device = device
        self.crops = augmentation in ("crop", "crop-flip")
        self.flips = augmentation in ("crop-flip", "resized-crop-flip")
        split = dataset.train if split_name == "train" else dataset.validation
        # [N * S * S, 3], one row per pixel: crop and mirror only choose rows.
        self._pixels = None if split.pixels is None else torch.from_numpy(split.pixels).to(device).reshape(-1, 3)
        self._size = dataset.size
        mean, std = (torch.tensor(numbers, dtype=torch.float64) for numbers in (dataset.mean, dataset.std))
        self._scale = (1 / (255 * std)).float().to(device)
        self._shift = (-mean / std).float().to(device)

    def __call__(self, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        is_cut = batch.draws is not None and (self.crops or self.flips)
        labels_B, x_BSS3 = self._cut(batch) if is_cut else self._whole(batch)
        x_BSS3 = torch.addcmul(self._shift, x_BSS3.float(), self._scale)
        return x_BSS3.permute(0, 3, 1, 2), labels_B

    def shown(self, x: Tensor) -> NDArray[np.uint8]:
        """Images for display, uint8 [B, S, S, 3], without normalisation."""
        brightness = (x.detach().permute(0, 2, 3, 1).float() - self._shift) / self._scale
        shown: NDArray[np.uint8] = brightness.round().clamp(0, 255).to(torch.uint8).cpu().numpy()
        return shown

    def _whole(self, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        labels_B, indices_B = self._move_together(batch.labels, batch.indices)
        if self._pixels is None:
            assert batch.pixels is not None
            return labels_B, self._move(batch.pixels)
        return labels_B, self._pixels.view(-1, self._size, self._size, 3)[indices_B]

    def _cut(self, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        """Labels and images cropped and mirrored according to the draws, uint8 [B, S, S, 3]."""
        assert batch.draws is not None
        size, edge = self._size, self._size // 8 if self.crops else 0
        if self._pixels is None:  # images that are read one by one come with their batch
            assert batch.pixels is not None
            pixels_P3, images_B = self._move(batch.pixels).reshape(-1, 3), np.arange(len(batch.indices))
        else:
            pixels_P3, images_B = self._pixels, batch.indices
        # On the CPU in double precision: the same for every device.
        offsets_B2 = np.floor(batch.draws[:, 1:3] * (2 * edge + 1)).astype(np.int64) - edge
        along_S = np.arange(size, dtype=np.int64)
        rows_BS = offsets_B2[:, :1] + along_S
        columns_BS = offsets_B2[:, 1:] + along_S
        if self.flips:
            columns_BS = np.where(batch.draws[:, :1] < 0.5, columns_BS[:, ::-1], columns_BS)
        outside_2BS = np.stack([(places < 0) | (places >= size) for places in (rows_BS, columns_BS)])
        first_BS = (images_B[:, None] * size + rows_BS.clip(0, size - 1)) * size
        labels_B, starts_BS, along_BS, (outside_rows_BS, outside_columns_BS) = self._move_together(
            batch.labels, first_BS, columns_BS.clip(0, size - 1), outside_2BS
        )
        places_BSS = starts_BS[:, :, None] + along_BS[:, None, :]
        cut_BSS3 = pixels_P3.index_select(0, places_BSS.flatten()).view(-1, size, size, 3)
        if edge:
            cut_BSS3.masked_fill_((outside_rows_BS[:, :, None] | outside_columns_BS[:, None, :])[..., None], 0)
        return labels_B, cut_BSS3

    def _move_together(self, *arrays: NDArray[Any]) -> list[Tensor]:
        """The arrays on the device by one copy, since a copy of so few bytes costs the same whatever its size. Arrays
        of 8-byte numbers come first, because of alignment."""
        together = np.concatenate([np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in arrays])
        parts = torch.split(self._move(together), [each.nbytes for each in arrays])
        types = [torch.from_numpy(np.empty(0, each.dtype)).dtype for each in arrays]
        return [
            part.reshape(-1, dtype.itemsize).view(dtype).view(each.shape)
            for part, dtype, each in zip(parts, types, arrays, strict=True)
        ]

    def _move(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor
