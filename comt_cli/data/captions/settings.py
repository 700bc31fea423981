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
    """The images of a split, in order: `references`, the captions of each as scores get them; `learned`, the same as
    words (None: equal); `scenes` of each (None: unknown); `features`, the file of each, its number of regions and its
    SHA-256 (None: pixels are regions)."""

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
        """The images whose `to_json` is `value`. Raises `ValueError`, `KeyError` or `TypeError` at anything else."""
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
        """State of the files of a user's folder. None: nothing is read from one. Raises `OSError`."""
        return None

    @abstractmethod
    def write(self, folder: Path, progress: ProgressCallback) -> dict[CaptionSplitName, CaptionedImages]:
        """The images of every split; rendered pixels are put into `folder`. Raises `UserError`."""

    @abstractmethod
    def tokenizer(self, images: Mapping[CaptionSplitName, CaptionedImages]) -> WordTokenizer:
        """The tokenizer of the captions' words. Raises `UserError` where they are not as many as was said."""

    @abstractmethod
    def regions(self, split: CaptionSplitName, images: CaptionedImages, folder: Path) -> Any:
        """The images of a split as regions (`dataset.Regions`), of which `folder` has what was prepared."""


VocabularyRule = Literal["all", "karpathy-gt5", "nltk-ge5"]
"""Words of the vocabulary: all; those that occur more than 5 times in the captions of all splits, as Karpathy's tokens
(as most published captioners have it); those that occur at least 5 times in training's, in NLTK-like tokens."""

Images = Annotated[WholeNumber, Field(ge=1, le=10**6)]  # their captions are held in memory


class CaptionData(DataSection):
    """Data of captioning. `images`, `validation_images` and `test_images` are how many `scenes` has. Of a training
    caption the first `max_length` words are kept. An image is at most `regions` vectors of `features` numbers."""

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
    """Captioned images, rendered, or read from a user's folder, whose files have to be as they were."""

    cache = "captions"
    manifest = CaptionManifest
    keys = ("vocabulary_rule", "vocabulary_size", "max_length", "regions", "features")

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        return {"format": CAPTION_FORMAT, "corpus": self.corpus.identity(progress)}

    def folder(self, name: str) -> Path:
        own = self.data.folder
        return super().folder(f"{name}-{sha256(str(Path(own).expanduser().absolute()))[:8]}" if own else name)

    def is_current(self, folder: Path, name: str) -> bool:
        with contextlib.suppress(OSError):  # the files are gone: writing says which
            is_whole = super().is_current(folder, name)
            return is_whole and CaptionManifest.read(folder, name).stamp == self.corpus.stamp()
        return False
