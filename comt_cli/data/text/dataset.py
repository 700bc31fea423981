"""A prepared data set, opened: its tokenizer and its two splits as rows."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from comt_cli.data.prepared import TOKENIZER
from comt_cli.data.text.corpus import SPLITS, Corpus, SplitName, place_of, train_texts
from comt_cli.data.text.record import Part, TextManifest
from comt_cli.data.text.rows import PackedRows, PaddedRows, Rows
from comt_cli.data.text.settings import DataSettings
from comt_cli.data.text.shards import OFFSET_DTYPE, open_shards
from comt_cli.data.tokenizer import Tokenizer
from comt_cli.data.tokenizers import load_tokenizer
from comt_cli.errors import UserError

_MOST_HELD_OUT = 50
"""Documents that are looked at for a share of the validation split that is enough."""


class Dataset:
    """Memory-mapped token shards of one fingerprint. Opening reads next to nothing; rows are read when asked for.

    Attributes:
        fingerprint: the identity of the rows (`prepare.Kind.identity`).
        content_hash: 16 hexadecimal digits over the tokens and the tokenizer themselves. Two machines with one
            fingerprint can still differ here, when another version of SentencePiece trained the vocabulary.
        vocabulary_size: how many token ids there are.
        folder: where the shards lie.
        train, validation: the two splits.
    """

    def __init__(self, data: DataSettings, folder: Path, manifest: TextManifest) -> None:
        self.folder = folder
        self.fingerprint = manifest.fingerprint
        self.content_hash = manifest.content_hash()
        self.vocabulary_size = manifest.vocabulary_size
        self.train = _open_rows(data, folder, manifest, "train")
        self.validation = _open_rows(data, folder, manifest, "validation")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens."""
        return load_tokenizer(self.folder / TOKENIZER)


def check_rows(data: DataSettings, parts: Sequence[Part], corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Refuse a data set that has no row in a split. Raises `UserError`; where one more of the corpus's documents in the
    validation split is enough, it says with which fraction."""
    for split in SPLITS:
        documents = sum(part.of(split).documents for part in parts)
        tokens = sum(part.of(split).tokens for part in parts)
        if documents == 0:
            raise UserError(
                f"corpus: no document of {data.corpus} is in the {split} split",
                f"A document is never divided between splits. {_instead(data, split, corpus, tokenizer)}",
            )
        if data.rows == "pack" and tokens < data.sequence_length:
            raise UserError(
                f"sequence_length: the {split} split of {data.corpus} has {tokens} tokens, "
                f"less than one row of {data.sequence_length}",
                f"{_instead(data, split, corpus, tokenizer)} A shorter sequence_length or rows: pad is enough, too.",
            )


def _instead(data: DataSettings, split: SplitName, corpus: Corpus, tokenizer: Tokenizer) -> str:
    """What to write where a split has too little: of the validation split, the smallest share that is enough."""
    needed, held = data.sequence_length if data.rows == "pack" else 1, 0
    texts = (document.text for stream in corpus.streams() for document in stream.documents())
    divided = split == "validation" and data.validation_fraction is not None and not corpus.endless
    for text in heapq.nsmallest(_MOST_HELD_OUT, texts, key=place_of) if divided else ():
        held += len(tokenizer.encode(text)) + 1
        if held >= needed:
            share = math.floor(1000 * place_of(text) + 1) / 1000
            rest = (len(tokenizer.encode(other)) + 1 for other in train_texts(corpus, share))
            if not any(left >= needed for left in accumulate(rest)):
                break
            said = f"--set data.validation_fraction={share:.3f}, which a recipe says below settings: data"
            return f"Enough is held out by {said}; or use more documents."
    return "Use more (or more, smaller) documents, or another validation_fraction."


def _open_rows(data: DataSettings, folder: Path, manifest: TextManifest, split: SplitName) -> Rows:
    held = [part.of(split) for part in manifest.parts]
    documents, text_bytes = sum(part.documents for part in held), sum(part.bytes for part in held)
    shards = open_shards(folder, manifest.parts, split, "tokens", manifest.dtype)
    if data.rows == "pack":
        return PackedRows(shards, data.sequence_length, documents, text_bytes)
    offsets = open_shards(folder, manifest.parts, split, "offsets", OFFSET_DTYPE.str)
    return PaddedRows(shards, offsets, data.sequence_length, text_bytes)
