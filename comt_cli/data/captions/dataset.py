"""Images as regions, each with a caption, as padded batches: captioning's samples.

Shapes: N images of a split, C its captions, B samples of a batch, R regions of an image at most, F numbers of a region,
T words of the longest caption of a batch with the word that closes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.captions.corpus import CAPTION_SPLITS, CaptionCorpus, CaptionedImages, CaptionSplitName
from comt_cli.data.captions.regions import PatchRegions
from comt_cli.data.captions.scene_words import Scene
from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.prepared import PreparedTokens
from comt_cli.data.special_tokens import SpecialTokens
from comt_cli.data.split import AnyBatch, Split
from comt_cli.data.token_lists import TokenLists
from comt_cli.files import read_json

if TYPE_CHECKING:
    from comt_cli.data.captions.prepare import CaptionManifest


@dataclass(frozen=True)
class CaptionBatch(AnyBatch):
    """Images for one forward pass, each with one caption; padded on the right.

    Attributes:
        regions: float32 [B, R, F], the vectors of each image; 0 where there is no region.
        region_mask: bool [B, R], where there is one. Every image has at least one.
        target_in: int64 [B, T], what the decoder reads: the begin word, then the caption.
        target_out: int64 [B, T], what it predicts: the caption, then the end; `IGNORE` behind that.
        positions: int64 [B], a number for each sample that no other has in training, the same for every division of a
            step among devices and micro-batches. Dropout's masks follow from it.
        images: int64 [B], the numbers of the images in their split: of their references in `CaptionDataset.texts`.
    """

    counted = "target_out"

    regions: NDArray[np.float32]
    region_mask: NDArray[np.bool_]
    target_in: NDArray[np.int64]
    target_out: NDArray[np.int64]
    positions: NDArray[np.int64]
    images: NDArray[np.int64]


class RegionSource(Protocol):
    """The images of a split as regions."""

    def __len__(self) -> int:
        """How many images there are."""
        ...

    def regions(self, images_B: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The vectors, float32 [B, R, F], of images with these numbers, and where there are any, bool [B, R]."""
        ...


class CaptionSplit(Split[CaptionBatch]):
    """One split, as samples numbered from 0: an image with one of its captions.

    In training every caption of every image is a sample of its own: an epoch reads each image as often as it has
    captions, in an order over all of them. For evaluation a sample is an image with its first caption, whose loss is
    reported; what is generated is scored against all of them.
    """

    def __init__(
        self, source: RegionSource, captions: TokenLists, images_C: NDArray[np.int64], special: SpecialTokens
    ) -> None:
        """Caption c, a list of words without special ones, is one of image `images_C[c]`."""
        self.source, self._captions, self._images_C = source, captions, images_C
        self._special, self._counts_C = special, captions.lengths() + 1

    def __len__(self) -> int:
        return len(self._captions)

    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every word of a caption and its end."""
        return self._counts_C[np.asarray(indices, dtype=np.int64)]

    def batch(self, indices: NDArray[np.int64]) -> CaptionBatch:
        return self._batch(indices, np.asarray(indices, dtype=np.int64))

    def train_batch(self, indices: NDArray[np.int64], seed: int, first: int) -> CaptionBatch:
        return self._batch(indices, np.arange(first, first + len(indices), dtype=np.int64))

    def _batch(self, indices: NDArray[np.int64], positions_B: NDArray[np.int64]) -> CaptionBatch:
        indices_B = self._check(indices)
        images_B = self._images_C[indices_B]
        regions_BRF, mask_BR = self.source.regions(images_B)
        target_in_BT, target_out_BT = self._captions.shifted(indices_B, self._special)
        return CaptionBatch(regions_BRF, mask_BR, target_in_BT, target_out_BT, positions_B, images_B)


@dataclass(frozen=True)
class CaptionTexts:
    """The texts of a split: `references[i]` are the captions of image i, five as a rule."""

    references: Sequence[Sequence[str]]


class CaptionDataset(PreparedTokens[CaptionSplit]):
    """Captioned images. In training every image is read as often as it has captions, of which the first `max_length`
    words are kept; in the other splits once, with its first caption.

    Attributes:
        regions, features: the most regions of an image, and the numbers of one.
    """

    def __init__(self, data: CaptionData, corpus: CaptionCorpus, folder: Path, manifest: CaptionManifest) -> None:
        assert data.regions is not None
        assert data.features is not None
        super().__init__(folder, manifest)
        self.regions, self.features = data.regions, data.features
        self._corpus, self._max_length = corpus, data.max_length
        self._images = {
            split: CaptionedImages.from_json(read_json(folder / f"{split}.json", largest=1 << 32))
            for split in CAPTION_SPLITS
        }

    @property
    def texts(self) -> Mapping[str, CaptionTexts]:
        """The captions of "train", "validation" and "test"."""
        return {split: CaptionTexts(images.references) for split, images in self._images.items()}

    @property
    def scenes(self) -> Mapping[str, Sequence[Scene]] | None:
        """What is in each image of these splits; None where nobody knows (mscoco)."""
        found = [(split, images.scenes) for split, images in self._images.items() if images.scenes is not None]
        return dict(found) or None

    def image(self, split: str, number: int) -> NDArray[np.uint8] | None:
        """The pixels, uint8 [H, W, 3], of an image; None where there are features alone (mscoco)."""
        source = {"train": self.train, "validation": self.validation, "test": self.test}[split].source
        return np.array(source.pixels[number]) if isinstance(source, PatchRegions) else None

    def split(self, name: CaptionSplitName) -> CaptionSplit:
        captions = [
            (image, text)
            for image, texts in enumerate(self._images[name].words)
            for text in (texts if name == "train" else texts[:1])
        ]
        encoded = self.tokenizer.encode_batch([text for _, text in captions])
        kept = TokenLists.of([ids[: self._max_length] for ids in encoded] if name == "train" else encoded)
        numbers = np.array([image for image, _ in captions], dtype=np.int64)
        source = self._corpus.regions(name, self._images[name], self.folder)
        return CaptionSplit(source, kept, numbers, self.tokenizer.special)
