"""`acceptability` and `follows`: examples made from sentences of the pre-training corpus, training examples from its
training documents, test examples from its validation documents. Sentences are prose of 6 to 32 words without code. A
repeated sentence is used once; sentences of test documents whose words occur in a training document are not used.

**acceptability**: a sentence as it was written (1), or with one error (0): a function word swapped with its neighbour,
a missing function word, or a verb that does not agree. The selection of sentences and errors does not depend on the
label.

**follows**: two sentences; the second is the next one of the document (1), or the second of another pair, the nearest
in length among the next pairs of other documents (0). Either sentence alone carries no information. Each sentence is
used once.

On python-docs, naive Bayes on words has MCC 2 on acceptability, 19 with word pairs, and about 50 % accuracy on follows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from comt_cli.data.draws import Draws, drawn
from comt_cli.data.glue.settings import Example, GlueSource, GlueSplitName, Labels
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.settings import Corpus, SplitName
from comt_cli.data.text.splits import split_in, streams_of, train_texts

SENTENCES_VERSION = 2  # version, as tests/contract/test_cache_versions.py says

WORDS = range(6, 33)  # per sentence
MOST = 200_000  # sentences per split, the first ones of the corpus

_WORD = r"\w+(?:['’./-]\w+)*(?:\(\))?"
_QUOTE = r"[\"'`“”‘’*]{0,2}"
_LAST = r"\w+(?:['’-]\w+)*(?:\(\))?"  # without dots: "i.e." ends no sentence
_CLEAN = re.compile(rf"(?=[A-Z])(?:\(?{_QUOTE}{_WORD}{_QUOTE}\)?(?: ?[,;:])?(?: --?)? )+{_QUOTE}{_LAST}{_QUOTE}\)? ?\.")
_END = re.compile(r"(?<=[.!?])\s+(?=\S)")
_PARAGRAPH = re.compile(r"\n\s*\n|^\s*=.*=\s*$", re.MULTILINE)  # blank lines, and headings of Wikipedia
_BARE = re.compile(r"\w+")

SWAPPED, DROPPED = 0.44, 0.40
"""The shares of errors by swapping and dropping; the rest are verbs that do not agree. An impossible kind is replaced
by the next one."""

NEAREST = 6  # candidates for a second sentence, of which the nearest in length is used

_WORDS = "the a an of to in on for by with from as at is are was were be not and or that which if"
_MOVED = frozenset(_WORDS.split())
_DISPENSABLE = "the on as at not and or that which if"  # a sentence may still be acceptable without these
_LEFT_OUT = _MOVED - {*_DISPENSABLE.split()} | {"has", "been", "than"}
_AGREES = {"is": "are", "was": "were", "has": "have", "does": "do"}
_AGREES |= {plural: singular for singular, plural in _AGREES.items()}
_PLAIN = re.compile(r"[a-z]+")


class TextExamples(GlueSource):
    """The source of both tasks."""

    _of_pairs = Labels(2, ("accuracy", "f1"))
    tasks: ClassVar[Mapping[str, Labels]] = {"acceptability": Labels(2, ("mcc",)), "follows": _of_pairs}
    names = tuple(tasks)
    order = 0
    is_of_text = True

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        made_of = ["text", SENTENCES_VERSION, MOST, self.data.make_corpus().identity(progress)]
        return [*made_of, self.data.validation_fraction]

    def read(self, progress: ProgressCallback) -> dict[GlueSplitName, list[Example]]:
        found = passages(self.data.make_corpus(), self.data.validation_fraction, progress)
        make = follows if self.data.task == "follows" else acceptability
        return {"train": make(found["train"], "train"), "test": make(found["validation"], "test")}


def acceptability(found: Sequence[Passage], split: GlueSplitName) -> list[Example]:
    """Every sentence in which an error is possible, half of them with one."""
    sentences = [sentence for passage in found for sentence in passage.sentences]
    made = []
    for sentence, draws in zip(sentences, drawn(f"acceptability {SENTENCES_VERSION} {split}", 4), strict=False):
        if (wrong := made_wrong(sentence, draws)) is not None:
            made.append(Example(sentence, None, 1) if draws.share() < 0.5 else Example(wrong, None, 0))
    return made


def made_wrong(sentence: str, draws: Draws) -> str | None:
    """The sentence with one error after its first word; None if no error is possible."""
    words, share, where = sentence.split(), draws.share(), draws.share()
    first = 0 if share < SWAPPED else 1 if share < SWAPPED + DROPPED else 2
    for kind in (first, (first + 1) % 3, (first + 2) % 3):
        places = [place for place in range(1, len(words) - 1) if _fits(words, place, kind)]
        if places:
            place = places[int(where * len(places))]
            one, other = words[place : place + 2]
            middle = ([other, one], [other], [_AGREES.get(one, ""), other])[kind]
            return " ".join([*words[:place], *middle, *words[place + 2 :]])
    return None


def _fits(words: Sequence[str], place: int, kind: int) -> bool:
    """Whether a word and the next one can be swapped (kind 0), or the word dropped (1) or replaced (2)."""
    word, following = words[place], words[place + 1]
    if kind == 0:
        is_plain = _PLAIN.fullmatch(following) is not None and word != following
        return word in _MOVED and is_plain and following not in _MOVED and place + 2 < len(words)
    return word in (_LEFT_OUT if kind == 1 else _AGREES)


class _Pair(NamedTuple):
    document: int
    first: str
    second: str


def follows(found: Sequence[Passage], split: GlueSplitName) -> list[Example]:
    """Pairs of neighbouring sentences, half of them with exchanged second sentences."""
    pairs = [
        _Pair(passage.document, *two)
        for passage in found
        for two in zip(passage.sentences[::2], passage.sentences[1::2], strict=False)
    ]
    numbers = drawn(f"follows {SENTENCES_VERSION} {split}", 1)
    is_next = [draws.share() < 0.5 for _, draws in zip(pairs, numbers, strict=False)]
    partners = iter(_partners([pair for pair, stays in zip(pairs, is_next, strict=True) if not stays]))
    made = ((pair, stays, pair.second if stays else next(partners)) for pair, stays in zip(pairs, is_next, strict=True))
    return [Example(pair.first, second, int(stays)) for pair, stays, second in made if second is not None]


def _partners(pairs: Sequence[_Pair]) -> list[str | None]:
    """For every pair a second sentence of another document, each used once; None if none is left."""
    free = [*pairs[1:], *pairs[:1]]
    found: list[str | None] = []
    for pair in pairs:
        length = len(pair.second.split())
        others = islice((place for place, other in enumerate(free) if other.document != pair.document), NEAREST)
        place = min(others, key=lambda place: abs(len(free[place].second.split()) - length), default=None)
        found.append(None if place is None else free.pop(place).second)
    return found


class Passage(NamedTuple):
    """The usable sentences of a document, in order. `document` is its unique number."""

    document: int
    sentences: tuple[str, ...]


def sentences_of(text: str) -> Iterator[str]:
    """The usable sentences of a document, in order."""
    for paragraph in _PARAGRAPH.split(text):
        for piece in _END.split(" ".join(paragraph.split())):
            if len(piece.split()) in WORDS and _CLEAN.fullmatch(piece):
                yield piece


def passages(
    corpus: Corpus, validation_fraction: float | None, progress: ProgressCallback, most: int = MOST
) -> dict[SplitName, list[Passage]]:
    """The passages of pre-training's training and validation documents, until a split has `most` sentences. The
    corpus is read to its end, so that no training document contains a test sentence. Raises `UserError`."""
    found: dict[SplitName, list[Passage]] = {"train": [], "validation": []}
    seen: dict[SplitName, set[str]] = {"train": set(), "validation": set()}
    document = 0
    for stream in streams_of(corpus, validation_fraction):
        for each in stream.documents((0, 0)):
            progress("reading sentences of documents", document, None)
            document += 1
            split = split_in(stream, each, validation_fraction)
            if len(seen[split]) >= most:
                if stream.split is not None or all(len(known) >= most for known in seen.values()):
                    break
                continue
            new = tuple(sentence for sentence in dict.fromkeys(sentences_of(each.text)) if sentence not in seen[split])
            seen[split].update(new)
            found[split].append(Passage(document, new))
    told = told_in(train_texts(corpus, validation_fraction), seen["validation"], progress)
    held = [
        passage._replace(sentences=tuple(each for each in passage.sentences if each not in told))
        for passage in found["validation"]
    ]
    return {**found, "validation": held}


def told_in(texts: Iterable[str], sentences: Iterable[str], progress: ProgressCallback) -> set[str]:
    """The sentences whose words occur consecutively in one of the texts, whatever separates them."""
    by_start: dict[tuple[str, ...], list[tuple[list[str], str]]] = defaultdict(list)
    for sentence in sentences:
        words = _BARE.findall(sentence.lower())
        by_start[tuple(words[: WORDS.start])].append((words, sentence))
    firsts = {start[0] for start in by_start}
    told = set()
    for number, text in enumerate(texts):
        progress("comparing sentences with training documents", number, None)
        read = _BARE.findall(text.lower())
        for place, word in enumerate(read):
            if word in firsts:
                for words, sentence in by_start.get(tuple(read[place : place + WORDS.start]), ()):
                    if read[place : place + len(words)] == words:
                        told.add(sentence)
    return told
