"""The vocabulary of scenes and their captions, the facts of a scene, and tokens of MSCOCO's English captions, similar
to the Penn Treebank's, without Java and NLTK. Importing it imports no NumPy.

Tokens are in lower case; `don't` is `do n't` and `it's` is `it 's`. Differences to Stanford's PTBTokenizer and NLTK's
`word_tokenize`: an abbreviation loses its last dot, `cannot` and `gonna` stay whole, an ellipsis is three dots,
brackets and quotes keep their form, and emoticons are split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

from comt_cli.data.draws import Draws

SCENE_PIXELS, SCENE_PATCH = 48, 8
"""The side of a scene's image, and of the patches that are its regions, in pixels."""

Fact = tuple[str, ...]
"""(object), (object, attribute), (object, relation, object) or ("paper", colour). Objects are identified by their
symbols, which differ within a scene. Relations have one direction: "right of" is stored as "left of", "below" as
"above"."""

LETTERS = tuple("abcdefghjklmnpqrstuvwxyz")  # no i and o, which look like 1 and 0
DIGITS = tuple("23456789")
SHAPES = ("circle", "square", "triangle", "star")
KINDS: Mapping[str, str] = {**dict.fromkeys(LETTERS, "letter"), **dict.fromkeys(DIGITS, "digit")}
SYMBOLS = (*LETTERS, *DIGITS, *SHAPES)

INKS: Mapping[str, tuple[int, int, int]] = {
    "red": (205, 25, 25),
    "orange": (245, 125, 0),
    "yellow": (240, 215, 0),
    "green": (20, 140, 40),
    "blue": (25, 60, 215),
    "purple": (130, 25, 150),
    "black": (20, 20, 20),
    "white": (255, 255, 255),
}
PAPERS: Mapping[str, tuple[int, int, int]] = {
    "pale yellow": (226, 216, 160),
    "pale pink": (232, 180, 190),
    "pale blue": (165, 195, 228),
    "grey": (140, 140, 140),
}
FACES: Mapping[str, str] = {"plain": "DejaVuSans", "bold": "DejaVuSans-Bold", "slanted": "DejaVuSans-Oblique"}
"""The faces of matplotlib's fonts. Captions do not mention the plain face; shapes have no other."""

SIZES: Mapping[str, tuple[str, ...]] = {"small": ("small", "little", "tiny"), "large": ("large", "big", "huge")}
RELATIONS: Mapping[str, tuple[str, ...]] = {
    "left": ("left of", "to the left of"),
    "right": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
OPPOSITE: Mapping[str, str] = {"left": "right", "right": "left", "above": "below", "below": "above"}
PAPER_NOUNS, PICTURE_NOUNS = ("background", "paper"), ("picture", "image")
COUNTS: Mapping[int, tuple[str, ...]] = {
    1: ("one symbol on",),
    2: ("two symbols on", "a pair of symbols on"),
    3: ("three symbols on", "a group of three symbols on"),
}
_LINKS = "a an and it with there is of"

_NAMES = (*SYMBOLS, *KINDS.values(), *INKS, *PAPERS, *FACES, *PAPER_NOUNS, *PICTURE_NOUNS, _LINKS)
_SYNONYMS = (text for texts in (*SIZES.values(), *RELATIONS.values(), *COUNTS.values()) for text in texts)
WORDS = tuple(sorted({word for text in (*_NAMES, *_SYNONYMS) for word in text.split()} - {"plain"}))
"""All words of captions, in the order of their ids."""


@dataclass(frozen=True)
class SceneObject:
    """A symbol in a cell of the 3 x 3 grid, from the top left; `shift` moves its centre right and down, in pixels."""

    symbol: str
    colour: str
    size: str
    face: str
    row: int
    column: int
    shift: tuple[int, int]

    def relation_to(self, other: SceneObject) -> str:
        """The relation to `other`, in the direction of the larger distance."""
        right, down = self.column - other.column, self.row - other.row
        if abs(right) > abs(down):
            return "right" if right > 0 else "left"
        return "below" if down > 0 else "above"


@dataclass(frozen=True)
class Scene:
    """One to three objects on coloured paper."""

    objects: tuple[SceneObject, ...]
    paper: str

    def facts(self) -> frozenset[Fact]:
        """All facts that captions can state."""
        found: set[Fact] = {("paper", self.paper)}
        for each in self.objects:
            found |= {(each.symbol,), (each.symbol, each.colour), (each.symbol, each.size)}
            found |= {(each.symbol, each.face)} if each.face != "plain" else set()
            found |= {(each.symbol, KINDS[each.symbol])} if each.symbol in KINDS else set()
        found |= {
            relation(one.symbol, one.relation_to(other), other.symbol) for one, other in permutations(self.objects, 2)
        }
        return frozenset(found)


def relation(one: str, where: str, other: str) -> Fact:
    """A relation between two objects in its stored direction."""
    return (one, where, other) if where in ("left", "above") else (other, OPPOSITE[where], one)


def paper_words(colour: str, draws: Draws) -> str:
    """`pale blue paper`, or `a pale blue background`."""
    noun = draws.one_of(PAPER_NOUNS)
    return f"{colour} paper" if noun == "paper" else f"{article(colour)} {noun}"


def article(word: str) -> str:
    """The word with its article."""
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


# ---- MSCOCO's

PUNCTUATION = frozenset(".,:;?!-'\"`()[]{}“”‘…–—")
"""Tokens that COCO's evaluation ignores; by mistake it keeps brackets, as `-lrb-`."""

_TOKEN = re.compile(r"\d+(?:[.,:]\d+)+|\w+?(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:[-./&]\w+)*|[^\w\s]")


def treebank_tokens(text: str) -> list[str]:
    """The tokens of a text, including punctuation."""
    return _TOKEN.findall(text.lower().replace("’", "'"))
