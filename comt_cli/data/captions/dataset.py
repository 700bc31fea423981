"""From settings to captioned images, once; what identifies them; and the data set, opened. Importing it imports no
NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.storage import ProgressCallback

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from comt_cli.data.captions.batches import CaptionSplit
    from comt_cli.data.captions.scene_words import Scene
    from comt_cli.data.word_tokenizer import WordTokenizer


@dataclass(frozen=True)
class CaptionTexts:
    """The texts of a split: `references[i]` are the captions of image i, five as a rule."""

    references: Sequence[Sequence[str]]


class CaptionDataset:
    """Captioned images of one fingerprint.

    Attributes:
        fingerprint: the identity of images, captions and words.
        content_hash: 16 hexadecimal digits over them.
        tokenizer: from captions to words; padding is 0, and it has begin and unknown.
        vocabulary_size: how many words there are, the special ones included.
        regions, features: the most regions of an image, and the numbers of one.
        train, validation, test: the splits.
        texts: the captions of "train", "validation" and "test".
        scenes: what is in each image of these splits; None where nobody knows (mscoco).
    """

    fingerprint: str
    content_hash: str
    tokenizer: WordTokenizer
    vocabulary_size: int
    regions: int
    features: int
    train: CaptionSplit
    validation: CaptionSplit
    test: CaptionSplit
    texts: Mapping[str, CaptionTexts]
    scenes: Mapping[str, Sequence[Scene]] | None

    def image(self, split: str, number: int) -> NDArray[np.uint8] | None:
        """The pixels, uint8 [H, W, 3], of an image; None where there are features alone (mscoco)."""
        raise NotImplementedError


def fingerprint(data: CaptionData, progress: ProgressCallback | None = None) -> str:
    """16 hexadecimal digits that identify the images, captions and words that `data` describes. Reads no folder."""
    raise NotImplementedError


def known_content(data: CaptionData, fingerprint: str) -> str | None:
    """The content hash of what is prepared under this fingerprint; None where nothing is, or it cannot be read."""
    raise NotImplementedError


def prepare(data: CaptionData, progress: ProgressCallback | None = None) -> CaptionDataset:
    """The images that `data` describes: rendered, or read from their folder, now unless they were before.

    Raises:
        UserError: the folder is not as needed, or prepared files are damaged.
        StorageError: the disk is full or refuses.
    """
    raise NotImplementedError
