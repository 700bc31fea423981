"""Captioned images, opened: regions, words, captions, and what is known to be in each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.captions.batches import CaptionSplit
from comt_cli.data.captions.corpus import CAPTION_SPLITS, CaptionCorpus, CaptionedImages, CaptionSplitName
from comt_cli.data.captions.regions import PatchRegions
from comt_cli.data.captions.scene_words import Scene
from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.prepared import PreparedTokens
from comt_cli.data.token_lists import TokenLists
from comt_cli.files import read_json

if TYPE_CHECKING:
    from comt_cli.data.captions.prepare import CaptionManifest


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
