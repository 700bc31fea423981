"""Clean sentences of a corpus, document by document: prose of 6 to 32 words, which may be names of a program, no code.

A document's split is that of pre-training (`data.corpus.split_in`), so that what is tested on was read by nobody. A
sentence that occurs in several places counts at the first alone, and one that training documents have is no sentence of
a test document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

from comt_cli.data.corpus import Corpus, SplitName, split_in
from comt_cli.data.storage import ProgressCallback

SENTENCES_VERSION = 1
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
    return {**found, "validation": [_without(seen["train"], passage) for passage in found["validation"]]}


def _without(told: Set[str], passage: Passage) -> Passage:
    return replace(passage, sentences=tuple(each for each in passage.sentences if each not in told))
