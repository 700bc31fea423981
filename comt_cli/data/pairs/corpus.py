"""What a corpus of pairs offers to settings and to preparation, and in which split a pair is."""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from comt_cli.data.registry import Named
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.corpus import split_of

if TYPE_CHECKING:
    from comt_cli.data.pairs.settings import PairData


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen: spaces, and marks without a width such as U+200B, U+00AD or U+FEFF."""
    return all(each.isspace() or unicodedata.category(each) in ("Cc", "Cf") for each in text)


class TextPair(NamedTuple):
    """A training pair and its place in the corpus: (file, number within the file), both counted from 0."""

    source: str
    target: str
    place: tuple[int, int]


@dataclass(frozen=True)
class PairTexts:
    """The texts of a split that is decoded: validation, test, or `almanac`'s unseen combinations.

    Attributes:
        sources, references: one text a pair.
        slots: the formatted values in each reference, in its order; None where the corpus knows of none.
    """

    sources: Sequence[str]
    references: Sequence[str]
    slots: Sequence[Sequence[str]] | None = None

    def __len__(self) -> int:
        return len(self.sources)


class PairCorpus(Named):
    """A source of pairs with an identity that is known before any of them is tokenised."""

    package = "comt_cli.data.pairs.corpora"
    is_own_text: ClassVar[bool] = False
    """Text of the user's own, whose long lines are cut before a vocabulary is trained on it."""
    total: int | None = None
    """How many training pairs there are, if that is known without reading them."""

    data: PairData

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without the shares of splits that are files of their own."""
        files = {key.replace("files", "fraction") for key in ("validation_files", "test_files") if given.get(key)}
        return {key: value for key, value in cls.keys.items() if key not in files}

    @abstractmethod
    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """What decides the texts, as JSON: equal identities give equal pairs in equal order. Raises `UserError`."""

    @abstractmethod
    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """The texts of every split but training's, "validation" and "test" among them. Raises `UserError`."""

    @abstractmethod
    def train(self, start: tuple[int, int] = (0, 0)) -> Iterator[TextPair]:
        """The training pairs in order from the place `start` on (included). Raises `UserError`."""

    def vocabulary_texts(self) -> Iterator[str]:
        """Texts of the training split, sources and targets, to train a vocabulary on; all, or an even selection."""
        return both_sides(self.train())


def corpus_for(data: PairData) -> PairCorpus:
    """The corpus that `data.corpus` names."""
    found: PairCorpus = data.chosen.of(data)
    return found


def both_sides(pairs: Iterator[TextPair]) -> Iterator[str]:
    """Source and target of every pair in turn."""
    for pair in pairs:
        yield pair.source
        yield pair.target


SHARES: Mapping[str, float] = {"validation_fraction": 0.02, "test_fraction": 0.02}
"""The settings of corpora that `split_of_source` divides."""


def split_of_source(source: str, data: PairData) -> Literal["train", "validation", "test"]:
    """The split of a pair by the hash of its source text: equal sources are never in two of them."""
    validation, test = data.validation_fraction or 0.0, data.test_fraction or 0.0
    if split_of(source, validation) == "validation":
        return "validation"
    return "test" if split_of(source, validation + test) == "validation" else "train"
