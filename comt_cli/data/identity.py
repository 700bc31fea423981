"""Which rows settings mean, and whether they are prepared: found without NumPy, which takes as long to import as
everything else that a plan needs."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from comt_cli.data.corpora import corpus_for
from comt_cli.data.corpus import Corpus
from comt_cli.data.manifest import Manifest
from comt_cli.data.sentencepiece_tokenizer import LONG_LINES_CUT, TRAINER, TRAINING_CHARACTERS, VOCABULARY_VERSION
from comt_cli.data.settings import DataSettings, TextSettings
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.t5 import T5_SHA256
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, canonical_json, sha256

FORMAT = 4
"""Raise it when the same settings may give other tokens, rows or files than before
(tests/contract/test_cache_versions.py asks for it)."""


def fingerprint(data: DataSettings, progress: ProgressCallback | None = None) -> str:
    """16 hexadecimal digits that identify the rows that `data` describes; needs no network and no tokenising.

    Equal fingerprints mean equal corpus, tokenizer, split, limits and layout of rows. For `python-docs`,
    `python-source` and `files:GLOB` the text itself is hashed (of the first two after extracting it once, a few
    seconds); for the corpora of the hub it is what is asked of the hub.

    Raises:
        UserError: the corpus cannot be read (no file matches, for instance).
    """
    return corpus_fingerprint(data, corpus_for(data), progress or no_progress)


def known_content(name: str) -> str | None:
    """The content hash of what is prepared in the cache of the rows with this fingerprint; None where nothing is, or
    what is there cannot be read (`prepare` says why)."""
    try:
        return Manifest.read(prepared_folder(name), name).content_hash()
    except UserError:
        return None


def prepared_folder(name: str) -> Path:
    """Where what has this fingerprint is prepared."""
    return cache_folder() / "corpora" / name


def corpus_fingerprint(data: DataSettings, corpus: Corpus, progress: ProgressCallback = no_progress) -> str:
    """`fingerprint` for a corpus that is given."""
    identity = corpus.identity(progress)
    content = {
        "format": FORMAT,
        "corpus": identity,
        "tokenizer": tokenizer_identity(data),
        "rows": data.rows,
        "sequence_length": data.sequence_length,
        "max_train_tokens": data.max_train_tokens,
        "validation_fraction": data.validation_fraction,
    }
    return sha256(canonical_json(content))[:16]


def vocabulary_identity(data: TextSettings, corpus: Corpus, progress: ProgressCallback = no_progress) -> list[Any]:
    """What decides the tokenizer and the text that it is trained on."""
    return [corpus.identity(progress), data.validation_fraction, tokenizer_identity(data)]


def tokenizer_identity(data: TextSettings) -> list[Any]:
    """What decides the tokenizer, besides the corpus that a SentencePiece vocabulary is trained on."""
    if data.tokenizer == "sentencepiece":
        made_by = [VOCABULARY_VERSION, metadata.version("sentencepiece")]
        own = [LONG_LINES_CUT] if data.corpus.startswith("files:") else []
        return ["sentencepiece", data.vocabulary_size, TRAINER, TRAINING_CHARACTERS, *made_by, *own, *data.extras]
    return ["t5", T5_SHA256] if data.tokenizer == "t5" else ["bytes", *data.extras]
