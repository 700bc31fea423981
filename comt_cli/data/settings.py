"""The settings of text: the corpus, the tokenizer, and how tokens are laid out in sequences."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from comt_cli.data.special_tokens import Extra
from comt_cli.recipe.settings import MAX_LENGTH, Section, Tokens, Vocabulary, WholeNumber, matching

FIXED_VOCABULARY = {"t5": 32000, "bytes": 258}
"""Vocabulary of the tokenizers that are not trained. T5's sentinels (32000 to 32099) are left out, as in the papers'
scripts: text never produces them. Bytes: padding, end of text, then the 256 byte values."""

CORPUS_NAMES = ("python-docs", "python-source", "c4", "openwebtext", "wikitext-103")
SPLIT_CORPORA = ("c4", "wikitext-103")
"""Corpora whose authors divided them into training and validation."""


class TextSettings(Section):
    """The corpus, and how it is cut into tokens."""

    later: ClassVar[frozenset[str]] = frozenset({"folder"})

    extras: ClassVar[tuple[Extra, ...]] = ()
    """Special tokens of the vocabulary beside padding, end and unknown."""

    corpus: Annotated[str, matching("files:.+", "files:GLOB, text of your own", CORPUS_NAMES)] = "python-docs"
    tokenizer: Literal["sentencepiece", "t5", "bytes"] = "sentencepiece"
    vocabulary: Vocabulary | None = None
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_train_tokens: Tokens | None = None
    folder: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_say_it(cls, given: Any) -> Any:
        """A value that is implied is stored in one way, so that saying it does not make another run."""
        if not isinstance(given, dict):
            return given
        said = dict(given)
        if said.get("vocabulary") == cls._fixed(str(said.get("tokenizer"))):
            said["vocabulary"] = None
        if said.get("validation_fraction") is None and said.get("corpus") not in SPLIT_CORPORA:
            said["validation_fraction"] = 0.05
        return said

    @model_validator(mode="after")
    def _corpus_fits(self) -> Self:
        if self.tokenizer == "sentencepiece" and self.vocabulary is None:
            raise ValueError("vocabulary: a SentencePiece tokenizer is trained to a size; say which, for instance 2048")
        fixed = self._fixed(self.tokenizer)
        if fixed is not None and self.vocabulary not in (None, fixed):
            raise ValueError(f"vocabulary: the tokenizer {self.tokenizer} has {fixed} tokens; leave the key out")
        if self.corpus in SPLIT_CORPORA and self.validation_fraction is not None:
            raise ValueError(
                f"validation_fraction: {self.corpus} has a validation split of its own; leave the key out, or null"
            )
        if self.corpus in ("c4", "openwebtext") and self.max_train_tokens is None:
            raise ValueError("max_train_tokens: say how many tokens of this corpus to prepare")
        if self.folder is not None and self.corpus != "wikitext-103":
            raise ValueError("folder: this is a key of wikitext-103; leave it out of other corpora")
        return self

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
