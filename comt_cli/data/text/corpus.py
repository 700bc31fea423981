"""What a corpus of text offers to preparation, and in which split a document is."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from comt_cli.data.registry import Named
from comt_cli.data.storage import ProgressCallback, no_progress

if TYPE_CHECKING:
    from comt_cli.data.text.settings import TextSettings

SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, SplitName] = ("train", "validation")


@dataclass(frozen=True)
class Document:
    """One text and its place in its stream: (file, number within the file), both counted from 0."""

    text: str
    place: tuple[int, int]


class Stream(Protocol):
    """Documents in a fixed order, readable from any place on."""

    split: SplitName | None
    """The split that all its documents are in; None: each goes by the hash of its text."""

    @property
    def total(self) -> int | None:
        """How many documents there are, if that is known without reading them."""
        ...

    def documents(self, start: tuple[int, int] = (0, 0)) -> Iterator[Document]:
        """The documents from the place `start` on (included)."""
        ...


class Corpus(Named):
    """A source of text with an identity that is known before any of it is tokenised."""

    package = "comt_cli.data.text.corpora"
    keys: ClassVar[Mapping[str, Any]] = {"validation_fraction": 0.05}
    reasons: ClassVar[Mapping[str, str]] = {"validation_fraction": "this corpus has a validation split of its own"}
    is_own_text: ClassVar[bool] = False
    """Text of the user's own, whose long lines are cut before a vocabulary is trained on it."""
    endless: bool = False
    """Too large to be read through: reading stops when the train split has its tokens."""
    validation_tokens: int | None = None
    """The validation split gets no more than this, None: no limit."""

    @classmethod
    def contradictions(cls, data: TextSettings) -> Iterator[str]:
        if cls.endless and data.max_train_tokens is None:
            yield "max_train_tokens: say how many tokens of this corpus to prepare"

    @classmethod
    def of(cls, data: TextSettings) -> Corpus:  # noqa: ARG003 - of most corpora there is one alone
        return cls()

    def __init__(self) -> None:
        """Of most corpora there is one alone."""

    @abstractmethod
    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """What decides the text, as JSON: equal identities give equal documents in equal order."""

    @abstractmethod
    def streams(self) -> Sequence[Stream]:
        """What there is to read, in order. Raises `UserError` when it cannot be had."""


def corpus_for(data: TextSettings) -> Corpus:
    """The corpus that `data.corpus` names."""
    found: Corpus = data.chosen.of(data)
    return found


def split_of(text: str, validation_fraction: float) -> SplitName:
    """The split that a document is in: a pure function of its text, so equal documents are never in both."""
    return "validation" if place_of(text) < validation_fraction else "train"


def place_of(text: str) -> float:
    """The validation fraction from which on, without it, a text is held out: the first 64 bits of its SHA-256, as a
    fraction of 2**64."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def split_in(stream: Stream, document: Document, validation_fraction: float | None) -> SplitName:
    """The split of a stream's document: the stream's own, else by the hash of the text."""
    if stream.split is not None:
        return stream.split
    assert validation_fraction is not None  # the settings of a corpus without a split of its own have one
    return split_of(document.text, validation_fraction)


def train_texts(corpus: Corpus, validation_fraction: float | None) -> Iterator[str]:
    """The texts of the train split in order, for the training of a tokenizer; it sees none of the validation split."""
    for stream in corpus.streams():
        if stream.split == "validation":
            continue
        for document in stream.documents():
            if split_in(stream, document, validation_fraction) == "train":
                yield document.text
