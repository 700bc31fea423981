"""Captioned images as padded batches of regions (patches of a scene, or features from a file).

Shapes: N images of a split, C its captions, B samples of a batch, R most regions of an image, F numbers of a region, S
pixels of an image's side, T words of a batch's longest caption, with its end token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.captions.settings import CAPTION_FORMAT, CAPTION_SPLITS, CaptionedImages, CaptionManifest, Kind
from comt_cli.data.captions.words import SCENE_PATCH, Scene
from comt_cli.data.prepare import TOKENIZER, Manifest, PreparedTokens
from comt_cli.data.split import AnyBatch, Ints, PositionedSplit, TokenLists
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.tokenizer import SpecialTokens
from comt_cli.errors import UserError
from comt_cli.files import open_file, read_json, write_json


@dataclass(frozen=True)
class CaptionBatch(AnyBatch):
    """Images for one forward pass, each with one caption, padded on the right: `regions` float32 [B, R, F] and
    `region_mask` bool [B, R], at least one region per image; `target_in` and `target_out` int64 [B, T], see
    `TokenLists.shifted`; `positions` int64 [B], for dropout masks; `images` int64 [B], numbers in their split."""

    counted = "target_out"

    regions: NDArray[np.float32]
    region_mask: NDArray[np.bool_]
    target_in: Ints
    target_out: Ints
    positions: Ints
    images: Ints


class PatchRegions:
    """Images in memory or memory-mapped, uint8 [N, S, S, 3], cut into patches."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self.pixels = pixels

    def regions(self, images_B: Ints) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        regions_BRF = patches(self.pixels[images_B])
        return regions_BRF, np.ones(regions_BRF.shape[:2], dtype=np.bool_)


