"""The F1 of the facts of captions of `scenes`: SPICE's idea for a closed grammar. A caption is read as facts
(`words.Fact`): objects, their colours, sizes, faces and kinds, the paper, relations."""

from __future__ import annotations

from collections.abc import Sequence

from comt_cli.data.captions.words import (
    FACES,
    INKS,
    KINDS,
    PAPER_NOUNS,
    PAPERS,
    PICTURE_NOUNS,
    RELATIONS,
    SIZES,
    SYMBOLS,
    Fact,
    Scene,
    relation,
)

_ATTRIBUTES = {
    **{word: size for size, words in SIZES.items() for word in words},
    **{word: word for word in (*INKS, *KINDS.values(), *FACES)},
}
_TONES = {word for paper in PAPERS for word in paper.split()}
_PAPER_NOUNS = {*PAPER_NOUNS, *PICTURE_NOUNS}
_WHERE = {
    word: where for where, ways in RELATIONS.items() for way in ways for word in {*way.split()} - {"to", "the", "of"}
}


def scene_f1(captions: Sequence[str], scenes: Sequence[Scene]) -> float:
    """The mean over images of the F1 of a caption's facts against all facts of its scene, in per cent. A true caption
    does not mention everything, so it is below 100. Raises `ValueError`."""
    if len(captions) != len(scenes) or not captions:
        raise ValueError(f"{len(captions)} captions for {len(scenes)} scenes")
    total = 0.0
    for caption, scene in zip(captions, scenes, strict=True):
        said, true = facts_of(caption), scene.facts()
        total += 2 * len(said & true) / (len(said) + len(true))
    return 100 * total / len(captions)


def facts_of(caption: str) -> frozenset[Fact]:
    """Facts of a caption. Outside the grammar: those that can be read from left to right."""
    reader = _Reader()
    for word in caption.split():
        reader.read(word)
    return frozenset(reader.facts)


class _Reader:
    """Reads a caption word by word: attributes are collected until their symbol or the paper."""

    def __init__(self) -> None:
        self.facts: set[Fact] = set()
        self._attributes: list[str] = []
        self._last: str | None = None  # the last named object, the subject of the next relation
        self._it: str | None = None  # the object before "with", the meaning of "it"
        self._where: str | None = None  # a relation without its second object yet

    def read(self, word: str) -> None:
        if word in _ATTRIBUTES or word in _TONES:
            self._attributes.append(word)
        elif word in _PAPER_NOUNS:
            paper = " ".join(self._attributes)
            self.facts |= {("paper", paper)} if paper in PAPERS else set()
            self._attributes = []
        elif word in SYMBOLS and (word != "a" or self._attributes):  # without attributes it is the article
            self._name(word)
        elif word in _WHERE:
            self._where = _WHERE[word]
        elif word == "with":
            self._it = self._last
        elif word == "it":
            self._relate(self._it)
        if word in ("a", "an", "and"):
            self._attributes = []

    def _name(self, symbol: str) -> None:
        self.facts |= {(symbol,), *((symbol, _ATTRIBUTES[word]) for word in self._attributes if word in _ATTRIBUTES)}
        self._attributes = []
        self._relate(symbol)
        self._last = symbol

    def _relate(self, other: str | None) -> None:
        if self._where and self._last and other and other != self._last:
            self.facts.add(relation(self._last, self._where, other))
        self._where = None
