"""The vocabulary of text: what decides it, and the tokenizer itself, which all data of one vocabulary share."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from comt_cli.data.sentencepiece_tokenizer import (
    LONG_LINES_CUT,
    TRAINER,
    TRAINING_CHARACTERS,
    VOCABULARY_VERSION,
    train_sentencepiece,
)
from comt_cli.data.storage import ProgressCallback, file_lock, no_progress
from comt_cli.data.text.corpus import Corpus, train_texts
from comt_cli.data.text.settings import TextSettings
from comt_cli.data.text.t5 import T5_SHA256, t5_tokenizer
from comt_cli.data.tokenizer import ByteTokenizer, Tokenizer
from comt_cli.data.tokenizers import load_tokenizer
from comt_cli.files import cache_folder, canonical_json, sha256

FORMAT = 4
"""Raise it when the same settings may give other tokens, rows or files than before
(tests/contract/test_cache_versions.py asks for it)."""


def vocabulary_identity(data: TextSettings, corpus: Corpus, progress: ProgressCallback = no_progress) -> list[Any]:
    """What decides the tokenizer and the text that it is trained on."""
    return [corpus.identity(progress), data.validation_fraction, tokenizer_identity(data)]


def tokenizer_identity(data: TextSettings) -> list[Any]:
    """What decides the tokenizer, besides the corpus that a SentencePiece vocabulary is trained on."""
    if data.tokenizer == "sentencepiece":
        made_by = [VOCABULARY_VERSION, metadata.version("sentencepiece")]
        own = [LONG_LINES_CUT] if Corpus.named(data.corpus).is_own_text else []
        return ["sentencepiece", data.vocabulary_size, TRAINER, TRAINING_CHARACTERS, *made_by, *own, *data.extras]
    return ["t5", T5_SHA256] if data.tokenizer == "t5" else ["bytes", *data.extras]


def tokenizer_for(data: TextSettings, corpus: Corpus, progress: ProgressCallback) -> Tokenizer:
    """The tokenizer of `data`; a trained one is kept in the cache, since layouts and limits of the same text share it.

    Raises:
        UserError: the corpus that it is trained on cannot be read.
        StorageError: the disk refuses.
    """
    if data.tokenizer == "bytes":
        return ByteTokenizer(data.extras)
    if data.tokenizer == "t5":
        return t5_tokenizer(progress)
    key = canonical_json([FORMAT, *vocabulary_identity(data, corpus, progress)])
    path = cache_folder() / "tokenizers" / f"{sha256(key)[:16]}.json"
    if not path.exists():
        with file_lock(path.with_suffix(".lock"), progress):
            if not path.exists():
                progress("training the tokenizer", 0, None)
                texts = train_texts(corpus, data.validation_fraction)
                own = Corpus.named(data.corpus).is_own_text
                train_sentencepiece(texts, data.vocabulary_size, data.extras, own=own).save(path)
    return load_tokenizer(path)
