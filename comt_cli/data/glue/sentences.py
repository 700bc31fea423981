"""Clean sentences of a corpus, document by document: prose of 6 to 32 words, which may be names of a program, no code.

A document's split is that of pre-training (`data.corpus.split_in`), so that what is tested on was read by nobody. A
sentence that occurs in several places counts at the first alone, and one whose words stand anywhere in a training
document, clean or not, is no sentence of a test document.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.corpus import Corpus, SplitName, split_in, train_texts

SENTENCES_VERSION = 2
"""Raise it when the same text may give other sentences, or other examples of them, than before
(tests/contract/test_cache_versions.py asks for it)."""

WORDS = range(6, 33)
"""How many words a sentence may have."""

MOST = 200_000
"""Sentences of a split that are used, the first ones of the corpus: of Wikipedia a part."""

_WORD = r"\w+(?:['’./-]\w+)*(?:\(\))?"
_QUOTE = r"[\"'`“”‘’*]{0,2}"
_LAST = r"\w+(?:['’-]\w+)*(?:\(\))?"  # without dots: "i.e." ends no sentence
_CLEAN = re.compile(rf"(?=[A-Z])(?:\(?{_QUOTE}{_WORD}{_QUOTE}\)?(?: ?[,;:])?(?: --?)? )+{_QUOTE}{_LAST}{_QUOTE}\)? ?\.")
_END = re.compile(r"(?<=[.!?])\s+(?=\S)")
_PARAGRAPH = re.compile(r"\n\s*\n|^\s*=.*=\s*$", re.MULTILINE)  # empty lines, and titles of Wikipedia's articles
_BARE = re.compile(r"\w+")
_AT_ONCE = 1000  # documents between two reports


@dataclass(frozen=True)
class Passage:
    """The clean sentences of a document, in order. `document` is a number that no other one has."""

    document: int
    sentences: tuple[str, ...]


def sentences_of(text: str) -> Iterator[str]:
    """The clean sentences of a document in order."""
    for paragraph in _PARAGRAPH.split(text):
        for piece in _END.split(" ".join(paragraph.split())):
            if len(piece.split()) in WORDS and _CLEAN.fullmatch(piece):
                yield piece


def passages(
    corpus: Corpus, validation_fraction: float | None, progress: ProgressCallback, most: int = MOST
) -> dict[SplitName, list[Passage]]:
    """The passages of the training and of the validation documents of pre-training, until a split has `most` sentences.

    The corpus is read to its end, so that no training document has what is tested on.

    Raises:
        UserError: the corpus cannot be read.
    """
    found: dict[SplitName, list[Passage]] = {"train": [], "validation": []}
    seen: dict[SplitName, set[str]] = {"train": set(), "validation": set()}
    document = 0
    for stream in corpus.streams():
        for each in stream.documents():
            if document % _AT_ONCE == 0:
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
    told = _told(seen["validation"], train_texts(corpus, validation_fraction), progress)
    return {**found, "validation": [_without(told, passage) for passage in found["validation"]]}


def _told(sentences: Iterable[str], texts: Iterable[str], progress: ProgressCallback) -> set[str]:
    """Those of the sentences whose words, whatever stands between and around them, are in one of the texts in a row."""
    by_start: dict[tuple[str, ...], list[tuple[list[str], str]]] = defaultdict(list)
    for sentence in sentences:
        words = _bare(sentence)
        by_start[tuple(words[: WORDS.start])].append((words, sentence))
    firsts = {start[0] for start in by_start}
    told = set()
    for number, text in enumerate(texts):
        if number % _AT_ONCE == 0:
            progress("comparing sentences with training documents", number, None)
        read = _bare(text)
        for place, word in enumerate(read):
            if word in firsts:
                for words, sentence in by_start.get(tuple(read[place : place + WORDS.start]), ()):
                    if read[place : place + len(words)] == words:
                        told.add(sentence)
    return told


def _bare(text: str) -> list[str]:
    return _BARE.findall(text.lower())


def _without(told: set[str], passage: Passage) -> Passage:
    return replace(passage, sentences=tuple(each for each in passage.sentences if each not in told))
