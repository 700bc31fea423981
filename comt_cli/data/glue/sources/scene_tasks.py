"""`scene-nli` and `scene-similarity`: two descriptions in the words of `scenes`, and whether the second follows from
the first, or how many facts they have in common.

Example i of a split is a pure function of (`SCENE_TASKS_VERSION`, task, split, i); the label follows from i, so that
classes are balanced. A pair of texts is in one split only.

**scene-nli**: the premise names two symbols with their colours and where one is as seen from the other, and one or two
of three things that a description may leave out: the size of the one, of the other, and the paper. The hypothesis says
one of these three, beside colours and the relation. It is entailed (0); or says what the premise leaves out (1,
neutral); or says something that the premise says otherwise (2, contradiction). What either text says, and of which
values, is drawn alike for every label: neither alone tells which it is.

**scene-similarity**: a symbol, its size, its colour and the paper, twice; the number, 0 to 5, is how many of five
things are the same: size, colour, paper, kind (letter, digit, shape), and the symbol itself.

Sentences are built in several ways; which of the synonyms are used, and whether kinds are named, is drawn once for an
example, so that a small network need not learn the synonyms before it learns anything else.

What simple rules reach: of scene-nli naive Bayes on either text, or on both as one bag of words, a third, as by chance,
and the number of words that only the hypothesis has 48 %; of scene-similarity the share of words in common Pearson's
correlation .74 and Spearman's .73.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, TypeVar

from comt_cli.data.captions.scene_words import (
    DIGITS,
    INKS,
    KINDS,
    LETTERS,
    OPPOSITE,
    PAPERS,
    PICTURE_NOUNS,
    RELATIONS,
    SHAPES,
    SIZES,
)
from comt_cli.data.captions.scenes import article, paper_words
from comt_cli.data.draws import Draws, drawn
from comt_cli.data.glue.settings import Asked, Example, GlueSource, GlueSplitName
from comt_cli.data.storage import ProgressCallback, no_progress

SCENE_TASKS_VERSION = 1
"""Raise it when an example of the same number may be another than before
(tests/contract/test_cache_versions.py asks for it)."""

EXAMPLES: Mapping[GlueSplitName, int] = {"train": 6000, "test": 1500}

_NUMBERS = 64  # draws of an example
V = TypeVar("V")

_SYMBOLS = (LETTERS, DIGITS, SHAPES)
_KIND_SAID, _FACE_SAID, _FACE_REPEATED, _COLOUR_SAID = 0.3, 0.4, 0.5, 0.6


class SceneExamples(GlueSource):
    """The source of both tasks."""

    tasks: ClassVar[Mapping[str, Asked]] = {
        "scene-nli": Asked(3, ("accuracy",)),
        "scene-similarity": Asked(1, ("pearson", "spearman")),
    }
    names = tuple(tasks)
    order = 1

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        return ["scene-tasks", SCENE_TASKS_VERSION, dict(EXAMPLES)]

    def read(self, progress: ProgressCallback) -> dict[GlueSplitName, list[Example]]:
        """The first examples of each split whose texts are none of an earlier one's."""
        progress("writing descriptions of scenes", 0, None)
        seen: set[str] = set()
        found: dict[GlueSplitName, list[Example]] = {split: [] for split in EXAMPLES}
        for split, count in EXAMPLES.items():
            examples = drawn_examples(self.data.task, split)
            while len(found[split]) < count:
                example = next(examples)
                if example.texts not in seen:
                    seen.add(example.texts)
                    found[split].append(example)
        return found


def drawn_examples(task: str, split: GlueSplitName) -> Iterator[Example]:
    """The examples of a split, of which there is no end."""
    make, labels = _MAKERS[task]
    for number, draws in enumerate(drawn(f"{task} {SCENE_TASKS_VERSION} {split}", _NUMBERS)):
        yield make(draws, number % labels)


@dataclass(frozen=True)
class _Thing:
    """A symbol and what is said of it; None of what is not."""

    symbol: str
    colour: str | None
    size: str | None
    face: str | None = None


