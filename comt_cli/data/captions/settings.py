"""Captioned images: corpora, settings and identity. Importing it imports no NumPy."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from comt_cli.data.captions.words import Scene, SceneObject
from comt_cli.data.prepare import Manifest, Prepared
from comt_cli.data.settings import DataSection, Named, name_of
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.tokenizer import WordTokenizer
from comt_cli.files import sha256
from comt_cli.recipe.settings import MAX_WIDTH, Vocabulary, WholeNumber

CAPTION_FORMAT = 1  # version, as tests/contract/test_cache_versions.py says

CaptionSplitName = Literal["train", "validation", "test"]
CAPTION_SPLITS: tuple[CaptionSplitName, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class CaptionedImages:
    """The images of a split, in order: `references`, their captions for scores; `learned`, the captions as words for
    training (None: the references); `scenes` (None: unknown); `features`, each image's file, number of regions and
    SHA-256 (None: patches of pixels)."""

    references: Sequence[Sequence[str]]
    learned: Sequence[Sequence[str]] | None = None
    scenes: Sequence[Scene] | None = None
    features: Sequence[tuple[str, int, str]] | None = None

    @property
    def words(self) -> Sequence[Sequence[str]]:
        return self.references if self.learned is None else self.learned

    def to_json(self) -> dict[str, Any]:
        scenes: Any = self.scenes and [[scene.paper, *map(astuple, scene.objects)] for scene in self.scenes]
        return {"references": self.references, "learned": self.learned, "scenes": scenes, "features": self.features}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CaptionedImages:
        """The images with this `to_json` value. Raises `ValueError`, `KeyError` or `TypeError` for any other value."""
        scenes = value["scenes"] and [
            Scene(tuple(SceneObject(*[*own, (right, down)]) for *own, (right, down) in objects), paper)
            for paper, *objects in value["scenes"]
        ]
        return cls(**{**value, "scenes": scenes})


class CaptionCorpus(Named):
    """A source of captioned images."""

    package = "comt_cli.data.captions.corpora"
    data: CaptionData

    def stamp(self) -> str | None:
        """A stamp of the files in a user's folder; None if there is no folder. Raises `OSError`."""
        return None

    @abstractmethod
    def write(self, folder: Path, progress: ProgressCallback) -> dict[CaptionSplitName, CaptionedImages]:
        """The images of every split; writes rendered pixels to `folder`. Raises `UserError`."""

    @abstractmethod
    def tokenizer(self, images: Mapping[CaptionSplitName, CaptionedImages]) -> WordTokenizer:
        """The tokenizer of the captions' words. Raises `UserError` if their number is not `vocabulary_size`."""

    @abstractmethod
    def regions(self, split: CaptionSplitName, images: CaptionedImages, folder: Path) -> Any:
        """The images of a split as regions (`dataset.Regions`); `folder` has the prepared data."""


VocabularyRule = Literal["all", "karpathy-gt5", "nltk-ge5"]
"""The words of the vocabulary: all; Karpathy's tokens with more than 5 occurrences in the captions of all splits (the
rule of most published captioners); or NLTK-like tokens with at least 5 occurrences in training captions."""

Images = Annotated[WholeNumber, Field(ge=1, le=10**6)]  # their captions are held in memory


class CaptionData(DataSection):
    """Data of captioning. `images`, `validation_images` and `test_images` are the sizes of `scenes`. Training captions
    are cut to `max_length` words. An image has at most `regions` vectors of `features` numbers."""

    kind = CaptionCorpus

    corpus: Annotated[str, name_of(CaptionCorpus)] = "scenes"
    folder: str | None = None
    difficulty: Literal["easy", "full"] | None = None
    images: Images | None = None
    validation_images: Images | None = None
    test_images: Images | None = None
    vocabulary_rule: VocabularyRule = "all"
    vocabulary_size: Vocabulary | None = None
    max_length: Annotated[WholeNumber, Field(ge=1, le=1000)] | None = None
    regions: Annotated[WholeNumber, Field(ge=1, le=1000)] | None = None
    features: Annotated[WholeNumber, Field(ge=1, le=MAX_WIDTH)] | None = None


class CaptionManifest(Manifest):
    """Record of prepared captions; `stamp` is the corpus's."""

    format: int
    corpus: list[Any]
    stamp: str | None
    images: dict[CaptionSplitName, NonNegativeInt]


class Kind(Prepared[CaptionData, CaptionCorpus]):
    """Captioned images, rendered or read from a user's folder, whose files must not change."""

    cache = "captions"
    manifest = CaptionManifest
    keys = ("vocabulary_rule", "vocabulary_size", "max_length", "regions", "features")

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        return {"format": CAPTION_FORMAT, "corpus": self.corpus.identity(progress)}

    def folder(self, name: str) -> Path:
        own = self.data.folder
        return super().folder(f"{name}-{sha256(str(Path(own).expanduser().absolute()))[:8]}" if own else name)

    def is_current(self, folder: Path, name: str) -> bool:
        with contextlib.suppress(OSError):  # missing files are reported when they are read
            is_whole = super().is_current(folder, name)
            return is_whole and CaptionManifest.read(folder, name).stamp == self.corpus.stamp()
        return False
