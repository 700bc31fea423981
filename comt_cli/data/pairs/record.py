"""What a prepared folder of pairs holds: the names of its files, and the record that is written last."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeInt

from comt_cli.data.prepared import FileRecord, Manifest, Record
from comt_cli.files import sha256

PAIR_FORMAT = 1
"""Raise it when the same settings may give other pairs, tokens or files than before
(tests/contract/test_cache_versions.py asks for it)."""
PACKING = 1
"""Raise it when the same pairs may be packed into other buckets, or in another order: runs get other ids then."""

TEXTS = "texts.json"
Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
NAMED = 5
"""So many of the pairs that are left out are named."""


def token_file(side: Side) -> str:
    """The file of a side's training tokens."""
    return f"train.{side}.tokens"


def offset_file(side: Side) -> str:
    """The file that says where each of a side's training texts begins in the tokens, and where the last one ends."""
    return f"train.{side}.offsets"


class LeftOut(Record):
    """Training pairs that are not trained on: those longer than `max_length`, and those with an empty side.

    `named` are the first few: the number of the pair, counted from 1 like the lines of a file, and why.
    """

    too_long: NonNegativeInt = 0
    empty: NonNegativeInt = 0
    named: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A sentence for people; empty where nothing was left out."""
        counts = ((self.too_long, "too long (max_length)"), (self.empty, "without a text on one side"))
        parts = [f"{count:,} {reason}" for count, reason in counts if count]
        return f"training pairs left out: {', '.join(parts)}; first {', '.join(self.named)}" if parts else ""

    def with_one(self, reason: Literal["too_long", "empty"], name: str) -> LeftOut:
        """The same with one pair more."""
        named = (*self.named, name) if len(self.named) < NAMED else self.named
        return self.model_copy(update={reason: getattr(self, reason) + 1, "named": named})


class PairManifest(Manifest):
    """Everything about a folder of prepared pairs."""

    format: int
    settings: dict[str, Any]
    corpus: list[Any]
    versions: dict[str, str]
    dtype: str
    vocabulary_size: int
    pairs: NonNegativeInt
    left_out: LeftOut
    files: tuple[FileRecord, ...]

    def content_hash(self) -> str:
        """16 hexadecimal digits over tokens, texts and tokenizer, and how they are packed."""
        content = super().content_hash()
        return content if PACKING == 1 else sha256(f"{PACKING} {content}")[:16]  # the first runs' ids are without it
