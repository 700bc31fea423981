"""`scenes`: drawn scenes and true captions of them (`captions/scenes.py`), rendered into the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.data.captions.corpus import CaptionCorpus, CaptionedImages, CaptionSplitName
from comt_cli.data.captions.scene_words import FACES, WORDS
from comt_cli.data.captions.scenes import SCENE_PATCH, SCENE_PIXELS, SCENES_VERSION
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.word_tokenizer import SPECIAL_WORDS, WordTokenizer

if TYPE_CHECKING:
    from comt_cli.data.captions.dataset import RegionSource
    from comt_cli.data.captions.settings import CaptionData


class Scenes(CaptionCorpus):
    """The corpus: scenes and captions are drawn, and their images rendered into the folder of what is prepared."""

    names = ("scenes",)
    order = 0
    keys: ClassVar[Mapping[str, Any]] = {
        "difficulty": "full",
        "images": 20_000,
        "validation_images": 500,
        "test_images": 1000,
    }
    fixed: ClassVar[Mapping[str, int]] = {
        "vocabulary_size": SPECIAL_WORDS + len(WORDS),
        "regions": (SCENE_PIXELS // SCENE_PATCH) ** 2,
        "features": 3 * SCENE_PATCH**2,
    }

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        return {**cls.keys, **cls.fixed, "max_length": 40}

    @classmethod
    def contradictions(cls, data: CaptionData) -> Iterator[str]:
        for key, value in cls.fixed.items():
            if getattr(data, key) != value:
                yield f"{key}: scenes has {value}; leave the key out"
        if data.folder is not None:
            yield "folder: scenes is drawn into the cache, and read from nowhere else; leave it out"
        if data.vocabulary_rule != "all":
            yield "vocabulary_rule: scenes has few words, and a model knows them all; use all"

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """Version, fonts, what rasterises them, difficulty and counts."""
        from comt_cli.data.images.glyph_faces import font_hash, rasteriser

        counts = [self.data.images, self.data.validation_images, self.data.test_images]
        return ["scenes", SCENES_VERSION, font_hash([*FACES.values()]), rasteriser(), self.data.difficulty, *counts]

    def write(self, folder: Path, progress: ProgressCallback) -> dict[CaptionSplitName, CaptionedImages]:
        """The scenes and their captions; the pixels are in `pixel_file` of each split."""
        from comt_cli.data.captions.scene_render import write_scenes

        return write_scenes(self.data, folder, progress)

    def tokenizer(self, images: Mapping[CaptionSplitName, CaptionedImages]) -> WordTokenizer:
        """Of all words of the grammar, by alphabet."""
        return WordTokenizer(WORDS)

    def regions(self, split: CaptionSplitName, images: CaptionedImages, folder: Path) -> RegionSource:
        """The patches of the images."""
        import numpy as np

        from comt_cli.data.captions.regions import PatchRegions
        from comt_cli.data.captions.scene_render import pixel_file

        shape = (len(images.references), SCENE_PIXELS, SCENE_PIXELS, 3)
        # Copy on write: torch wants memory that may be written, and nothing here does.
        return PatchRegions(np.memmap(folder / pixel_file(split), dtype=np.uint8, mode="c", shape=shape))
