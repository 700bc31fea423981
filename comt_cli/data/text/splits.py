"""The split of every text of a corpus: its stream's, or by the hash of the document. Few documents that hashes would
put into one split are cut into blocks."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from comt_cli.data.text import settings
from comt_cli.data.text.settings import VALIDATION_SHARE, Corpus, Document, Place, SplitName, Stream, split_of

FEW = 100
"""More documents are never cut."""
BLOCKS, SHORTEST = 200, 1000
"""Blocks have about a 200th of the whole text, but not fewer than 1,000 characters."""


def split_in(stream: Stream, document: Document, validation_fraction: float | None) -> SplitName:
    """The split of a stream's document."""
    return stream.split or document.split or split_of(document.text, validation_fraction or VALIDATION_SHARE)


def train_texts(corpus: Corpus, validation_fraction: float | None) -> Iterator[str]:
    """The texts of the train split in order."""
    for stream in streams_of(corpus, validation_fraction):
        for document in () if stream.split == "validation" else stream.documents((0, 0)):
            if split_in(stream, document, validation_fraction) == "train":
                yield document.text


def streams_of(corpus: Corpus, validation_fraction: float | None) -> Sequence[Stream]:
    """The streams of a corpus. Of the user's own text, fewer than `FEW` documents, all of which would be in one split,
    are cut into contiguous blocks of about the same length, at line ends or spaces where possible. The blocks with the
    smallest hashes are the validation split, until it has its share of the characters, and at least one."""
    streams = corpus.streams()
    if not corpus.is_own_text or [stream.split for stream in streams] != [None]:
        return streams
    (stream,) = streams
    sizes, splits = list[int](), set[SplitName]()
    for document in itertools.islice(stream.documents((0, 0)), FEW):
        sizes.append(len(document.text))
        splits.add(split_in(stream, document, validation_fraction))
        if len(splits) == 2 or len(sizes) == FEW:
            return streams
    return [Stream(None, functools.partial(_pieces, stream, sum(sizes), validation_fraction), in_blocks=True)]


def source_of(corpus: Corpus, validation_fraction: float | None) -> dict[str, Any]:
    """What the documents depend on besides the identity: the revision, and whether they are cut. Mostly empty."""
    is_cut = any(stream.in_blocks for stream in streams_of(corpus, validation_fraction))
    revision = {} if corpus.revision is None else {settings.REVISION: corpus.revision}
    return revision | ({settings.IN_BLOCKS: True} if is_cut else {})


def _pieces(stream: Stream, characters: int, validation_fraction: float | None, start: Place) -> Iterator[Document]:
    """Documents in pieces, the longest runs of blocks of one split, from piece `start[1]` on."""
    size, sizes = max(SHORTEST, characters // BLOCKS), Counter[bytes]()
    for document in stream.documents((0, 0)):
        for block in _blocks(document.text, size):
            sizes[_hash(block)] += len(block)
    held, room = set[bytes](), (validation_fraction or VALIDATION_SHARE) * characters
    for each in sorted(sizes)[:-1]:  # one is left for training
        if room > 0:
            held.add(each)
            room -= sizes[each]
    pieces: Iterator[tuple[SplitName, str]] = (
        ("validation" if is_held else "train", "".join(run))
        for document in stream.documents((0, 0))
        for is_held, run in itertools.groupby(_blocks(document.text, size), lambda block: _hash(block) in held)
    )
    for number, (split, text) in enumerate(itertools.islice(pieces, start[1], None), start[1]):
        yield Document(text, (0, number), split)


def _hash(block: str) -> bytes:
    return hashlib.sha256(block.encode()).digest()


def _blocks(text: str, size: int) -> Iterator[str]:
    """A text in blocks of one to seven quarters of `size` characters; a shorter one is one block."""
    count, start = max(1, round(len(text) / size)), 0
    for number in range(1, count):
        place = number * len(text) // count
        ends = (text.rfind(mark, place - size // 2, place) for mark in ("\n", " "))
        end = next((found + 1 for found in ends if found >= 0), place)
        yield text[start:end]
        start = end
    yield text[start:]