def patches(pixels_BSS3: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Square patches in rows, float32 [B, R, F] in [-1, 1]; each is its pixels in rows, as red, green, blue."""
    count, side = len(pixels_BSS3), pixels_BSS3.shape[1] // SCENE_PATCH
    cut = pixels_BSS3.reshape(count, side, SCENE_PATCH, side, SCENE_PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
    return np.asarray(cut.reshape(count, side * side, -1).astype(np.float32) / np.float32(127.5) - 1)


class FeatureFiles:
    """Images as files of features, read when needed. A batch is as wide as its largest image."""

    def __init__(self, files: Sequence[Path], counts_N: Ints, features: int) -> None:
        """File i holds `counts_N[i]` regions of `features` numbers."""
        self._files, self._counts_N, self._features = files, counts_N, features

    def regions(self, images_B: Ints) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """float32 [B, R, F], 0 for missing regions, and bool [B, R]. Raises `UserError` if a file has changed."""
        counts_B = self._counts_N[images_B]
        mask_BR = np.arange(counts_B.max()) < counts_B[:, None]
        regions_BRF = np.zeros((*mask_BR.shape, self._features), dtype=np.float32)
        for row, (image, count) in enumerate(zip(images_B.tolist(), counts_B.tolist(), strict=True)):
            found = read_features(self._files[image], count, self._features)
            if len(found) != count:
                said = f"it has {len(found)} regions, but had {count} when the data was prepared"
                raise UserError(f"{self._files[image]}: {said}")
            regions_BRF[row, :count] = found
        return regions_BRF, mask_BR


def read_features(file: Path, most: int, features: int) -> NDArray[np.float32]:
    """The regions in a file, .npy or .npz with one array or an array `feat`; float32 [at most `most`, `features`].
    Raises `UserError` if it cannot be read, has another shape, or has numbers that are not finite."""
    try:
        with open_file(file) as handle:
            found = np.load(handle, allow_pickle=False)
            if isinstance(found, np.lib.npyio.NpzFile):
                found = found["feat" if "feat" in found.files or len(found.files) != 1 else found.files[0]]
    # For damaged files NumPy raises a dozen types, including zipfile's and zlib's.
    except Exception as error:
        form = "It should be .npy, or .npz with an array `feat`."
        raise UserError(f"{file}: its features cannot be read: {error}", form) from error
    if found.ndim != 2 or found.shape[1] != features or not 1 <= len(found) <= most or found.dtype.kind not in "fiub":
        hint = "data.regions is the maximum number of regions, data.features the numbers per region."
        said = f"its features have the shape {list(found.shape)} ({found.dtype}), not [1 to {most}, {features}]"
        raise UserError(f"{file}: {said}", hint)
    with np.errstate(over="ignore"):  # values too large for fp32 become infinite, and are refused below
        regions = np.asarray(found, dtype=np.float32)
    if not np.isfinite(regions).all():
        raise UserError(f"{file}: a value is not finite")
    return regions


Regions = PatchRegions | FeatureFiles


class CaptionSplit(PositionedSplit[CaptionBatch]):
    """Images with a caption each: in training every caption of every image, in evaluation the first."""

    def __init__(self, source: Regions, captions: TokenLists, images_C: Ints, special: SpecialTokens) -> None:
        """Caption c, a list of tokens without special ones, belongs to image `images_C[c]`."""
        super().__init__(captions.lengths() + 1)
        self.source, self._captions, self._images_C, self._special = source, captions, images_C, special

    def _batch(self, indices: Ints, positions: Ints) -> CaptionBatch:
        images_B = self._images_C[indices]
        regions_BRF, mask_BR = self.source.regions(images_B)
        target_in_BT, target_out_BT = self._captions.shifted(indices, self._special)
        return CaptionBatch(regions_BRF, mask_BR, target_in_BT, target_out_BT, positions, images_B)


class CaptionDataset(PreparedTokens[CaptionSplit]):
    """Captioned images; `texts` are the captions by split. Training captions are cut to `max_length` words."""

    def __init__(self, kind: Kind, folder: Path, manifest: CaptionManifest) -> None:
        super().__init__(folder, manifest)
        self._corpus, self._max_length = kind.corpus, kind.data.max_length
        self.texts: Mapping[str, CaptionedImages] = {
            split: CaptionedImages.from_json(read_json(folder / f"{split}.json")) for split in CAPTION_SPLITS
        }

    @property
    def scenes(self) -> Mapping[str, Sequence[Scene]] | None:
        """The scene of each image by split; None if it is unknown (mscoco)."""
        return {split: images.scenes for split, images in self.texts.items() if images.scenes is not None} or None

    def image(self, split: str, number: int) -> NDArray[np.uint8] | None:
        """The pixels of an image, uint8 [H, W, 3]; None if there are only features (mscoco)."""
        source: Regions = getattr(self, split).source
        return np.array(source.pixels[number]) if isinstance(source, PatchRegions) else None

    def split(self, name: Any) -> CaptionSplit:
        captions = [texts if name == "train" else texts[:1] for texts in self.texts[name].words]
        encoded = self.tokenizer.encode_batch([text for texts in captions for text in texts])
        kept = TokenLists.of([ids[: self._max_length] for ids in encoded] if name == "train" else encoded)
        numbers = np.repeat(np.arange(len(captions), dtype=np.int64), [len(texts) for texts in captions])
        source = self._corpus.regions(name, self.texts[name], self.folder)
        return CaptionSplit(source, kept, numbers, self.tokenizer.special)


opened = CaptionDataset


def write(kind: Kind, folder: Path, name: str, progress: ProgressCallback) -> Manifest:
    """Write captions, words and pixels."""
    corpus = kind.corpus
    images, stamp = corpus.write(folder, progress), corpus.stamp()
    corpus.tokenizer(images).save(folder / TOKENIZER)
    for split, each in images.items():
        write_json(folder / f"{split}.json", each.to_json())
    names = [TOKENIZER, *(f"{split}.json" for split in images), *(f"{split}.pixels" for split in images)]
    names = [each for each in names if (folder / each).exists()]  # features have no pixels
    counts = {split: len(each.references) for split, each in images.items()}
    own = {"format": CAPTION_FORMAT, "corpus": corpus.identity(), "stamp": stamp, "images": counts}
    return kind.record(name, folder, names, **own)
