"""Special tokens: their ids in a tokenizer, and the optional ones beyond padding and end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass
from typing import Literal

PAD = 0
"""The id of padding in every tokenizer that data is prepared with, and so in every model; no text holds it."""

Extra = Literal["begin", "mask", "separator"]
"""A special token that a tokenizer has only where it was made with it."""

EXTRA_PIECES: dict[Extra, str] = {"begin": "<s>", "mask": "<mask>", "separator": "<sep>"}
"""What each is called in a vocabulary, in the order of their ids."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of a tokenizer's special tokens; None where it has none. No text is encoded to one, but to `unknown`, a piece
    of text outside the vocabulary. `pad` fills what is shorter than its batch, `end` closes a text, `begin` is what a
    decoder reads before the first token (and what a classifier reads in BERT), `mask` stands for a hidden token,
    `separator` lies between two texts."""

    pad: int
    end: int
    begin: int | None = None
    mask: int | None = None
    separator: int | None = None
    unknown: int | None = None

    @property
    def ids(self) -> frozenset[int]:
        """All of them: what is never masked, and no word."""
        return frozenset(i for i in astuple(self) if i is not None)

    def need(self, extra: Extra) -> int:
        """The id of one that must be there. Raises `ValueError` where the tokenizer was made without it."""
        found: int | None = getattr(self, extra)
        if found is None:
            raise ValueError(f"the tokenizer has no {extra} token: it was made without one")
        return found


def in_order(extras: Collection[str]) -> tuple[Extra, ...]:
    """The extras in the order of their ids, so that equal sets make equal vocabularies. Raises `ValueError` where one
    is unknown."""
    if unknown := sorted(set(extras) - EXTRA_PIECES.keys()):
        raise ValueError(f"there is no special token {unknown[0]!r}, but {', '.join(EXTRA_PIECES)}")
    return tuple(extra for extra in EXTRA_PIECES if extra in extras)
