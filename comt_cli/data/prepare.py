"""From a corpus to token shards, once: the tokenizer, and the writing that survives being killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from comt_cli.data.corpora import corpus_for
from comt_cli.data.corpus import Corpus, train_texts
from comt_cli.data.dataset import Dataset, check_rows, open_dataset
from comt_cli.data.identity import FORMAT, corpus_fingerprint, prepared_folder, vocabulary_identity
from comt_cli.data.manifest import MANIFEST, TOKENIZER, FileRecord, Manifest
from comt_cli.data.sentencepiece_tokenizer import train_sentencepiece
from comt_cli.data.settings import DataSettings, TextSettings
from comt_cli.data.shards import PART_BYTES, PartWriter, Unsigned, remove_leftovers, token_dtype
from comt_cli.data.storage import ProgressCallback, file_lock, make_folder, no_progress, refuse_changed
from comt_cli.data.t5 import t5_tokenizer
from comt_cli.data.tokenise import tokenise
from comt_cli.data.tokenizer import ByteTokenizer, Tokenizer
from comt_cli.data.tokenizers import load_tokenizer
from comt_cli.errors import StorageError
from comt_cli.files import cache_folder, canonical_json, sha256


def prepare(data: DataSettings, progress: ProgressCallback | None = None) -> Dataset:
    """The rows that `data` describes, made now unless they were made before.

    Shards are written one by one under the cache folder and the manifest last. A preparation that was killed resumes
    after its last whole shard; of two at once, one works and the other waits and uses the result.

    Raises:
        UserError: the corpus, the tokenizer or the network is not as needed, or prepared files are damaged.
        StorageError: the disk is full or refuses; what was written before is kept.
    """
    return prepare_corpus(data, corpus_for(data), progress)


def prepare_corpus(
    data: DataSettings, corpus: Corpus, progress: ProgressCallback | None = None, part_bytes: int = PART_BYTES
) -> Dataset:
    """`prepare` for a corpus that is given, in shards of at most `part_bytes`."""
    report = progress or no_progress
    name = corpus_fingerprint(data, corpus, report)
    folder = prepared_folder(name)
    if not (folder / MANIFEST).exists():
        with file_lock(folder.with_name(f"{name}.lock"), report):
            if not (folder / MANIFEST).exists():  # another process may have made it while we waited
                _write(data, corpus, name, report, part_bytes)
    return open_dataset(data, folder, name, report)


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
                own = data.corpus.startswith("files:")
                train_sentencepiece(texts, data.vocabulary_size, data.extras, own=own).save(path)
    return load_tokenizer(path)


def _write(data: DataSettings, corpus: Corpus, name: str, progress: ProgressCallback, part_bytes: int) -> None:
    folder = prepared_folder(name)
    make_folder(folder)
    tokenizer_path = folder / TOKENIZER
    if not tokenizer_path.exists():
        tokenizer_for(data, corpus, progress).save(tokenizer_path)
    tokenizer = load_tokenizer(tokenizer_path)
    dtype = token_dtype(tokenizer.vocabulary_size)
    writer = PartWriter(folder, dtype, part_bytes)
    _check_room(data, corpus, folder, writer, dtype)
    tokenise(data, corpus, tokenizer, writer, progress)
    refuse_changed(folder, data.corpus, name, corpus_fingerprint(data, corpus, progress))
    check_rows(data, writer.parts, corpus, tokenizer)
    Manifest(
        format=FORMAT,
        fingerprint=name,
        settings=data.model_dump(mode="json"),
        corpus=corpus.identity(),
        versions=Manifest.made_with("numpy", "sentencepiece"),
        dtype=dtype.str,
        vocabulary_size=tokenizer.vocabulary_size,
        tokenizer=FileRecord.of(tokenizer_path),
        parts=tuple(writer.parts),
    ).write(folder)
    remove_leftovers(folder, writer.parts)


def _check_room(
    data: DataSettings, corpus: Corpus, folder: Path, writer: PartWriter, dtype: np.dtype[Unsigned]
) -> None:
    """Say before hours of streaming that the disk cannot hold what is asked for."""
    if not corpus.endless or data.max_train_tokens is None:
        return
    needed = (data.max_train_tokens - writer.tokens("train")) * dtype.itemsize
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"{data.max_train_tokens:,} tokens need {needed / 1e9:.1f} GB; {folder} has {free / 1e9:.1f} GB left",
            "Make room, lower max_train_tokens, or choose another cache folder: export COMT_CACHE=/some/folder",
        )
