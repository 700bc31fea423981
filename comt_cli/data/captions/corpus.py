"""What a corpus of captioned images offers to settings and to preparation. Importing it imports no NumPy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from comt_cli.data.captions.scene_words import Scene, SceneObject
from comt_cli.data.registry import Named
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.word_tokenizer import WordTokenizer

if TYPE_CHECKING:
    from comt_cli.data.captions.dataset import RegionSource
    from comt_cli.data.captions.settings import CaptionData

CaptionSplitName = Literal["train", "validation", "test"]
CAPTION_SPLITS: tuple[CaptionSplitName, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class CaptionedImages:
    """The images of a split, in order.

    Attributes:
        references: the captions of each image, as scores get them.
        learned: the same as words with spaces between, as they are learned; None where they are that already.
        scenes: what is in each image; None where nobody knows.
        features: the file of each image, its number of regions, and its SHA-256; None where pixels are regions.
    """

    references: Sequence[Sequence[str]]
    learned: Sequence[Sequence[str]] | None = None
    scenes: Sequence[Scene] | None = None
    features: Sequence[tuple[str, int, str]] | None = None

    @property
    def words(self) -> Sequence[Sequence[str]]:
        """The captions of each image as words with spaces between."""
        return self.references if self.learned is None else self.learned

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        scenes = None if self.scenes is None else [_scene_as_json(scene) for scene in self.scenes]
        return {
            "references": self.references,
            "learned": self.learned,
            "scenes": scenes,
            "features": self.features,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CaptionedImages:
        """The images whose `to_json` is `value`. Raises `ValueError`, `KeyError` or `TypeError` at anything else."""
        scenes = value["scenes"]
        known = None if scenes is None else [_scene_from_json(scene) for scene in scenes]
        return cls(value["references"], value["learned"], known, value["features"])


_KEYS = tuple(field.name for field in fields(SceneObject))


def _scene_as_json(scene: Scene) -> list[Any]:
    return [scene.paper, *([getattr(each, key) for key in _KEYS] for each in scene.objects)]


def _scene_from_json(value: Sequence[Any]) -> Scene:
    paper, *objects = value
    known = [dict(zip(_KEYS, each, strict=True)) for each in objects]
    return Scene(tuple(SceneObject(**each | {"shift": tuple(each["shift"])}) for each in known), paper)


class CaptionCorpus(Named):
    """A source of captioned images with an identity that is known before any of them is read."""

    package = "comt_cli.data.captions.corpora"

    data: CaptionData

    @abstractmethod
    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """What is asked for, as JSON. Raises `UserError`."""

    def stamp(self) -> str | None:
        """What changes with the files of a user's folder. None: nothing is read from one. Raises `OSError`."""
        return None

    @abstractmethod
    def write(self, folder: Path, progress: ProgressCallback) -> dict[CaptionSplitName, CaptionedImages]:
        """The images of every split; the pixels of those that are rendered are put into `folder`. Raises
        `UserError`."""

    @abstractmethod
    def tokenizer(self, images: Mapping[CaptionSplitName, CaptionedImages]) -> WordTokenizer:
        """The tokenizer of the captions' words. Raises `UserError` where they are not as many as was said."""

    @abstractmethod
    def regions(self, split: CaptionSplitName, images: CaptionedImages, folder: Path) -> RegionSource:
        """The images of a split as regions, of which `folder` has what was prepared."""
