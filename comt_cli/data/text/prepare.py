"""From a corpus to token shards, once. Importing it, and finding a fingerprint, imports no NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.data.prepared import TOKENIZER, FileRecord, Prepared, versions
from comt_cli.data.storage import ProgressCallback, check_room
from comt_cli.data.text.corpus import Corpus
from comt_cli.data.text.record import TextManifest
from comt_cli.data.text.settings import DataSettings, MaskedData
from comt_cli.data.text.vocabulary import FORMAT, tokenizer_for, tokenizer_identity
from comt_cli.data.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from comt_cli.data.text.dataset import Dataset
    from comt_cli.data.text.masking import MaskedDataset
    from comt_cli.data.text.shards import PartWriter

PART_BYTES = 128 * 1024 * 1024
"""Bounds what a kill loses; larger parts mean fewer open files: a mapped file keeps its descriptor, and many systems
allow 1024. The papers' largest corpus (10 billion tokens) makes 160 parts."""


class Kind(Prepared[DataSettings, Corpus, TextManifest, "Dataset | MaskedDataset"]):
    """Text as rows of tokens, in shards of at most `part_bytes`. A killed preparation resumes after its last shard.

    Masked text (`MaskedData`) is prepared like any other, and masked when it is read.
    """

    cache = "corpora"
    manifest = TextManifest

    def __init__(self, data: DataSettings, corpus: Corpus | None = None, part_bytes: int = PART_BYTES) -> None:
        super().__init__(data.text, corpus)
        self._asked, self._part_bytes = data, part_bytes

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        """Corpus, tokenizer, split, limits and layout of rows."""
        data = self.data
        return {
            "format": FORMAT,
            "corpus": self.corpus.identity(progress),
            "tokenizer": tokenizer_identity(data),
            "rows": data.rows,
            "sequence_length": data.sequence_length,
            "max_train_tokens": data.max_train_tokens,
            "validation_fraction": data.validation_fraction,
        }

    def write(self, folder: Path, name: str, progress: ProgressCallback) -> TextManifest:
        from comt_cli.data.text.dataset import check_rows
        from comt_cli.data.text.shards import PartWriter
        from comt_cli.data.text.tokenise import Tokenising
        from comt_cli.data.token_lists import token_dtype

        data, corpus = self.data, self.corpus
        if not (folder / TOKENIZER).exists():
            tokenizer_for(data, corpus, progress).save(folder / TOKENIZER)
        tokenizer = load_tokenizer(folder / TOKENIZER)
        dtype = token_dtype(tokenizer.vocabulary_size)
        writer = PartWriter(folder, dtype, self._part_bytes)
        self._check_room(folder, writer, dtype.itemsize)
        Tokenising(data, corpus, tokenizer, writer, progress).run()
        check_rows(data, writer.parts, corpus, tokenizer)
        return TextManifest(
            format=FORMAT,
            fingerprint=name,
            settings=data.model_dump(mode="json"),
            corpus=corpus.identity(),
            versions=versions("numpy", "sentencepiece"),
            dtype=dtype.str,
            vocabulary_size=tokenizer.vocabulary_size,
            tokenizer=FileRecord.of(folder / TOKENIZER),
            parts=tuple(writer.parts),
        )

    def open(self, folder: Path, manifest: TextManifest) -> Dataset | MaskedDataset:
        from comt_cli.data.text.dataset import Dataset
        from comt_cli.data.text.masking import MaskedDataset

        text = Dataset(self.data, folder, manifest)
        return MaskedDataset(self._asked, text) if isinstance(self._asked, MaskedData) else text

    def _check_room(self, folder: Path, writer: PartWriter, bytes_of_token: int) -> None:
        """Say before hours of streaming that the disk cannot hold what is asked for."""
        most = self.data.max_train_tokens
        if not self.corpus.endless or most is None:
            return
        needed = (most - writer.tokens("train")) * bytes_of_token
        check_room(folder, needed, f"{most:,} tokens", "lower max_train_tokens")
