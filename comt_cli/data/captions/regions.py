"""Images as regions: the patches of a rendered scene, or features that a detector made, one file an image.

Shapes: N images, B of a batch, R regions at most, F numbers of a region, S pixels of an image's side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.captions.scenes import SCENE_PATCH
from comt_cli.errors import UserError
from comt_cli.files import open_file

MIDDLE = 127.5
"""Pixels become numbers from -1 to 1."""

_FORM = "It should be .npy, or .npz with an array `feat`."


class PatchRegions:
    """Images in memory or mapped into it, uint8 [N, S, S, 3], cut in patches."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def regions(self, images_B: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """float32 [B, R, F] and bool [B, R]: every image has all R."""
        regions_BRF = patches(self.pixels[images_B])
        return regions_BRF, np.ones(regions_BRF.shape[:2], dtype=np.bool_)


def patches(pixels_BSS3: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Square patches row by row, float32 [B, R, F] in [-1, 1]; the numbers of a patch are its pixels row by row, each
    red, green, blue. Raises `ValueError` where S is no multiple of a patch's side."""
    count, side = len(pixels_BSS3), pixels_BSS3.shape[1] // SCENE_PATCH
    cut = pixels_BSS3.reshape(count, side, SCENE_PATCH, side, SCENE_PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
    regions_BRF: NDArray[np.float32] = cut.reshape(count, side * side, -1).astype(np.float32) / np.float32(MIDDLE) - 1
    return regions_BRF


class FeatureFiles:
    """Images as files of features, read when needed. A batch has as many regions as its image with the most."""

    def __init__(self, files: Sequence[Path], counts_N: NDArray[np.int64], features: int) -> None:
        """File i holds `counts_N[i]` regions of `features` numbers."""
        self._files, self._counts_N, self._features = files, counts_N, features

    def __len__(self) -> int:
        return len(self._files)

    def regions(self, images_B: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """float32 [B, R, F], 0 where there is no region, and bool [B, R]. Raises `UserError` where a file changed."""
        counts_B = self._counts_N[images_B]
        mask_BR = np.arange(counts_B.max()) < counts_B[:, None]
        regions_BRF = np.zeros((*mask_BR.shape, self._features), dtype=np.float32)
        for row, (image, count) in enumerate(zip(images_B.tolist(), counts_B.tolist(), strict=True)):
            found = read_features(self._files[image], count, self._features)
            if len(found) != count:
                raise UserError(
                    f"{self._files[image]}: it has {len(found)} regions; it had {count} when it was prepared"
                )
            regions_BRF[row, :count] = found
        return regions_BRF, mask_BR


def read_features(file: Path, most: int, features: int) -> NDArray[np.float32]:
    """The regions in a file: .npy, or .npz with one array or one that is called `feat`; float32 [at most `most`,
    `features`].

    Raises:
        UserError: it cannot be read, has another shape, or numbers that are not finite; the message names it.
    """
    try:
        with open_file(file) as handle:
            found = np.load(handle, allow_pickle=False)
            if isinstance(found, np.lib.npyio.NpzFile):
                found = found["feat" if "feat" in found.files or len(found.files) != 1 else found.files[0]]
    # Of a damaged file NumPy raises what comes first: a dozen types, zipfile's and zlib's among them.
    except Exception as error:
        raise UserError(f"{file}: its features cannot be read: {error}", _FORM) from error
    if found.dtype.kind not in "fiub":
        raise UserError(f"{file}: its features are of the type {found.dtype}, and no real numbers", _FORM)
    with np.errstate(over="ignore"):  # what is too large for fp32 is not finite, and refused below
        regions = np.asarray(found, dtype=np.float32)
    if regions.ndim != 2 or regions.shape[1] != features or not 1 <= len(regions) <= most:
        raise UserError(
            f"{file}: its features have the shape {list(regions.shape)}, not [1 to {most}, {features}]",
            "data.regions and data.features say how many regions an image has at most, and how many numbers a region.",
        )
    if not np.isfinite(regions).all():
        raise UserError(f"{file}: a number in it is not finite")
    return regions
