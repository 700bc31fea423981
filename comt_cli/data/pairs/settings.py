"""Parallel text: corpora of pairs, settings and identity. Importing it imports no NumPy."""

from __future__ import annotations

import itertools
import unicodedata
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from comt_cli.data.prepare import Manifest, Prepared, Record
from comt_cli.data.settings import DataSection, Named, name_of
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.settings import sentencepiece_identity, split_of
from comt_cli.files import sha256
from comt_cli.recipe.settings import MAX_LENGTH, Count, Vocabulary, WholeNumber, matching

PAIR_FORMAT = PACKING = 1
"""Versions of prepared pairs and of their buckets, see tests/contract/test_cache_versions.py."""

BYTE_VOCABULARY = 259  # padding, end, 256 bytes, begin

Pair = tuple[str, str]  # a text and its translation
Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")


def is_blank(text: str) -> bool:
    """Whether a text has no visible characters: only spaces and characters such as U+200B, U+00AD or U+FEFF."""
    return all(each.isspace() or unicodedata.category(each) in ("Cc", "Cf") for each in text)


@dataclass(frozen=True)
class PairTexts:
    """The texts of a split that is decoded; `slots` are the formatted values in each reference (None: unknown)."""

    sources: Sequence[str]
    references: Sequence[str]
    slots: Sequence[Sequence[str]] | None = None

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> PairTexts:
        return cls([source for source, _ in pairs], [reference for _, reference in pairs])

    def __len__(self) -> int:
        return len(self.sources)


class PairCorpus(Named):
    """A source of pairs."""

    package = "comt_cli.data.pairs.corpora"
    is_own_text: ClassVar[bool] = False  # its long lines are cut before a vocabulary is trained
    data: PairData

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The implied keys, without the shares of splits that have their own files."""
        files = {key.replace("files", "fraction") for key in ("validation_files", "test_files") if given.get(key)}
        return {key: value for key, value in cls.keys.items() if key not in files}

    @abstractmethod
    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """The texts of every split except training, including "validation" and "test". Raises `UserError`."""

    @abstractmethod
    def train(self) -> Iterator[Pair]:
        """The training pairs in order. Raises `UserError`."""

    def vocabulary_texts(self) -> Iterator[str]:
        """Texts of the training split, sources and targets, to train a vocabulary: all, or an even selection."""
        return itertools.chain.from_iterable(self.train())

    def trained_on(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The training pairs among pairs that `split_of_source` divides."""
        return (pair for pair in pairs if split_of_source(pair[0], self.data) == "train")


SHARES: Mapping[str, float] = {"validation_fraction": 0.02, "test_fraction": 0.02}
"""The default shares of corpora that `split_of_source` divides."""


def split_of_source(source: str, data: PairData) -> Literal["train", "validation", "test"]:
    """The split of a pair by the hash of its source text: equal sources are always in the same split."""
    validation, test = data.validation_fraction or 0.0, data.test_fraction or 0.0
    if split_of(source, validation) == "validation":
        return "validation"
    return "test" if split_of(source, validation + test) == "validation" else "train"


Share = Annotated[float, Field(gt=0, lt=1)]
_CODE = matching(r"[a-z]{2,3}([_-][A-Za-z]{2,4})*", "is not a language code such as en, vi or zh_CN")
Language = Annotated[str, _CODE]
TwoFiles = Annotated[str, matching(r"[^,]+,[^,]+", "is not two files separated by a comma, SOURCES,TARGETS")]


