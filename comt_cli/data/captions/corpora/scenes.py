"""`scenes`: images of one to three symbols on coloured paper, with five true captions each from a closed grammar.

Scene i of a split, its pixels and its captions are pure functions of (`SCENES_VERSION`, split, i). The symbols of a
scene differ, and no two objects are equally far apart in both directions, so that captions identify objects and each
pair has one relation. Scenes of validation and test do not occur in earlier splits, even with other shifts of their
objects. Captions omit facts and use synonyms, but are true. They are lower-case words without punctuation. `easy`
scenes have one or two digits or shapes, all large, plain and in the middle of their cells.

Against five references, a sixth caption of a full scene has CIDEr-D 310 and `scene_f1` 80; with its relations reversed
301 and 74; a caption of another scene 22 and 4. CIDEr-D hardly measures relations; `scene_f1` does.

Every machine draws the same bytes, as for `glyphs`. Shapes: N images, S = 48 pixels of an image's side, M of a mask's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, islice, permutations
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.captions import words
from comt_cli.data.captions.dataset import PatchRegions
from comt_cli.data.captions.settings import CaptionCorpus, CaptionData, CaptionedImages, CaptionSplitName
from comt_cli.data.captions.words import Scene, SceneObject, article, paper_words
from comt_cli.data.draws import Draws, drawn, seed_of, unseen
from comt_cli.data.images.sets.glyphs import face_masks, font_hash, rasteriser
from comt_cli.data.order import uniform_draws
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.tokenizer import SPECIAL_WORDS, WordTokenizer
from comt_cli.files import atomic_file

SCENES_VERSION = 1  # version, as tests/contract/test_cache_versions.py says

CAPTIONS = 5
SHIFT = {"small": 3, "large": 1}  # maximum distance in pixels between the centres of an object and its cell

_STRIDE = 8  # positions of draws per scene: its captions' from 0 on, and its own as the last
_NUMBERS = 32  # draws of a scene, and of a caption
_ATTEMPTS = 20  # scenes drawn, at most, for one that is in no earlier split
_SIZE_SAID, _FACE_SAID, _KIND_SAID, _PAPER_SAID = 0.6, 0.6, 0.3, 0.4


class DrawnScene(NamedTuple):
    """A scene, its number in its split, and its captions."""

    number: int
    scene: Scene
    captions: tuple[str, ...]


def drawn_scenes(
    split: CaptionSplitName, start: int, count: int, captions: int = CAPTIONS, *, easy: bool = False
) -> Iterator[DrawnScene]:
    """The scenes [start, start + count) of an infinite split, with `captions` captions each (at most 7)."""
    draws = drawn(f"scenes {SCENES_VERSION} {split}", _NUMBERS, start * _STRIDE)
    for number in range(start, start + count):
        own = list(islice(draws, _STRIDE))
        scene = _scene(own[-1], easy)
        yield DrawnScene(number, scene, tuple(caption(scene, each) for each in own[:captions]))


def chosen_scenes(data: CaptionData) -> dict[CaptionSplitName, list[DrawnScene]]:
    """The scenes of every split: the first ones for training, for the others the first that are in no earlier split.
    Raises `UserError` if there are not enough different ones."""
    easy = data.difficulty == "easy"
    training = list(drawn_scenes("train", 0, data.images or 0, easy=easy))
    found: dict[CaptionSplitName, list[DrawnScene]] = {"train": training}
    seen = {content(each.scene) for each in training}
    later: Mapping[CaptionSplitName, int | None] = {"validation": data.validation_images, "test": data.test_images}
    for split, wanted in later.items():
        count = wanted or 0
        made = drawn_scenes(split, 0, _ATTEMPTS * count, easy=easy)
        found[split] = unseen(made, count, lambda each: [content(each.scene)], seen, f"{split}_images")
    return found


def content(scene: Scene) -> frozenset[tuple[str | int, ...]]:
    """The content of a scene, without the order and the shifts of its objects."""
    objects = ((each.symbol, each.colour, each.size, each.face, each.row, each.column) for each in scene.objects)
    return frozenset({("paper", scene.paper), *objects})


def _scene(draws: Draws, easy: bool) -> Scene:
    share = draws.share()
    count = 1 if share < 0.2 else 2 if share < 0.7 or easy else 3
    cells = draws.one_of(_cells(count))
    paper = draws.one_of(tuple(words.PAPERS))
    objects: list[SceneObject] = []
    for row, column in cells:
        kind = draws.share()
        symbols = words.LETTERS if kind < 0.4 and not easy else words.DIGITS if kind < 0.7 else words.SHAPES
        free = [symbol for symbol in symbols if all(symbol != each.symbol for each in objects)]
        symbol = draws.one_of(free)
        colour = draws.one_of(tuple(words.INKS))
        if easy:
            objects.append(SceneObject(symbol, colour, "large", "plain", row, column, (0, 0)))
            continue
        size = draws.one_of(tuple(words.SIZES))
        face = draws.one_of(tuple(words.FACES))
        shift = draws.between(-SHIFT[size], SHIFT[size]), draws.between(-SHIFT[size], SHIFT[size])
        face = face if symbol in words.KINDS else "plain"
        objects.append(SceneObject(symbol, colour, size, face, row, column, shift))
    return Scene(tuple(objects), paper)


@cache
def _cells(count: int) -> Sequence[tuple[tuple[int, int], ...]]:
    """All assignments of different cells (row, column) to `count` objects with no pair on a diagonal."""
    grid = [(row, column) for row in range(3) for column in range(3)]
    return [
        cells
        for cells in permutations(grid, count)
        if all(abs(a[0] - b[0]) != abs(a[1] - b[1]) for a, b in combinations(cells, 2))
    ]


def caption(scene: Scene, draws: Draws) -> str:
    """A true caption of a scene."""
    share = draws.share()
    objects = [scene.objects[place] for place in draws.some(len(scene.objects), len(scene.objects))]
    names = [_name(each, draws) for each in objects]
    listed = " ".join([*names[:-2], " and ".join(names[-2:])])
    if share < 0.15:
        return f"{draws.one_of(words.COUNTS[len(objects)])} {paper_words(scene.paper, draws)} {listed}"
    if share < 0.3:
        return f"{article(scene.paper)} {draws.one_of(words.PICTURE_NOUNS)} of {listed}"
    there = "there is " if share < 0.45 else ""
    relations = [draws.one_of(words.RELATIONS[each.relation_to(objects[0])]) for each in objects[1:]]
    behind = f" on {paper_words(scene.paper, draws)}" if draws.share() < _PAPER_SAID else ""
    if not relations:
        return f"{there}{names[0]}{behind}"
    if share < 0.7:  # two of the objects
        return f"{there}{names[1]} {relations[0]} {names[0]}{behind}"
    others = " and ".join(f"{name} {where} it" for name, where in zip(names[1:], relations, strict=True))
    return f"{there}{names[0]} with {others}"


def _name(each: SceneObject, draws: Draws) -> str:
    said = [draws.share() for _ in range(3)]
    word = draws.one_of(words.SIZES[each.size])
    named = [word] if said[0] < _SIZE_SAID else []
    named += [each.face] if said[1] < _FACE_SAID and each.face != "plain" else []
    named.append(each.colour)
    named += [words.KINDS[each.symbol]] if said[2] < _KIND_SAID and each.symbol in words.KINDS else []
    return f"{article(named[0])} {' '.join([*named[1:], each.symbol])}"


# ---- images

MASK = {"small": 13, "large": 20}
"""M: capitals are 8 and 13 pixels high; small letters are drawn as capitals, which are easier to distinguish."""

_CELL = words.SCENE_PIXELS // 3
_AT_ONCE = 1 << 10  # images of a block
_FINE = 8  # sampling points per pixel and direction
_INK_VARIES, _PAPER_VARIES = 15, 8  # maximum deviations in each colour, of 255


class Scenes(CaptionCorpus):
    """Scenes and captions are drawn, and images rendered into the folder of the prepared data."""

    names = ("scenes",)
    order = 0
    sizes: ClassVar[Mapping[str, int]] = {"images": 20_000, "validation_images": 500, "test_images": 1000}
    keys: ClassVar[Mapping[str, Any]] = {"difficulty": "full", **sizes}
    fixed: ClassVar[Mapping[str, int]] = {
        "vocabulary_size": SPECIAL_WORDS + len(words.WORDS),
        "regions": (words.SCENE_PIXELS // words.SCENE_PATCH) ** 2,
        "features": 3 * words.SCENE_PATCH**2,
    }

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        return {**cls.keys, **cls.fixed, "max_length": 40}

    @classmethod
    def contradictions(cls, data: CaptionData) -> Iterator[str]:
        for key, value in cls.fixed.items():
            if getattr(data, key) != value:
                yield f"{key}: is {value} for scenes; leave the key out"
        if data.folder is not None:
            yield "folder: scenes are drawn into the cache, not read from a folder; leave the key out"
        if data.vocabulary_rule != "all":
            yield "vocabulary_rule: models of scenes know all of the few words; use all"

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        counts = [self.data.images, self.data.validation_images, self.data.test_images]
        made_by = [SCENES_VERSION, font_hash([*words.FACES.values()]), rasteriser()]
        return ["scenes", *made_by, self.data.difficulty, *counts]

    def write(self, folder: Path, progress: ProgressCallback) -> dict[CaptionSplitName, CaptionedImages]:
        """The scenes and their captions; writes their pixels to `folder`, uint8 [N, S, S, 3] per split."""
        progress("drawing scenes and their captions", 0, None)
        chosen = chosen_scenes(self.data)
        done, total = 0, sum(map(len, chosen.values()))
        for split, scenes in chosen.items():
            with atomic_file(folder / f"{split}.pixels") as handle:
                for begin in range(0, len(scenes), _AT_ONCE):
                    progress("rendering scenes", done, total)
                    handle.write(rendered(split, scenes[begin : begin + _AT_ONCE]).tobytes())
                    done += len(scenes[begin : begin + _AT_ONCE])
        progress("rendering scenes", total, total)
        return {
            split: CaptionedImages([each.captions for each in scenes], scenes=[each.scene for each in scenes])
            for split, scenes in chosen.items()
        }

    def tokenizer(self, images: Mapping[CaptionSplitName, CaptionedImages]) -> WordTokenizer:
        return WordTokenizer(words.WORDS)

    def regions(self, split: CaptionSplitName, images: CaptionedImages, folder: Path) -> PatchRegions:
        shape = (len(images.references), words.SCENE_PIXELS, words.SCENE_PIXELS, 3)
        # Copy on write: torch requires writable memory, although nothing is written.
        return PatchRegions(np.memmap(folder / f"{split}.pixels", dtype=np.uint8, mode="c", shape=shape))


def rendered(split: CaptionSplitName, scenes: Iterable[DrawnScene]) -> NDArray[np.uint8]:
    """The images of scenes of a split, uint8 [N, S, S, 3]."""
    seed = seed_of(f"colours of scenes {SCENES_VERSION} {split}")
    return np.stack([_image(each.scene, uniform_draws(seed, each.number, 1, 12)) for each in scenes])


def _image(scene: Scene, draws: NDArray[np.float64]) -> NDArray[np.uint8]:
    varied = (draws.reshape(4, 3) * 2 - 1).astype(np.float32)
    paper = np.array(words.PAPERS[scene.paper], dtype=np.float32) + varied[0] * _PAPER_VARIES
    image_SS3 = np.broadcast_to(paper, (words.SCENE_PIXELS, words.SCENE_PIXELS, 3)).copy()
    for each, own in zip(scene.objects, varied[1:], strict=False):
        mask_MM = symbol_masks()[each.symbol, each.face, each.size]
        ink = np.array(words.INKS[each.colour], dtype=np.float32) + own * _INK_VARIES
        half = len(mask_MM) // 2
        top = _CELL * each.row + _CELL // 2 + each.shift[1] - half
        left = _CELL * each.column + _CELL // 2 + each.shift[0] - half
        rows, columns = (slice(max(0, start), start + len(mask_MM)) for start in (top, left))
        seen = image_SS3[rows, columns]
        mask_MM = mask_MM[rows.start - top :, columns.start - left :][: seen.shape[0], : seen.shape[1]]
        seen += (ink - seen) * mask_MM[..., None]
    return np.asarray(np.floor(np.clip(image_SS3, 0, 255) + np.float32(0.5)), dtype=np.uint8)


@cache
def symbol_masks() -> dict[tuple[str, str, str], NDArray[np.float32]]:
    """Share of each pixel that a symbol covers, by name, face and size: float32 [M, M]."""
    found: dict[tuple[str, str, str], NDArray[np.float32]] = {}
    for size in words.SIZES:
        found |= {(shape, "plain", size): mask for shape, mask in _shapes(size).items()}
        letters = face_masks([symbol.upper() for symbol in words.KINDS], [*words.FACES.values()], MASK[size] * _FINE)
        found |= {
            (symbol, face, size): _reduced(letters[row, column])
            for row, symbol in enumerate(words.KINDS)
            for column, face in enumerate(words.FACES)
        }
    return found


def _shapes(size: str) -> dict[str, NDArray[np.float32]]:
    side = MASK[size]
    places = (np.arange(side * _FINE) + 0.5) / _FINE - side / 2
    x, y = places[None, :], places[:, None]
    radius = side * 0.35
    # A star of two triangles, without sines, whose values differ between machines.
    up, down = (_triangle(x, sign * y, radius) for sign in (1, -1))
    inside = {
        "circle": x * x + y * y < radius * radius,
        "square": (np.abs(x) < 0.86 * radius) & (np.abs(y) < 0.86 * radius),
        "triangle": _triangle(x, y - radius / 4, 1.15 * radius),
        "star": up | down,
    }
    return {shape: _reduced(inside[shape].astype(np.float32)) for shape in words.SHAPES}


def _reduced(fine: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean of `_FINE` x `_FINE` points for every pixel, in 255ths, so that sums are exact in any order."""
    side = len(fine) // _FINE
    sums = np.rint(fine * np.float32(255)).astype(np.int64).reshape(side, _FINE, side, _FINE).sum((1, 3))
    return np.asarray(sums / (255 * _FINE**2), dtype=np.float32)


def _triangle(x: NDArray[np.float64], y: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
    """The points in a triangle on a horizontal side, with corners `radius` from (0, 0); y points down."""
    return np.asarray((y < radius / 2) & (np.abs(x) * np.sqrt(3.0) < y + radius))
