"""From a corpus of pairs to tokens in files, once. Importing it, and finding a fingerprint, imports no NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.data.pairs.corpus import PairCorpus, PairTexts, TextPair
from comt_cli.data.pairs.record import PAIR_FORMAT, SIDES, TEXTS, PairManifest, offset_file, token_file
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.prepared import TOKENIZER, FileRecord, Prepared, versions
from comt_cli.data.sentencepiece_tokenizer import TRAINER, TRAINING_CHARACTERS, VOCABULARY_VERSION, train_sentencepiece
from comt_cli.data.special_tokens import Extra
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.tokenizer import ByteTokenizer, Tokenizer
from comt_cli.data.tokenizers import load_tokenizer
from comt_cli.errors import UserError
from comt_cli.files import write_json

if TYPE_CHECKING:
    from comt_cli.data.pairs.dataset import PairDataset
    from comt_cli.data.pairs.writing import PairWriter

_CHUNK_PAIRS = 1 << 10
_BLOCK_PAIRS = 1 << 16  # of a block of `writing`: what a kill loses


class Kind(Prepared[PairData, PairCorpus, PairManifest, "PairDataset"]):
    """Pairs as tokens of one vocabulary. A killed preparation resumes after its last whole block."""

    cache = "pairs"
    manifest = PairManifest

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        """Corpus, languages, tokenizer and buckets."""
        data = self.data
        tokenizer: list[Any] = ["bytes"]
        if data.tokenizer == "sentencepiece":
            made_by = [VOCABULARY_VERSION, metadata.version("sentencepiece")]
            tokenizer = ["sentencepiece", data.vocabulary_size, TRAINER, TRAINING_CHARACTERS, *made_by, "begin"]
        return {
            "format": PAIR_FORMAT,
            "corpus": self.corpus.identity(progress),
            "languages": [data.source, data.target],
            "tokenizer": tokenizer,
            "max_length": data.max_length,
            "batch_tokens": data.batch_tokens,
        }

    def write(self, folder: Path, name: str, progress: ProgressCallback) -> PairManifest:
        from comt_cli.data.pairs.dataset import texts_as_json
        from comt_cli.data.pairs.writing import PairWriter
        from comt_cli.data.token_lists import token_dtype

        data, corpus = self.data, self.corpus
        if not (folder / TEXTS).exists():
            texts = corpus.decoded(progress)
            _check_texts(data, texts)
            write_json(folder / TEXTS, texts_as_json(texts))
        if not (folder / TOKENIZER).exists():
            progress("training the tokenizer", 0, None)
            self._tokenizer().save(folder / TOKENIZER)
        tokenizer = load_tokenizer(folder / TOKENIZER)
        dtype = token_dtype(tokenizer.vocabulary_size)
        writer = PairWriter(folder, dtype)
        self._tokenise(tokenizer, writer, progress)
        if writer.pairs == 0:
            raise UserError(
                f"corpus: there is no pair to train on in {data.corpus}",
                str(writer.left_out) or "Use more pairs, or smaller shares for validation and test.",
            )
        names = (TOKENIZER, TEXTS, *(file(side) for side in SIDES for file in (token_file, offset_file)))
        return PairManifest(
            format=PAIR_FORMAT,
            fingerprint=name,
            settings=data.model_dump(mode="json", exclude={"folder"}),
            corpus=corpus.identity(),
            versions=versions("numpy", "sentencepiece"),
            dtype=dtype.str,
            vocabulary_size=tokenizer.vocabulary_size,
            pairs=writer.pairs,
            left_out=writer.left_out,
            files=tuple(FileRecord.of(folder / file) for file in names),
        )

    def open(self, folder: Path, manifest: PairManifest) -> PairDataset:
        from comt_cli.data.pairs.dataset import PairDataset

        return PairDataset(self.data, folder, manifest)

    def _tokenizer(self) -> Tokenizer:
        extras: tuple[Extra, ...] = ("begin",)
        if self.data.tokenizer == "bytes":
            return ByteTokenizer(extras)
        size, own = self.data.vocabulary_size, PairCorpus.named(self.data.corpus).is_own_text
        assert size is not None  # the settings see to it
        return train_sentencepiece(self.corpus.vocabulary_texts(), size, extras, key="vocabulary_size", own=own)

    def _tokenise(self, tokenizer: Tokenizer, writer: PairWriter, progress: ProgressCallback) -> None:
        """Write the training pairs to `writer`, from where its files end."""
        block, waiting = writer.after, 0
        for chunk in _chunks(self.corpus.train(writer.after)):
            encoded = [tokenizer.encode_batch([getattr(pair, side) for pair in chunk]) for side in SIDES]
            for pair, source, target in zip(chunk, *encoded, strict=True):
                length = 1 + max(len(source), len(target))  # with the token that closes it
                name = f"pair {pair.place[1] + 1}" + (f" of file {pair.place[0] + 1}" if pair.place[0] else "")
                if not source or not target:
                    writer.left_out = writer.left_out.with_one("empty", f"{name} (empty)")
                elif length > self.data.max_length:
                    writer.left_out = writer.left_out.with_one("too_long", f"{name} ({length} tokens)")
                else:
                    writer.add(source, target)
            waiting += len(chunk)
            file, number = chunk[-1].place
            block = (file, number + 1)
            progress("tokenising pairs", writer.pairs, self.corpus.total)
            if waiting >= _BLOCK_PAIRS:
                writer.flush(block)
                waiting = 0
        writer.flush(block)


def _check_texts(data: PairData, texts: Mapping[str, PairTexts]) -> None:
    for split, each in texts.items():
        if not len(each):
            raise UserError(
                f"corpus: no pair of {data.corpus} is in the {split} split",
                f"Use more pairs, a larger {split}_fraction, or other {split}_files.",
            )


def _chunks(pairs: Iterable[TextPair]) -> Iterator[list[TextPair]]:
    """Pairs in groups that occupy all cores. Their size does not change the result."""
    iterator = iter(pairs)
    while chunk := list(itertools.islice(iterator, _CHUNK_PAIRS)):
        yield chunk