class PairData(DataSection):
    """Data of translation: the corpus, its languages, their joint vocabulary, and the size of buckets. Lengths include
    the end token."""

    kind = PairCorpus

    corpus: Annotated[str, name_of(PairCorpus)] = "almanac"
    source: Language = "en"
    target: Language = "de"
    difficulty: Literal["easy", "full"] | None = None
    pairs: Annotated[WholeNumber, Field(ge=1, le=10**7)] | None = None  # which are held in memory
    validation_pairs: Count | None = None
    test_pairs: Count | None = None
    validation_fraction: Share | None = None
    test_fraction: Share | None = None
    validation_files: TwoFiles | None = None
    test_files: TwoFiles | None = None
    folder: str | None = None
    tokenizer: Literal["sentencepiece", "bytes"] = "sentencepiece"
    vocabulary_size: Vocabulary | None = None
    max_length: Annotated[WholeNumber, Field(ge=2, le=MAX_LENGTH)] = 256
    batch_tokens: Annotated[WholeNumber, Field(ge=2, le=MAX_LENGTH)] = 4096

    @classmethod
    def with_implied(cls, given: dict[str, Any]) -> dict[str, Any]:
        is_implied = given.get("tokenizer") == "bytes" and given.get("vocabulary_size") is None
        return given | {"vocabulary_size": BYTE_VOCABULARY} if is_implied else given

    def contradictions(self) -> Iterator[str]:
        if self.source == self.target:
            yield f"target: is {self.source}, the same as source"
        yield from super().contradictions()
        for split in ("validation", "test"):
            if getattr(self, f"{split}_files") is not None and getattr(self, f"{split}_fraction") is not None:
                yield f"{split}_fraction: {split}_files already gives this split; leave one of the two out"
        if (self.validation_fraction or 0) + (self.test_fraction or 0) >= 1:
            yield "validation_fraction: together with test_fraction it leaves nothing to train on; reduce one of them"
        if self.tokenizer == "sentencepiece" and self.vocabulary_size is None:
            yield "vocabulary_size: is missing, and a SentencePiece vocabulary needs it, for instance 2000"
        if self.tokenizer == "bytes" and self.vocabulary_size != BYTE_VOCABULARY:
            yield f"vocabulary_size: the tokenizer bytes has {BYTE_VOCABULARY} tokens; leave the key out"
        if self.batch_tokens < self.max_length:
            said = f"cannot hold a sentence of max_length {self.max_length}; use at least {self.max_length}"
            yield f"batch_tokens: a bucket of {self.batch_tokens} tokens {said}, or a smaller max_length"


class LeftOut(Record):
    """Training pairs longer than `max_length` or with an empty side; `named` has the first few."""

    too_long: NonNegativeInt = 0
    empty: NonNegativeInt = 0
    named: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = ((self.too_long, "too long (max_length)"), (self.empty, "without a text on one side"))
        parts = [f"{count:,} {reason}" for count, reason in counts if count]
        return f"training pairs left out: {', '.join(parts)}; first {', '.join(self.named)}" if parts else ""

    def with_one(self, reason: Literal["too_long", "empty"], name: str) -> LeftOut:
        named = (*self.named, name)[:5]
        return self.model_copy(update={reason: getattr(self, reason) + 1, "named": named})


class PairManifest(Manifest):
    """Record of prepared pairs."""

    format: int
    corpus: list[Any]
    dtype: str
    vocabulary_size: int
    pairs: NonNegativeInt
    left_out: LeftOut

    def content_hash(self) -> str:
        """16 hexadecimal digits over tokens, texts, tokenizer and packing."""
        content = super().content_hash()
        return content if PACKING == 1 else sha256(f"{PACKING} {content}")[:16]  # the first runs' ids have no version


class Kind(Prepared[PairData, PairCorpus]):
    """Pairs as tokens of a joint vocabulary."""

    cache = "pairs"
    manifest = PairManifest
    keys = ("max_length", "batch_tokens")

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        data, corpus = self.data, self.corpus.identity(progress)
        is_trained = data.tokenizer == "sentencepiece"
        tokenizer = sentencepiece_identity(data.vocabulary_size, "begin") if is_trained else ["bytes"]
        languages = [data.source, data.target]
        return {"format": PAIR_FORMAT, "corpus": corpus, "languages": languages, "tokenizer": tokenizer}
