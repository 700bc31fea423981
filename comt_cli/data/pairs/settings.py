"""The settings of parallel text: the corpus, its languages, its splits, the vocabulary, and the buckets of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from comt_cli.data.pairs.corpus import PairCorpus
from comt_cli.data.settings import DataSection
from comt_cli.recipe.settings import MAX_LENGTH, Count, Vocabulary, WholeNumber, matching

BYTE_VOCABULARY = 259
"""Padding, end, 256 bytes, begin."""

LARGEST_ALMANAC = 10**7
"""Training pairs of `almanac`, which are held in memory while they are prepared."""

Share = Annotated[float, Field(gt=0, lt=1)]
Language = Annotated[
    str, matching(r"[a-z]{2,3}([_-][A-Za-z]{2,4})*", "is no code of a language, such as en, vi or zh_CN")
]
TwoFiles = Annotated[str, matching(r"[^,]+,[^,]+", "is not two files with a comma between, SOURCES,TARGETS")]


CorpusName = Annotated[str, matching(*PairCorpus.all_patterns(), PairCorpus.all_names())]


class PairData(DataSection):
    """What the model translates: the corpus, its languages, the vocabulary of both, and how pairs come in buckets.

    Lengths count tokens with the token that closes a text. A bucket holds at most `batch_tokens` padded tokens of
    sources, and as many of targets; training pairs with more than `max_length` tokens on a side are left out.
    """

    kind = PairCorpus

    corpus: CorpusName = "almanac"
    source: Language = "en"
    target: Language = "de"
    difficulty: Literal["easy", "full"] | None = None
    pairs: Annotated[WholeNumber, Field(ge=1, le=LARGEST_ALMANAC)] | None = None
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
    def said_once(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The settings with the size of a vocabulary that has but one."""
        is_implied = given.get("tokenizer") == "bytes" and given.get("vocabulary_size") is None
        return given | {"vocabulary_size": BYTE_VOCABULARY} if is_implied else given

    def contradictions(self) -> Iterator[str]:
        if self.source == self.target:
            yield f"target: source and target are both {self.source}"
        yield from super().contradictions()
        for split in ("validation", "test"):
            if getattr(self, f"{split}_files") is not None and getattr(self, f"{split}_fraction") is not None:
                yield f"{split}_fraction: {split}_files has the whole split; leave one of both out"
        if (self.validation_fraction or 0) + (self.test_fraction or 0) >= 1:
            yield "validation_fraction: with test_fraction it leaves nothing to train on"
        if self.tokenizer == "sentencepiece" and self.vocabulary_size is None:
            yield "vocabulary_size: a SentencePiece vocabulary is trained to a size; say which, for instance 2000"
        if self.tokenizer == "bytes" and self.vocabulary_size != BYTE_VOCABULARY:
            yield f"vocabulary_size: the tokenizer bytes has {BYTE_VOCABULARY} tokens; leave the key out"
        if self.batch_tokens < self.max_length:
            yield (
                f"batch_tokens: a bucket of {self.batch_tokens} tokens has no room for a sentence of max_length "
                f"{self.max_length}; use at least {self.max_length}, or a smaller max_length"
            )
