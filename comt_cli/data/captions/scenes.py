"""`scenes`: one to three symbols on coloured paper, and five true captions of each from a closed grammar.

Scene i of a split, its pixels and its captions are pure functions of (`SCENES_VERSION`, split, i). No symbol occurs
twice in a scene, and no two objects are as far apart across as down, so that a caption says which objects it means and
each pair has one relation. Scenes of validation and test are in no earlier split, whatever the shifts of their objects.

Captions leave out what they like (sizes, faces, kinds, paper, with three objects also relations or an object) and use
synonyms; what they say is true. They are lower-case words without punctuation.

`easy` scenes have one or two digits or shapes, all large, plain and in the middle of their cells: small networks learn
to see these within hundreds of steps.

Measured of full scenes, 20,000 training and 1,000 test images: 19,669 different training scenes; captions of 13.2 words
in the mean, 28 at most, and 84 different ones; 6.1 % of the test captions are also captions of training. Against five
references a sixth caption of the scene ("human") has CIDEr-D 310 and `scene_f1` 80; with its colours drawn anew 179 and
61, its symbols 76 and 9, its relations turned round 301 and 74; another scene's caption has 22 and 4. CIDEr-D sees
colours and symbols, and next to nothing of relations: n-grams are a bag. `scene_f1` sees all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice, permutations

from comt_cli.data.captions.scene_words import (
    COUNTS,
    DIGITS,
    FACES,
    INKS,
    KINDS,
    LETTERS,
    PAPER_NOUNS,
    PAPERS,
    PICTURE_NOUNS,
    RELATIONS,
    SHAPES,
    SIZES,
    Scene,
    SceneObject,
)
from comt_cli.data.captions.settings import CaptionData, CaptionSplitName
from comt_cli.data.draws import Draws, drawn
from comt_cli.errors import UserError

SCENES_VERSION = 1
"""Raise it when a scene of the same number, its captions or its image may be another than before
(tests/contract/test_cache_versions.py asks for it)."""

SCENE_PIXELS, SCENE_PATCH = 48, 8
"""The side of a scene's image, and of a patch of it that is a region."""

CAPTIONS = 5
SHIFT = {"small": 3, "large": 1}
"""Pixels, at most, between the middles of an object and its cell."""

_STRIDE = 8  # positions of draws that a scene has: of its captions, from 0 on, and the last of its own
_NUMBERS = 32  # draws of a scene, and of a caption
_ATTEMPTS = 20  # so many scenes are drawn for one that is in no earlier split, at most
_SIZE_SAID, _FACE_SAID, _KIND_SAID, _PAPER_SAID = 0.6, 0.6, 0.3, 0.4


@dataclass(frozen=True)
class DrawnScene:
    """A scene, its number in its split, and its captions."""

    number: int
    scene: Scene
    captions: tuple[str, ...]


def drawn_scenes(
    split: CaptionSplitName, start: int, count: int, captions: int = CAPTIONS, *, easy: bool = False
) -> Iterator[DrawnScene]:
    """The scenes [start, start + count) of a split, of which there is no end, with `captions` captions each (7 at
    most)."""
    draws = drawn(f"scenes {SCENES_VERSION} {split}", _NUMBERS, start * _STRIDE)
    for number in range(start, start + count):
        own = list(islice(draws, _STRIDE))
        scene = _scene(own[-1], easy)
        yield DrawnScene(number, scene, tuple(caption(scene, each) for each in own[:captions]))


def chosen_scenes(data: CaptionData) -> dict[CaptionSplitName, list[DrawnScene]]:
    """The scenes of every split: the first ones of training, and of the others the first that are in no earlier split.
    Raises `UserError` where there are not as many different ones as were asked for."""
    assert data.images is not None
    easy = data.difficulty == "easy"
    found: dict[CaptionSplitName, list[DrawnScene]] = {"train": list(drawn_scenes("train", 0, data.images, easy=easy))}
    seen = {content(each.scene) for each in found["train"]}
    later: tuple[tuple[CaptionSplitName, int | None], ...] = (
        ("validation", data.validation_images),
        ("test", data.test_images),
    )
    for split, count in later:
        assert count is not None
        kept: list[DrawnScene] = []
        for each in drawn_scenes(split, 0, _ATTEMPTS * count, easy=easy):
            if len(kept) == count:
                break
            if content(each.scene) not in seen:
                seen.add(content(each.scene))
                kept.append(each)
        if len(kept) < count:
            raise UserError(
                f"{split}_images: scenes has {len(kept):,} that are in no earlier split, not {count:,}",
                "Use fewer images.",
            )
        found[split] = kept
    return found


