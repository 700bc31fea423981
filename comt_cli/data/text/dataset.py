"""Text as token shards: written in one pass over a corpus, resumed after a kill, opened as rows.

A part has up to four files, `train-00000.tokens` (ids, uint16 or uint32), `train-00000.offsets` (uint32, the start of
each document within the shard, and the end) and the same for validation; then its record, `part-00000.json`. The record
is written last: a part without one was interrupted and is written again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.prepare import TOKENIZER, FileRecord, Manifest, PreparedTokens, verify
from comt_cli.data.published import t5_tokenizer, tokenizer_of
from comt_cli.data.split import Unsigned, token_dtype
from comt_cli.data.storage import ProgressCallback, file_lock
from comt_cli.data.text.corpora.token_files import TokenFiles
from comt_cli.data.text.rows import MaskedRows, PackedRows, PaddedRows, Rows
from comt_cli.data.text.settings import (
    FORMAT,
    REVISION,
    SPLITS,
    Corpus,
    DataSettings,
    Document,
    Kind,
    MaskedData,
    Part,
    Place,
    SplitName,
    SplitPart,
    Stream,
    TextManifest,
    TextSettings,
    vocabulary_identity,
)
from comt_cli.data.text.splits import source_of, split_in, streams_of, train_texts
from comt_cli.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer, train_sentencepiece
from comt_cli.data.tokenizer_files import file_tokenizer, fitting, hub_commit
from comt_cli.errors import UserError
from comt_cli.files import Unreadable, atomic_file, cache_folder, canonical_json, read_json, sha256, write_json

OFFSET_DTYPE = np.dtype("<u4")
_CHUNK_DOCUMENTS = 512
_CHUNK_CHARACTERS = 4_000_000


class Dataset(PreparedTokens[Rows]):
    """Memory-mapped token shards. Rows are read when they are used. `facts` are entries of the result of a run on this
    data: the revision on the hub, and whether splits share documents."""

    def __init__(self, data: DataSettings, folder: Path, manifest: TextManifest, corpus: Corpus) -> None:
        super().__init__(folder, manifest)
        self._data, self._manifest, self._corpus = data, manifest, corpus
        entries = {"data_revision": manifest.corpus.get(REVISION), "data_note": manifest.note}
        self.facts = {name: entry for name, entry in entries.items() if entry is not None}

    def split(self, name: SplitName) -> Rows:
        held = [part.of(name) for part in self._manifest.parts]
        files, text_bytes = [file.name for part in held for file in part.files], sum(part.bytes for part in held)
        tokens, offsets = (
            [np.memmap(self.folder / file, dtype=dtype, mode="r") for file in files if file.endswith(ending)]
            for ending, dtype in ((".tokens", np.dtype(self._manifest.dtype)), (".offsets", OFFSET_DTYPE))
        )
        if self._data.rows == "pack":
            documents = sum(part.documents for part in held)
            shards = self._corpus.arrays(name) if isinstance(self._corpus, TokenFiles) else tokens
            return PackedRows(shards, self._data.sequence_length, documents, text_bytes)
        return PaddedRows(tokens, offsets, self._data.sequence_length, text_bytes)


class MaskedDataset:
    """A prepared `text` with masked splits."""

    def __init__(self, data: MaskedData, text: Dataset) -> None:
        self.text, self.tokenizer = text, text.tokenizer
        self.content_hash, self.vocabulary_size, self.facts = text.content_hash, text.vocabulary_size, text.facts
        self.train, self.validation = (
            MaskedRows(rows, self.tokenizer.special, self.vocabulary_size, data.mask_share)
            for rows in (text.train, text.validation)
        )


def write(kind: Kind, folder: Path, name: str, progress: ProgressCallback) -> Manifest:
    """Tokenise the corpus into shards, after those that exist."""
    data, corpus = kind.data, kind.corpus
    source = source_of(corpus, data.validation_fraction)
    _keep_only(source, folder)
    if not (folder / TOKENIZER).exists():
        tokenizer_for(data, corpus, progress).save(folder / TOKENIZER)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    dtype = token_dtype(tokenizer.vocabulary_size)
    if isinstance(corpus, TokenFiles):
        parts = [corpus.record(folder, tokenizer, progress)]
    else:
        writer = PartWriter(folder, dtype, kind.part_bytes)
        _tokenise(data, corpus, tokenizer, writer, progress)
        parts = writer.parts
    _check_rows(data, parts)
    own = {"format": FORMAT, "corpus": corpus.identity() | source, "dtype": dtype.str}
    own |= {"vocabulary_size": tokenizer.vocabulary_size, "tokenizer": FileRecord.of(folder / TOKENIZER)}
    manifest = kind.record(name, folder, (), **own, parts=tuple(parts))
    return manifest.model_copy(update={"versions": manifest.versions | hub_commit(data.tokenizer)})


def _keep_only(source: dict[str, Any], folder: Path) -> None:
    """Delete the files of a killed preparation from another source (`source_of`)."""
    path = folder / "source.json"
    with contextlib.suppress(OSError, Unreadable):
        if (read_json(path) if path.exists() else {}) == source:
            return
    for other in folder.iterdir():
        other.unlink()
    write_json(path, source)


def opened(kind: Kind, folder: Path, manifest: TextManifest) -> Dataset | MaskedDataset:
    """Open the rows."""
    text = Dataset(kind.data, folder, manifest, kind.corpus)
    return MaskedDataset(kind.asked, text) if isinstance(kind.asked, MaskedData) else text


def tokenizer_for(data: TextSettings, corpus: Corpus, progress: ProgressCallback) -> Tokenizer:
    """The tokenizer of `data`; trained ones are cached. Raises `UserError` if its corpus or its file cannot be read, or
    it has more tokens than `data.vocabulary`."""
    if data.tokenizer == "bytes":
        return ByteTokenizer(data.extras)
    if data.tokenizer == "t5":
        progress("fetching the T5 vocabulary", 0, None)
        return t5_tokenizer()
    if data.weights is not None:
        return fitting(tokenizer_of(data.weights), data.weights, data.vocabulary_size)
    if data.tokenizer_file is not None:
        return file_tokenizer(data.tokenizer_file, data.vocabulary_size)
    source = source_of(corpus, data.validation_fraction)
    key = canonical_json([FORMAT, *vocabulary_identity(data, corpus, progress), *([source] if source else [])])
    path = cache_folder() / "tokenizers" / f"{sha256(key)[:16]}.json"
    if not path.exists():
        with file_lock(path.with_suffix(".lock"), progress):
            if not path.exists():
                progress("training the tokenizer", 0, None)
                texts = train_texts(corpus, data.validation_fraction)
                own = Corpus.named(data.corpus).is_own_text
                train_sentencepiece(texts, data.vocabulary_size, data.extras, own=own).save(path)
    return load_tokenizer(path)


# ---- shards


class PartWriter:
    """Collects documents and writes them to `folder` part by part, after the existing parts. `tokens` counts the tokens
    of each split. A shard has at most `part_bytes`, unless a single document is larger."""

    def __init__(self, folder: Path, dtype: np.dtype[Unsigned], part_bytes: int) -> None:
        self._folder, self._dtype, self._limit = folder, dtype, part_bytes // dtype.itemsize
        self.parts = _whole_parts(folder)
        self.after = self.parts[-1].after if self.parts else (0, 0, 0)
        self.tokens = {split: sum(part.of(split).tokens for part in self.parts) for split in SPLITS}
        self._documents: dict[SplitName, list[NDArray[Unsigned]]] = {split: [] for split in SPLITS}
        self._held, self._bytes = Counter[SplitName](), Counter[SplitName]()

    def add(self, split: SplitName, ids: Sequence[int], text_bytes: int, place: tuple[int, int, int]) -> None:
        """Add one document, at `place` in the corpus; write a part first if it would not fit."""
        if self._held[split] and self._held[split] + len(ids) > self._limit:
            self.flush(place)
        self._documents[split].append(np.asarray(ids, dtype=self._dtype))
        self._held[split] += len(ids)
        self._bytes[split] += text_bytes
        self.tokens[split] += len(ids)

    def flush(self, after: tuple[int, int, int]) -> None:
        """Write the documents in memory as one part; `after` is the position of the next document."""
        if any(self._documents.values()):
            number = len(self.parts)
            train, validation = (self._write_split(split, number) for split in SPLITS)
            self.parts.append(Part(number=number, after=after, train=train, validation=validation))
            write_json(self._folder / f"part-{number:05d}.json", self.parts[-1].model_dump(mode="json"))

    def _write_split(self, split: SplitName, number: int) -> SplitPart:
        documents, files = self._documents[split], list[FileRecord]()
        self._documents[split] = []
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64).astype(OFFSET_DTYPE)
        for kind, values in (("tokens", np.concatenate(documents)), ("offsets", offsets)) if documents else ():
            path = self._folder / f"{split}-{number:05d}.{kind}"
            with atomic_file(path) as handle:
                handle.write(values.tobytes())
            files.append(FileRecord.of(path))
        tokens, text_bytes = self._held.pop(split, 0), self._bytes.pop(split, 0)
        return SplitPart(tokens=tokens, documents=len(documents), bytes=text_bytes, files=tuple(files))


def _whole_parts(folder: Path) -> list[Part]:
    """The parts of an earlier preparation, up to the first with a wrong hash."""
    parts: list[Part] = []
    while True:
        try:
            part = Part.model_validate(read_json(folder / f"part-{len(parts):05d}.json"))
            verify(folder, part.files())
        except (OSError, ValueError, UserError):  # pydantic's errors are ValueErrors
            return parts
        parts.append(part)


def _tokenise(
    data: DataSettings, corpus: Corpus, tokenizer: Tokenizer, writer: PartWriter, progress: ProgressCallback
) -> None:
    limits = {"train": data.max_train_tokens, "validation": corpus.validation_tokens}

    def room(split: SplitName) -> int | None:
        """The tokens that still fit in the split; None: any number."""
        most = limits[split]
        return None if most is None else max(0, most - writer.tokens[split])

    def is_finished(stream: Stream) -> bool:
        """Whether all requested tokens have been read; for an endless corpus those of training decide."""
        if stream.split is not None:
            return room(stream.split) == 0
        return room("train") == 0 and (corpus.endless or room("validation") == 0)

    streams = streams_of(corpus, data.validation_fraction)
    first, *place = writer.after
    for number, stream in enumerate(streams[first:], first):
        start: Place = (place[0], place[1]) if number == first else (0, 0)
        chunks = _chunks(stream.documents(start))
        while not is_finished(stream) and (chunk := next(chunks, None)):
            splits = [split_in(stream, document, data.validation_fraction) for document in chunk]
            wanted = [(split, document) for split, document in zip(splits, chunk, strict=True) if room(split) != 0]
            encoded = tokenizer.encode_batch([document.text for _, document in wanted])
            for (split, document), ids in zip(wanted, encoded, strict=True):
                if is_finished(stream):  # or the end of the chunk would decide, which is another after a kill
                    break
                # With `rows: pad` a row keeps its first tokens and the end token, as after the papers' truncation: it
                # always ends with that token. The last document before a limit is cut to fit.
                kept = ids[: data.sequence_length - 1] if data.rows == "pad" else ids
                kept = [*kept, tokenizer.special.end][: room(split)]
                if kept:  # else earlier documents of this chunk have filled the split
                    text = document.text if len(kept) > len(ids) else tokenizer.decode(kept)
                    writer.add(split, kept, len(text.encode()), (number, *document.place))
            shown = stream.split or "train"
            progress("tokenising (tokens)", writer.tokens[shown], limits[shown])
    writer.flush((len(streams), 0, 0))


def _chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Documents in groups that use all cores and limited memory. Their size does not change the result."""
    for first in documents:
        chunk, characters = [first], len(first.text)
        while len(chunk) < _CHUNK_DOCUMENTS and characters < _CHUNK_CHARACTERS and (more := next(documents, None)):
            chunk.append(more)
            characters += len(more.text)
        yield chunk


def _check_rows(data: DataSettings, parts: Sequence[Part]) -> None:
    for split in SPLITS:
        tokens = sum(part.of(split).tokens for part in parts)
        if tokens < (data.sequence_length if data.rows == "pack" else 1):
            said = f"the {split} split of {data.corpus} has {tokens} tokens, less than a row of {data.sequence_length}"
            hint = "Use more (or more, smaller) documents, another validation_fraction, or a shorter sequence_length."
            raise UserError(f"{'sequence_length' if tokens else 'corpus'}: {said}", hint)
