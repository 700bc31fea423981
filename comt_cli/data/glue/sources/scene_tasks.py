"""`scene-nli` and `scene-similarity`: pairs of descriptions in the words of `scenes`, with the label whether the second
follows from the first, or how many facts they share.

Example i of a split is a pure function of (`SCENE_TASKS_VERSION`, task, split, i). Its label depends on i, so that
classes are balanced. A pair of texts is in one split only.

**scene-nli**: the premise names two symbols with their colours and their relation, and one or two of three optional
facts: the sizes of the two symbols, and the paper. The hypothesis states one of these three facts, besides colours and
the relation. It is entailed (0), states a fact that the premise omits (1, neutral), or contradicts it (2). The
distribution of either text alone is the same for every label.

**scene-similarity**: two descriptions of a symbol, its size, its colour and the paper. The label, 0 to 5, is the number
of equal facts: size, colour, paper, kind (letter, digit, shape), and the symbol itself.

Synonyms are drawn once per example, so that a small network need not learn them first. Naive Bayes has an accuracy of
1/3 on scene-nli (chance); on scene-similarity the share of common words has a Pearson correlation of 0.74.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, repeat
from typing import Any, ClassVar

from comt_cli.data.captions import words
from comt_cli.data.captions.words import article, paper_words
from comt_cli.data.draws import Draws, drawn, unseen
from comt_cli.data.glue.settings import Example, GlueSource, GlueSplitName, Labels
from comt_cli.data.storage import ProgressCallback, no_progress

SCENE_TASKS_VERSION = 1  # version, as tests/contract/test_cache_versions.py says

EXAMPLES: Mapping[GlueSplitName, int] = {"train": 6000, "test": 1500}

_NUMBERS = 64  # draws of an example

_SYMBOLS = (words.LETTERS, words.DIGITS, words.SHAPES)
_KIND_SAID, _FACE_SAID, _FACE_REPEATED, _COLOUR_SAID = 0.3, 0.4, 0.5, 0.6


class SceneExamples(GlueSource):
    """The source of both tasks."""

    tasks: ClassVar[Mapping[str, Labels]] = {
        "scene-nli": Labels(3, ("accuracy",)),
        "scene-similarity": Labels(1, ("pearson", "spearman")),
    }
    names = tuple(tasks)
    order = 1

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        return ["scene-tasks", SCENE_TASKS_VERSION, dict(EXAMPLES)]

    def read(self, progress: ProgressCallback) -> dict[GlueSplitName, list[Example]]:
        progress("writing descriptions of scenes", 0, None)
        seen: set[str] = set()
        return {
            split: unseen(drawn_examples(self.data.task, split), count, lambda each: [each.texts], seen, "task")
            for split, count in EXAMPLES.items()
        }


def drawn_examples(task: str, split: GlueSplitName) -> Iterator[Example]:
    """The infinite sequence of a split's examples."""
    make, labels = (_nli, 3) if task == "scene-nli" else (_similarity, 6)
    for number, draws in enumerate(drawn(f"{task} {SCENE_TASKS_VERSION} {split}", _NUMBERS)):
        yield make(draws, number % labels)


World = Mapping[str, str | None]
"""`symbol of 0`, `colour of 0`, `size of 0`, `face of 0`, the same of 1, `where` 0 is seen from 1, and `paper`."""

_LEFT_OUT = ("size of 0", "size of 1", "paper")  # a premise omits one or two of these


def _nli(draws: Draws, label: int) -> Example:
    """Draw the hypothesis first, independently of the label, then the premise."""
    told = _world(draws)
    asked = draws.one_of(_LEFT_OUT)
    is_single = draws.share() < 0.5  # the hypothesis is about one of the two
    said = [place for place in (0, 1) if draws.share() < _COLOUR_SAID]
    place = draws.below(2)
    if is_single:
        place = place if asked == "paper" else int(asked[-1])
        said = [place]
    turned = draws.one_of([*(f"colour of {place}" for place in said), *([] if is_single else ["where"]), asked])
    true = _turned(told, turned, draws) if label == 2 else told
    is_asked_said = (True, False, turned == asked or draws.share() < 0.5)[label]
    premise = _left_out(true, _kept(asked, is_asked_said, draws))
    silent = [f"colour of {number}" for number in (0, 1) if number not in said]
    silent += [f"face of {number}" for number in (0, 1) if draws.share() >= _FACE_REPEATED]
    hypothesis = {**_left_out(told, {asked}), **dict.fromkeys(silent)}
    writer = _Writer(draws)
    first = writer.both(premise)
    if is_single:
        return Example(first, writer.placed(writer.thing(hypothesis, place), hypothesis["paper"]), label)
    return Example(first, writer.both(hypothesis), label)


def _world(draws: Draws) -> World:
    world: dict[str, str | None] = {}
    for number in (0, 1):
        symbols = [symbol for symbol in draws.one_of(_SYMBOLS) if symbol != world.get("symbol of 0")]
        face = draws.one_of(("bold", "slanted")) if draws.share() < _FACE_SAID else None
        world[f"symbol of {number}"] = symbol = draws.one_of(symbols)
        world[f"colour of {number}"] = draws.one_of([*words.INKS])
        world[f"size of {number}"] = draws.one_of([*words.SIZES])
        world[f"face of {number}"] = face if symbol in words.KINDS else None
    return world | {"where": draws.one_of([*words.RELATIONS]), "paper": draws.one_of([*words.PAPERS])}