def content(scene: Scene) -> frozenset[tuple[str | int, ...]]:
    """What makes a scene another one: all but the shifts and the order of its objects."""
    objects = ((each.symbol, each.colour, each.size, each.face, each.row, each.column) for each in scene.objects)
    return frozenset({("paper", scene.paper), *objects})


def _scene(draws: Draws, easy: bool) -> Scene:
    share = draws.share()
    count = 1 if share < 0.2 else 2 if share < 0.7 or easy else 3
    cells = draws.one_of(_cells(count))
    paper = draws.one_of(tuple(PAPERS))
    objects: list[SceneObject] = []
    for row, column in cells:
        kind = draws.share()
        symbols = LETTERS if kind < 0.4 and not easy else DIGITS if kind < 0.7 else SHAPES
        free = [symbol for symbol in symbols if all(symbol != each.symbol for each in objects)]
        symbol = draws.one_of(free)
        colour = draws.one_of(tuple(INKS))
        if easy:
            objects.append(SceneObject(symbol, colour, "large", "plain", row, column, (0, 0)))
            continue
        size = draws.one_of(tuple(SIZES))
        face = draws.one_of(tuple(FACES))
        shift = draws.between(-SHIFT[size], SHIFT[size]), draws.between(-SHIFT[size], SHIFT[size])
        objects.append(SceneObject(symbol, colour, size, face if symbol in KINDS else "plain", row, column, shift))
    return Scene(tuple(objects), paper)


@cache
def _cells(count: int) -> Sequence[tuple[tuple[int, int], ...]]:
    """The ways to give `count` objects a cell each (row, column) such that no pair is exactly on a diagonal."""
    grid = [(row, column) for row in range(3) for column in range(3)]
    return [
        cells
        for cells in permutations(grid, count)
        if all(abs(a[0] - b[0]) != abs(a[1] - b[1]) for a, b in combinations(cells, 2))
    ]


# ---- captions


def caption(scene: Scene, draws: Draws) -> str:
    """A true caption of a scene."""
    share = draws.share()
    objects = [scene.objects[place] for place in draws.some(len(scene.objects), len(scene.objects))]
    names = [_name(each, draws) for each in objects]
    listed = " ".join([*names[:-2], " and ".join(names[-2:])])
    if share < 0.15:
        return f"{draws.one_of(COUNTS[len(objects)])} {paper_words(scene.paper, draws)} {listed}"
    if share < 0.3:
        return f"{article(scene.paper)} {draws.one_of(PICTURE_NOUNS)} of {listed}"
    there = "there is " if share < 0.45 else ""
    relations = [draws.one_of(RELATIONS[each.relation_to(objects[0])]) for each in objects[1:]]
    behind = f" on {paper_words(scene.paper, draws)}" if draws.share() < _PAPER_SAID else ""
    if not relations:
        return f"{there}{names[0]}{behind}"
    if share < 0.7:  # two of the objects
        return f"{there}{names[1]} {relations[0]} {names[0]}{behind}"
    others = " and ".join(f"{name} {where} it" for name, where in zip(names[1:], relations, strict=True))
    return f"{there}{names[0]} with {others}"


def _name(each: SceneObject, draws: Draws) -> str:
    said = [draws.share() for _ in range(3)]
    word = draws.one_of(SIZES[each.size])
    words = [word] if said[0] < _SIZE_SAID else []
    words += [each.face] if said[1] < _FACE_SAID and each.face != "plain" else []
    words.append(each.colour)
    words += [KINDS[each.symbol]] if said[2] < _KIND_SAID and each.symbol in KINDS else []
    return f"{article(words[0])} {' '.join([*words[1:], each.symbol])}"


def paper_words(colour: str, draws: Draws) -> str:
    """`pale blue paper`, or `a pale blue background`."""
    noun = draws.one_of(PAPER_NOUNS)
    return f"{colour} paper" if noun == "paper" else f"{article(colour)} {noun}"


def article(word: str) -> str:
    """The word behind its article."""
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