@dataclass(frozen=True)
class _World:
    """Two things, where the first is as seen from the second, and the paper that they are on; None of what is not
    said."""

    things: tuple[_Thing, _Thing]
    where: str
    paper: str | None


# ---- scene-nli

_LEFT_OUT = ("size of 0", "size of 1", "paper")
"""What a premise may leave out; it leaves out one or two of these."""


def _nli(draws: Draws, label: int) -> Example:
    """The hypothesis is drawn first, whatever the label; then what the premise says instead of it."""
    told = _world(draws)
    asked = _LEFT_OUT[draws.below(len(_LEFT_OUT))]
    is_single = draws.share() < 0.5  # the hypothesis is about one of the two
    said = [place for place in (0, 1) if draws.share() < _COLOUR_SAID]
    place = draws.below(2)
    if is_single:
        place = place if asked == "paper" else int(asked[-1])
        said = [place]
    facts = [*(f"colour of {place}" for place in said), *([] if is_single else ["where"]), asked]
    turned = facts[draws.below(len(facts))]
    true = _turned(told, turned, draws) if label == 2 else told
    is_asked_said = (True, False, turned == asked or draws.share() < 0.5)[label]
    premise = _left_out(true, _kept(asked, is_asked_said, draws))
    faces = [draws.share() < _FACE_REPEATED for _ in told.things]
    hypothesis = _left_out(told, {asked})
    one, other = (
        replace(thing, colour=thing.colour if number in said else None, face=thing.face if face else None)
        for number, (thing, face) in enumerate(zip(hypothesis.things, faces, strict=True))
    )
    writer = _Writer(draws)
    first = writer.both(premise)
    if is_single:
        second = writer.placed(writer.name((one, other)[place]), hypothesis.paper)
    else:
        second = writer.both(replace(hypothesis, things=(one, other)))
    return Example(first, second, label)


def _world(draws: Draws) -> _World:
    """Everything about two things."""
    things: list[_Thing] = []
    for _ in range(2):
        symbols = [symbol for symbol in _some(_SYMBOLS, draws) if symbol not in [each.symbol for each in things]]
        face = _some(("bold", "slanted"), draws) if draws.share() < _FACE_SAID else None
        symbol = _some(symbols, draws)
        colour, size = _some([*INKS], draws), _some([*SIZES], draws)
        things.append(_Thing(symbol, colour, size, face if symbol in KINDS else None))
    return _World((things[0], things[1]), _some([*RELATIONS], draws), _some([*PAPERS], draws))


def _turned(world: _World, fact: str, draws: Draws) -> _World:
    """The world with one fact otherwise: the relation turned round, any other colour, the other size."""
    if fact == "where":
        return replace(world, where=OPPOSITE[world.where])
    if fact == "paper":
        return replace(world, paper=_other(PAPERS, world.paper, draws))
    what, _, number = fact.partition(" of ")
    things = list(world.things)
    thing = things[int(number)]
    values = SIZES if what == "size" else INKS
    things[int(number)] = replace(thing, **{what: _other(values, getattr(thing, what), draws)})
    return replace(world, things=(things[0], things[1]))


def _kept(asked: str, is_said: bool, draws: Draws) -> set[str]:
    """What a premise does not leave out: one or two of `_LEFT_OUT`, `asked` among them or not."""
    count = draws.between(1, 2)
    others = [fact for fact in _LEFT_OUT if fact != asked]
    chosen = {others[place] for place in draws.some(count - is_said, len(others))}
    return chosen | {asked} if is_said else chosen


def _left_out(world: _World, kept: set[str]) -> _World:
    """The world with nothing said of `_LEFT_OUT` but what is kept."""
    one, other = (
        thing if f"size of {number}" in kept else replace(thing, size=None) for number, thing in enumerate(world.things)
    )
    return replace(world, things=(one, other), paper=world.paper if "paper" in kept else None)


# ---- scene-similarity

_WAYS: Mapping[int, Sequence[tuple[bool, bool, bool, int]]] = {
    count: [
        (size, colour, paper, symbol)
        for size, colour, paper, symbol in product((False, True), (False, True), (False, True), range(3))
        if size + colour + paper + symbol == count
    ]
    for count in range(6)
}
"""By the number of things in common, which ones they may be: whether size, colour and paper are, and of the symbol
nothing (0), its kind (1), or all (2)."""