def _turned(world: World, fact: str, draws: Draws) -> World:
    """The world with one fact changed: the relation reversed, another colour, or the other size."""
    if fact == "where":
        return {**world, "where": words.OPPOSITE[str(world["where"])]}
    values = words.PAPERS if fact == "paper" else words.SIZES if fact.startswith("size") else words.INKS
    return {**world, fact: _other(values, world[fact], draws)}


def _kept(asked: str, is_said: bool, draws: Draws) -> set[str]:
    """The facts that a premise states: one or two of `_LEFT_OUT`, with or without `asked`."""
    count = draws.between(1, 2)
    others = [fact for fact in _LEFT_OUT if fact != asked]
    chosen = {others[place] for place in draws.some(count - is_said, len(others))}
    return chosen | {asked} if is_said else chosen


def _left_out(world: World, kept: set[str]) -> World:
    return {**world, **{fact: None for fact in _LEFT_OUT if fact not in kept}}


_FACTS = [*product((False, True), (False, True), (False, True), range(3))]
_WAYS = {count: [facts for facts in _FACTS if sum(facts) == count] for count in range(6)}
"""Number of equal facts -> possible combinations of equal size, colour, paper, and symbol (0: different kind, 1: same
kind, 2: same symbol)."""


def _similarity(draws: Draws, label: int) -> Example:
    colour, paper = draws.one_of([*words.INKS]), draws.one_of([*words.PAPERS])
    other_colour, other_paper = _other(words.INKS, colour, draws), _other(words.PAPERS, paper, draws)
    same_size, same_colour, same_paper, same_symbol = draws.one_of(_WAYS[label])
    kind = draws.below(len(_SYMBOLS))
    symbol, size = draws.one_of(_SYMBOLS[kind]), draws.one_of([*words.SIZES])
    if same_symbol == 0:
        symbols: Sequence[str] = _SYMBOLS[(kind + draws.between(1, len(_SYMBOLS) - 1)) % len(_SYMBOLS)]
    else:
        symbols = [each for each in _SYMBOLS[kind] if each != symbol]
    second = (
        symbol if same_symbol == 2 else draws.one_of(symbols),
        colour if same_colour else other_colour,
        size if same_size else _other(words.SIZES, size, draws),
    )
    writer = _Writer(draws)
    first_text = writer.placed(writer.name(symbol, colour, size), paper)
    return Example(first_text, writer.placed(writer.name(*second), paper if same_paper else other_paper), label)


class _Writer:
    """Writes descriptions with one choice of synonyms."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._is_kind_said = draws.share() < _KIND_SAID
        self._size, self._relation, self._paper, self._picture = (Draws(repeat(draws.share())) for _ in range(4))

    def both(self, world: World) -> str:
        one, other, where = 0, 1, str(world["where"])
        if self._draws.share() < 0.5:
            one, other, where = 1, 0, words.OPPOSITE[where]
        form, relation = self._draws.share(), self._relation.one_of(words.RELATIONS[where])
        first, second = self.thing(world, one), self.thing(world, other)
        if form < 0.4:
            return self.placed(f"{first} is {relation} {second}", world["paper"], is_clause=True)
        text = f"{first} {relation} {second}" if form < 0.7 else f"{second} with {first} {relation} it"
        return self.placed(text, world["paper"])

    def placed(self, what: str, paper: str | None, *, is_clause: bool = False) -> str:
        """A description (a clause or a noun phrase) with its paper."""
        form = self._draws.share()
        there = what if is_clause else f"there is {what}"
        if paper is None:
            return what if form < 0.5 else there
        named = paper_words(paper, self._paper)
        if form < 0.3:
            return f"{what} on {named}"
        if form < 0.6:
            return f"on {named} {there}"
        if is_clause or form < 0.8:
            return f"{there} on {named}"
        return f"{article(paper)} {self._picture.one_of(words.PICTURE_NOUNS)} of {what}"

    def thing(self, world: World, number: int) -> str:
        colour, size, face = (world[f"{what} of {number}"] for what in ("colour", "size", "face"))
        return self.name(str(world[f"symbol of {number}"]), colour, size, face)

    def name(self, symbol: str, colour: str | None, size: str | None, face: str | None = None) -> str:
        """`a huge bold red letter b`; the kind is always stated for a letter or digit without other attributes."""
        named = [] if size is None else [self._size.one_of(words.SIZES[size])]
        named += [word for word in (face, colour) if word is not None]
        if symbol in words.KINDS and (self._is_kind_said or not named):
            named.append(words.KINDS[symbol])
        named.append(symbol)
        return " ".join([article(named[0]), *named[1:]])


def _other(values: Iterable[str], value: str | None, draws: Draws) -> str:
    return draws.one_of([each for each in values if each != value])
