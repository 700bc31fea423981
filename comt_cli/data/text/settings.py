"""The settings of text: the corpus, the tokenizer, and how tokens are laid out in sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from comt_cli.data.settings import DataSection
from comt_cli.data.special_tokens import Extra
from comt_cli.data.text.corpus import Corpus
from comt_cli.recipe.settings import MAX_LENGTH, Tokens, Vocabulary, WholeNumber, matching

FIXED_VOCABULARY = {"t5": 32000, "bytes": 258}
"""Vocabulary of the tokenizers that are not trained. T5's sentinels (32000 to 32099) are left out, as in the papers'
scripts: text never produces them. Bytes: padding, end of text, then the 256 byte values."""

CorpusName = Annotated[str, matching(*Corpus.all_patterns(), Corpus.all_names())]


class TextSettings(DataSection):
    """The corpus, and how it is cut into tokens."""

    kind = Corpus
    later: ClassVar[frozenset[str]] = frozenset({"folder"})

    extras: ClassVar[tuple[Extra, ...]] = ()
    """Special tokens of the vocabulary beside padding, end and unknown."""

    corpus: CorpusName = "python-docs"
    tokenizer: Literal["sentencepiece", "t5", "bytes"] = "sentencepiece"
    vocabulary: Vocabulary | None = None
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_train_tokens: Tokens | None = None
    folder: str | None = None

    @classmethod
    def said_once(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The settings without the size of a vocabulary that has but one."""
        is_implied = given.get("vocabulary") == cls._fixed(str(given.get("tokenizer")))
        return given | {"vocabulary": None} if is_implied else given

    def contradictions(self) -> Iterator[str]:
        if self.tokenizer == "sentencepiece" and self.vocabulary is None:
            yield "vocabulary: a SentencePiece tokenizer is trained to a size; say which, for instance 2048"
        fixed = self._fixed(self.tokenizer)
        if fixed is not None and self.vocabulary not in (None, fixed):
            yield f"vocabulary: the tokenizer {self.tokenizer} has {fixed} tokens; leave the key out"
        yield from super().contradictions()

    @classmethod
    def _fixed(cls, tokenizer: str) -> int | None:
        """The size of a vocabulary that is not trained; None of one that is."""
        size = FIXED_VOCABULARY.get(tokenizer)
        return size if size is None else size + len(cls.extras)

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are, special ones included: the model's embedding rows."""
        size = self._fixed(self.tokenizer) or self.vocabulary
        assert size is not None  # the validator above saw to it
        return size


class DataSettings(TextSettings):
    """What the model reads: the corpus, how it is cut into tokens, and how the tokens are laid out in rows."""

    rows: Literal["pad", "pack"] = "pack"
    sequence_length: Annotated[WholeNumber, Field(ge=2, le=MAX_LENGTH)] = 256

    @property
    def text(self) -> Self:
        """What is prepared of it: all."""
        return self


class MaskedData(DataSettings):
    """The same for a model that predicts hidden tokens: each sequence begins with the begin token, and `mask_share` of
    its other tokens are predicted."""

    extras: ClassVar[tuple[Extra, ...]] = ("begin", "mask", "separator")

    tokenizer: Literal["sentencepiece", "bytes"] = "sentencepiece"
    sequence_length: Annotated[WholeNumber, Field(ge=3, le=MAX_LENGTH)] = 128
    mask_share: Annotated[float, Field(gt=0, lt=1)] = 0.15

    @property
    def text(self) -> Self:
        """The text behind the begin tokens."""
        return self.model_copy(update={"sequence_length": self.sequence_length - 1})

    @property
    def masked(self) -> int:
        """The most tokens of a sequence that are predicted."""
        return predicted(self.sequence_length - 1, self.mask_share)


def predicted(words: int, share: float) -> int:
    """How many of so many tokens are predicted: the nearest whole number to the share, at least 1."""
    return max(1, math.floor(words * share + 0.5))