def _similarity(draws: Draws, label: int) -> Example:
    one, other = _colours(draws)
    same_size, same_colour, same_paper, same_symbol = _some(_WAYS[label], draws)
    kind = draws.below(len(_SYMBOLS))
    first = _Thing(_some(_SYMBOLS[kind], draws), one[0], _some([*SIZES], draws))
    if same_symbol == 0:
        symbols: Sequence[str] = _SYMBOLS[(kind + draws.between(1, len(_SYMBOLS) - 1)) % len(_SYMBOLS)]
    else:
        symbols = [symbol for symbol in _SYMBOLS[kind] if symbol != first.symbol]
    second = _Thing(
        first.symbol if same_symbol == 2 else _some(symbols, draws),
        first.colour if same_colour else other[0],
        first.size if same_size else _other(SIZES, first.size, draws),
    )
    papers = one[1], one[1] if same_paper else other[1]
    writer = _Writer(draws)
    texts = [writer.placed(writer.name(thing), paper) for thing, paper in zip((first, second), papers, strict=True)]
    return Example(texts[0], texts[1], label)


def _colours(draws: Draws) -> tuple[tuple[str, str], tuple[str, str]]:
    """A colour and a paper, and others."""
    colour, paper = _some([*INKS], draws), _some([*PAPERS], draws)
    return (colour, paper), (_other(INKS, colour, draws), _other(PAPERS, paper, draws))


# ---- words


class _Writer:
    """Writes descriptions in one choice of words."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._is_kind_said = draws.share() < _KIND_SAID
        self._size, self._relation, self._paper, self._picture = (draws.share() for _ in range(4))

    def both(self, world: _World) -> str:
        """Both things, and where one is as seen from the other."""
        (one, other), where = world.things, world.where
        if self._draws.share() < 0.5:
            one, other, where = other, one, OPPOSITE[where]
        form, relation = self._draws.share(), _some(RELATIONS[where], Draws([self._relation]))
        first, second = self.name(one), self.name(other)
        if form < 0.4:
            return self.placed(f"{first} is {relation} {second}", world.paper, is_clause=True)
        return self.placed(
            f"{first} {relation} {second}" if form < 0.7 else f"{second} with {first} {relation} it", world.paper
        )

    def placed(self, what: str, paper: str | None, *, is_clause: bool = False) -> str:
        """A description, which is a clause or names something, with the paper that it is on."""
        form = self._draws.share()
        there = what if is_clause else f"there is {what}"
        if paper is None:
            return what if form < 0.5 else there
        words = paper_words(paper, Draws([self._paper]))
        if form < 0.3:
            return f"{what} on {words}"
        if form < 0.6:
            return f"on {words} {there}"
        picture = _some(PICTURE_NOUNS, Draws([self._picture]))
        return f"{there} on {words}" if is_clause or form < 0.8 else f"{article(paper)} {picture} of {what}"

    def name(self, thing: _Thing) -> str:
        """`a huge bold red letter b`; of a letter or digit of which nothing else is said the kind is."""
        words = [] if thing.size is None else [_some(SIZES[thing.size], Draws([self._size]))]
        words += [word for word in (thing.face, thing.colour) if word is not None]
        if thing.symbol in KINDS and (self._is_kind_said or not words):
            words.append(KINDS[thing.symbol])
        words.append(thing.symbol)
        return " ".join([article(words[0]), *words[1:]])


def _some(values: Sequence[V], draws: Draws) -> V:
    return values[draws.below(len(values))]


def _other(values: Iterable[str], value: str | None, draws: Draws) -> str:
    """One of the values but this."""
    return _some([each for each in values if each != value], draws)


_MAKERS: Mapping[str, tuple[Callable[[Draws, int], Example], int]] = {
    "scene-nli": (_nli, 3),
    "scene-similarity": (_similarity, 6),
}
"""What makes an example of a label, and how many labels there are."""
