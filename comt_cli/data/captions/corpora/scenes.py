"""`scenes`: drawn scenes and true captions of them (`captions/scenes.py`), rendered into the cache: symbols from masks,
on paper, both in slightly varied colours.

All arithmetic is integer hashing and IEEE additions, multiplications and divisions, element by element, so every
machine draws the same bytes from the same fonts and the same FreeType.

Shapes: N images, S = 48 pixels of an image's side, M of a mask's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.captions.dataset import PatchRegions
from comt_cli.data.captions.scene_words import FACES, INKS, KINDS, PAPERS, SHAPES, SIZES, WORDS, Scene
from comt_cli.data.captions.scenes import SCENE_PATCH, SCENE_PIXELS, SCENES_VERSION, DrawnScene, chosen_scenes
from comt_cli.data.captions.settings import CaptionCorpus, CaptionData, CaptionedImages, CaptionSplitName
from comt_cli.data.draws import seed_of
from comt_cli.data.images.glyph_faces import face_masks, font_hash, rasteriser
from comt_cli.data.order import uniform_draws
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.tokenizer import SPECIAL_WORDS, WordTokenizer
from comt_cli.files import atomic_file

MASK = {"small": 13, "large": 20}
"""M: capitals are 8 and 13 pixels high; small letters are drawn as capitals, which are easier to tell apart."""

_CELL = SCENE_PIXELS // 3
_AT_ONCE = 1 << 10  # images of a block
_FINE = 8  # points across a pixel that symbols are sampled on
_INK_VARIES, _PAPER_VARIES = 15, 8  # at most so much of 255, in each colour


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
        counts = [self.data.images, self.data.validation_images, self.data.test_images]
        return ["scenes", SCENES_VERSION, font_hash([*FACES.values()]), rasteriser(), self.data.difficulty, *counts]

    def write(self, folder: Path, progress: ProgressCallback) -> dict[CaptionSplitName, CaptionedImages]:
        """The scenes and their captions; the pixels are in `pixel_file` of each split in `folder`, uint8 [N, S, S, 3].
        Raises as `chosen_scenes`."""
        progress("drawing scenes and their captions", 0, None)
        chosen = chosen_scenes(self.data)
        done, total = 0, sum(map(len, chosen.values()))
        for split, scenes in chosen.items():
            renderer = SceneRenderer(split)
            with atomic_file(folder / pixel_file(split)) as handle:
                for begin in range(0, len(scenes), _AT_ONCE):
                    progress("rendering scenes", done, total)
                    handle.write(renderer.render(scenes[begin : begin + _AT_ONCE]).tobytes())
                    done += len(scenes[begin : begin + _AT_ONCE])
        progress("rendering scenes", total, total)
        return {
            split: CaptionedImages([each.captions for each in scenes], scenes=[each.scene for each in scenes])
            for split, scenes in chosen.items()
        }

    def tokenizer(self, images: Mapping[CaptionSplitName, CaptionedImages]) -> WordTokenizer:
        return WordTokenizer(WORDS)

    def regions(self, split: CaptionSplitName, images: CaptionedImages, folder: Path) -> PatchRegions:
        shape = (len(images.references), SCENE_PIXELS, SCENE_PIXELS, 3)
        # Copy on write: torch wants memory that may be written, and nothing here does.
        return PatchRegions(np.memmap(folder / pixel_file(split), dtype=np.uint8, mode="c", shape=shape))


def pixel_file(split: CaptionSplitName) -> str:
    """The file of a split's pixels."""
    return f"{split}.pixels"


class SceneRenderer:
    """Renders the scenes of one split."""

    def __init__(self, split: CaptionSplitName) -> None:
        self._seed = seed_of(f"colours of scenes {SCENES_VERSION} {split}")
        self._masks = symbol_masks()

    def render(self, drawn: Iterable[DrawnScene]) -> NDArray[np.uint8]:
        """The images of scenes, uint8 [N, S, S, 3]."""
        return np.stack([self._image(each.scene, each.number) for each in drawn])

    def _image(self, scene: Scene, number: int) -> NDArray[np.uint8]:
        varied = (uniform_draws(self._seed, number, 1, 12).reshape(4, 3) * 2 - 1).astype(np.float32)
        paper = np.array(PAPERS[scene.paper], dtype=np.float32) + varied[0] * _PAPER_VARIES
        image_SS3 = np.broadcast_to(paper, (SCENE_PIXELS, SCENE_PIXELS, 3)).copy()
        for each, own in zip(scene.objects, varied[1:], strict=False):
            mask_MM = self._masks[each.symbol, each.face, each.size]
            ink = np.array(INKS[each.colour], dtype=np.float32) + own * _INK_VARIES
            half = len(mask_MM) // 2
            top, left = (
                _CELL * cell + _CELL // 2 + shift - half
                for cell, shift in ((each.row, each.shift[1]), (each.column, each.shift[0]))
            )
            rows, columns = (slice(max(0, start), start + len(mask_MM)) for start in (top, left))
            seen = image_SS3[rows, columns]
            mask_MM = mask_MM[rows.start - top :, columns.start - left :][: seen.shape[0], : seen.shape[1]]
            seen += (ink - seen) * mask_MM[..., None]
        pixels_SS3: NDArray[np.uint8] = np.floor(np.clip(image_SS3, 0, 255) + np.float32(0.5)).astype(np.uint8)
        return pixels_SS3


@cache
def symbol_masks() -> dict[tuple[str, str, str], NDArray[np.float32]]:
    """How much of each pixel a symbol covers, by its name, its face and its size: float32 [M, M], 0 to 1."""
    found: dict[tuple[str, str, str], NDArray[np.float32]] = {}
    for size in SIZES:
        found |= {(shape, "plain", size): mask for shape, mask in _shapes(size).items()}
        letters = face_masks([symbol.upper() for symbol in KINDS], [*FACES.values()], MASK[size] * _FINE)
        found |= {
            (symbol, face, size): _reduced(letters[row, column])
            for row, symbol in enumerate(KINDS)
            for column, face in enumerate(FACES)
        }
    return found


def _shapes(size: str) -> dict[str, NDArray[np.float32]]:
    side = MASK[size]
    places = (np.arange(side * _FINE) + 0.5) / _FINE - side / 2
    x, y = places[None, :], places[:, None]
    radius = side * 0.35
    # A star of two triangles: without sines, which no standard makes equal everywhere.
    up, down = (_triangle(x, sign * y, radius) for sign in (1, -1))
    inside = {
        "circle": x * x + y * y < radius * radius,
        "square": (np.abs(x) < 0.86 * radius) & (np.abs(y) < 0.86 * radius),
        "triangle": _triangle(x, y - radius / 4, 1.15 * radius),
        "star": up | down,
    }
    return {shape: _reduced(inside[shape].astype(np.float32)) for shape in SHAPES}


def _reduced(fine: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean of `_FINE` x `_FINE` points for every pixel, in 255ths, whose sums are exact in any order."""
    side = len(fine) // _FINE
    sums = np.rint(fine * np.float32(255)).astype(np.int64).reshape(side, _FINE, side, _FINE).sum((1, 3))
    covered: NDArray[np.float32] = (sums / (255 * _FINE**2)).astype(np.float32)
    return covered


def _triangle(x: NDArray[np.float64], y: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
    """The points in a triangle that stands on a side, its corners `radius` from (0, 0); y goes down."""
    inside: NDArray[np.bool_] = (y < radius / 2) & (np.abs(x) * np.sqrt(3.0) < y + radius)
    return inside
