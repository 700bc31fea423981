"""`glyphs10` and `glyphs100`: 50,000 images for training and 10,000 for validation, rendered once into the cache.

Both splits are drawn from the same faces: what is asked of a network is to read worn print, not a face that it never
saw. The splits share no image, since they are rendered from different random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from comt_cli.data.images.glyph_faces import CHARACTERS, FACES, GlyphSet, font_hash, rasteriser
from comt_cli.data.images.glyph_render import VERSION, GlyphRenderer
from comt_cli.data.images.settings import ImageDataSettings, ImageSet, ImageSplitName

TRAIN_IMAGES, VALIDATION_IMAGES = 50_000, 10_000


class Glyphs(ImageSet):
    """Rendered characters, whose names are those of the classes."""

    classes: ClassVar[Mapping[str, int]] = {"glyphs10": 10, "glyphs100": 100}
    names = tuple(classes)
    order = 0

    def __init__(self, data: ImageDataSettings) -> None:
        super().__init__(data)
        self._name = cast(GlyphSet, data.images)
        self.class_names = tuple(CHARACTERS[self._name])

    @classmethod
    def contradictions(cls, data: ImageDataSettings) -> Iterator[str]:
        if data.augmentation == "resized-crop-flip":
            yield f"augmentation: resized-crop-flip is for imagenet; {data.images} has crop and crop-flip"
        if data.folder is not None:
            yield f"folder: {data.images} is drawn into the cache, and read from nowhere else; leave it out"

    def identity(self) -> list[Any]:
        faces = FACES[self._name]
        return [self._name, VERSION[self._name], CHARACTERS[self._name], faces, font_hash(faces), rasteriser()]

    def counts(self) -> dict[ImageSplitName, int]:
        return {
            "train": self.count("train", TRAIN_IMAGES),
            "validation": self.count("validation", VALIDATION_IMAGES),
        }

    def renderer(self, split: ImageSplitName) -> GlyphRenderer:
        return GlyphRenderer(self._name, split, self.data.size)
