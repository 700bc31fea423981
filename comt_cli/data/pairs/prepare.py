"""From a corpus of pairs to buckets of tokens, once; and what identifies them. Importing it imports no NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from comt_cli.data.manifest import MANIFEST, TOKENIZER, FileRecord
from comt_cli.data.pairs.corpora import corpus_for
from comt_cli.data.pairs.corpus import PairCorpus, PairTexts, TextPair
from comt_cli.data.pairs.record import (
    PAIR_FORMAT,
    SIDES,
    TEXTS,
    PairManifest,
    offset_file,
    pair_folder,
    token_file,
)
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.sentencepiece_tokenizer import TRAINER, TRAINING_CHARACTERS, VOCABULARY_VERSION, train_sentencepiece
from comt_cli.data.special_tokens import Extra
from comt_cli.data.storage import ProgressCallback, file_lock, make_folder, no_progress, refuse_changed
from comt_cli.data.tokenizer import ByteTokenizer, Tokenizer
from comt_cli.data.tokenizers import load_tokenizer
from comt_cli.errors import UserError
from comt_cli.files import canonical_json, sha256, write_json

if TYPE_CHECKING:
    from comt_cli.data.pairs.dataset import PairDataset
    from comt_cli.data.pairs.writing import PairWriter

_CHUNK_PAIRS = 1 << 10
_BLOCK_PAIRS = 1 << 16  # of a block of `writing`: what a kill loses


def fingerprint(data: PairData, progress: ProgressCallback | None = None) -> str:
    """16 hexadecimal digits that identify the pairs, tokens and buckets that `data` describes.

    Needs no network: of local files and catalogues the content is hashed, of the hub it is what is asked for.

    Raises:
        UserError: the corpus cannot be read.
    """
    return _fingerprint(data, corpus_for(data), progress or no_progress)


def known_content(fingerprint: str) -> str | None:
    """The content hash of what is prepared in the cache under this fingerprint; None where nothing is, or what is there
    cannot be read (`prepare` says why)."""
    try:
        return PairManifest.read(pair_folder(fingerprint), fingerprint).content_hash()
    except UserError:
        return None


def prepare(data: PairData, progress: ProgressCallback | None = None) -> PairDataset:
    """The pairs that `data` describes, made now unless they were made before.

    The manifest is written last. A preparation that was killed resumes after its last whole block; of two at once, one
    works and the other waits and uses the result.

    Raises:
        UserError: the corpus, the vocabulary or the network is not as needed, or prepared files are damaged.
        StorageError: the disk is full or refuses; what was written before is kept.
    """
    return prepare_corpus(data, corpus_for(data), progress)


def prepare_corpus(data: PairData, corpus: PairCorpus, progress: ProgressCallback | None = None) -> PairDataset:
    """`prepare` for a corpus that is given."""
    from comt_cli.data.pairs.dataset import open_pairs

    report = progress or no_progress
    name = _fingerprint(data, corpus, report)
    folder = pair_folder(name)
    if not (folder / MANIFEST).exists():
        with file_lock(folder.with_name(f"{name}.lock"), report):
            if not (folder / MANIFEST).exists():  # another process may have made it while we waited
                _write(data, corpus, name, report)
    return open_pairs(data, folder, name, report)


def _fingerprint(data: PairData, corpus: PairCorpus, progress: ProgressCallback) -> str:
    content = {
        "format": PAIR_FORMAT,
        "corpus": corpus.identity(progress),
        "languages": [data.source, data.target],
        "tokenizer": _tokenizer_identity(data),
        "max_length": data.max_length,
        "batch_tokens": data.batch_tokens,
    }
    return sha256(canonical_json(content))[:16]


def _tokenizer_identity(data: PairData) -> list[Any]:
    """What decides the tokenizer, besides the training texts."""
    if data.tokenizer == "bytes":
        return ["bytes"]
    made_by = [VOCABULARY_VERSION, metadata.version("sentencepiece")]
    return ["sentencepiece", data.vocabulary_size, TRAINER, TRAINING_CHARACTERS, *made_by, "begin"]


def _write(data: PairData, corpus: PairCorpus, name: str, progress: ProgressCallback) -> None:
    from comt_cli.data.pairs.dataset import texts_as_json
    from comt_cli.data.pairs.writing import PairWriter
    from comt_cli.data.shards import token_dtype

    folder = pair_folder(name)
    make_folder(folder)
    for leftover in folder.glob(".*.tmp"):  # of a preparation that was killed; we hold the lock
        leftover.unlink(missing_ok=True)
    if not (folder / TEXTS).exists():
        texts = corpus.decoded(progress)
        _check_texts(data, texts)
        write_json(folder / TEXTS, texts_as_json(texts))
    if not (folder / TOKENIZER).exists():
        progress("training the tokenizer", 0, None)
        _make_tokenizer(data, corpus).save(folder / TOKENIZER)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    dtype = token_dtype(tokenizer.vocabulary_size)
    writer = PairWriter(folder, dtype)
    _tokenise(data, corpus, tokenizer, writer, progress)
    if writer.pairs == 0:
        raise UserError(
            f"corpus: there is no pair to train on in {data.corpus}",
            str(writer.left_out) or "Use more pairs, or smaller shares for validation and test.",
        )
    refuse_changed(folder, data.corpus, name, _fingerprint(data, corpus, progress))
    names = (TOKENIZER, TEXTS, *(file(side) for side in SIDES for file in (token_file, offset_file)))
    PairManifest(
        format=PAIR_FORMAT,
        fingerprint=name,
        settings=data.model_dump(mode="json", exclude={"folder"}),
        corpus=corpus.identity(),
        versions=PairManifest.made_with("numpy", "sentencepiece"),
        dtype=dtype.str,
        vocabulary_size=tokenizer.vocabulary_size,
        pairs=writer.pairs,
        left_out=writer.left_out,
        files=tuple(FileRecord.of(folder / file) for file in names),
    ).write(folder)
    writer.finish()


def _check_texts(data: PairData, texts: Mapping[str, PairTexts]) -> None:
    for split, each in texts.items():
        if not len(each):
            raise UserError(
                f"corpus: no pair of {data.corpus} is in the {split} split",
                f"Use more pairs, a larger {split}_fraction, or other {split}_files.",
            )


def _make_tokenizer(data: PairData, corpus: PairCorpus) -> Tokenizer:
    extras: tuple[Extra, ...] = ("begin",)
    if data.tokenizer == "bytes":
        return ByteTokenizer(extras)
    assert data.vocabulary_size is not None  # the settings see to it
    texts, own = corpus.vocabulary_texts(), data.corpus.startswith("pairs:")
    return train_sentencepiece(texts, data.vocabulary_size, extras, key="vocabulary_size", own=own)


def _tokenise(
    data: PairData, corpus: PairCorpus, tokenizer: Tokenizer, writer: PairWriter, progress: ProgressCallback
) -> None:
    """Write the training pairs to `writer`, from where its files end."""
    block, waiting = writer.after, 0
    for chunk in _chunks(corpus.train(writer.after)):
        encoded = [tokenizer.encode_batch([getattr(pair, side) for pair in chunk]) for side in ("source", "target")]
        for pair, source, target in zip(chunk, *encoded, strict=True):
            length = 1 + max(len(source), len(target))  # with the token that closes it
            name = f"pair {pair.place[1] + 1}" + (f" of file {pair.place[0] + 1}" if pair.place[0] else "")
            if not source or not target:
                writer.left_out = writer.left_out.with_one("empty", f"{name} (empty)")
            elif length > data.max_length:
                writer.left_out = writer.left_out.with_one("too_long", f"{name} ({length} tokens)")
            else:
                writer.add(source, target)
        waiting += len(chunk)
        file, number = chunk[-1].place
        block = (file, number + 1)
        progress("tokenising pairs", writer.pairs, corpus.total)
        if waiting >= _BLOCK_PAIRS:
            writer.flush(block)
            waiting = 0
    writer.flush(block)


def _chunks(pairs: Iterable[TextPair]) -> Iterator[list[TextPair]]:
    """Pairs in groups that occupy all cores. Their size does not change the result."""
    iterator = iter(pairs)
    while chunk := list(itertools.islice(iterator, _CHUNK_PAIRS)):
        yield chunk
