"""Pairs of token sequences, a source and a target: written block by block, and read as padded batches of whole buckets.

Training tokens are four files, tokens and offsets of sources and of targets. A block is appended to all four and
flushed to disk; then the record of their sizes, `progress.json`, is replaced. What lies behind the recorded sizes is
cut off before writing resumes.

Shapes: P pairs, B pairs of a micro-batch, S and T its longest source and target.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, ValidationError

from comt_cli.data.pairs.buckets import pack_buckets
from comt_cli.data.pairs.settings import (
    PAIR_FORMAT,
    SIDES,
    Kind,
    LeftOut,
    PairCorpus,
    PairData,
    PairManifest,
    PairTexts,
    Side,
)
from comt_cli.data.prepare import TOKENIZER, FileRecord, Manifest, PreparedTokens, Record
from comt_cli.data.special_tokens import Extra, SpecialTokens
from comt_cli.data.split import AnyBatch, PositionedSplit, TokenLists, Unsigned, token_dtype
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer, train_sentencepiece
from comt_cli.errors import StorageError, UserError
from comt_cli.files import read_json, write_json

ROWS = 1 << 20
"""Positions are counted as if every bucket had so many pairs: room for any bucket's."""
TEXTS, PROGRESS = "texts.json", "progress.json"
OFFSETS = np.dtype("<i8")

_SEED = 0  # of the packing: the data's own, so that every run sees the same buckets
_CHUNK_PAIRS = 1 << 10
_BLOCK_PAIRS = 1 << 16  # what a kill loses


@dataclass(frozen=True)
class PairBatch(AnyBatch):
    """Pairs for one forward pass, all int64, padded on the right: `source` [B, S], each closed by the end token;
    `target_in` [B, T], what the decoder reads, the begin token before the target; `target_out` [B, T], what it
    predicts, the end token behind it and `IGNORE` after that; `positions` [B], unique in training and the same for
    every division of a step, which dropout follows."""

    counted = "target_out"

    source: NDArray[np.int64]
    target_in: NDArray[np.int64]
    target_out: NDArray[np.int64]
    positions: NDArray[np.int64]


class PairBuckets(PositionedSplit[PairBatch]):
    """One split of a corpus of pairs, as buckets numbered from 0, of which `plan` says what is in each.

    A batch of several buckets is padded to the longest of them, so it may have more cells than its buckets together: a
    micro-batch of one bucket is what `batch_tokens` bounds. Means are over targets, so the division of a step changes
    its numbers by rounding alone.
    """

    def __init__(
        self, sources: TokenLists, targets: TokenLists, special: SpecialTokens, batch_tokens: int, seed: int
    ) -> None:
        """Sources and targets are texts without special tokens; `seed` is the data's, not a run's. Raises `UserError`
        where no pair fits in `batch_tokens`, `ValueError` where the tokenizer has no begin token, there are not as many
        sources as targets, or a bucket may hold more than `ROWS` pairs."""
        if batch_tokens > ROWS:
            raise ValueError(f"a bucket of {batch_tokens} tokens may have more than {ROWS} pairs")
        self._sources, self._targets = sources, targets
        special.need("begin")
        self._special = special
        # With the end of a source; with the end of a target, which is as long behind its begin.
        self._source_P, self._target_P = sources.lengths() + 1, targets.lengths() + 1
        self.plan = pack_buckets(self._source_P, self._target_P, batch_tokens, seed)
        self._counts = np.add.reduceat(self._target_P[self.plan.members], self.plan.offsets[:-1])

    def __len__(self) -> int:
        return len(self.plan)

    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._counts[np.asarray(indices, dtype=np.int64)]

    def pairs(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the pairs of these buckets, int64 [B], in the order of their batch."""
        return np.concatenate([self.plan.pairs(bucket) for bucket in self._check(indices).tolist()])

    def numbers(self, batch: PairBatch) -> NDArray[np.int64]:
        """The numbers of the pairs of a batch that `batch` made, int64 [B]."""
        buckets_B, within_B = np.divmod(batch.positions, ROWS)
        return self.plan.members[self.plan.offsets[buckets_B] + within_B]

    def _batch(self, indices: NDArray[np.int64], positions: NDArray[np.int64]) -> PairBatch:
        """The buckets' pairs; pair j of the bucket at position i is at position i * `ROWS` + j."""
        pairs_B = self.pairs(indices)
        source_B = self._source_P[pairs_B]
        source_BS = self._sources.padded(pairs_B, int(source_B.max()), self._special.pad)
        rows_B = np.arange(len(pairs_B))
        source_BS[rows_B, source_B - 1] = self._special.end
        target_in_BT, target_out_BT = self._targets.shifted(pairs_B, self._special)
        sizes = np.diff(self.plan.offsets)[indices]
        within_B = rows_B - np.repeat(np.cumsum(sizes) - sizes, sizes)
        positions_B = np.repeat(positions * ROWS, sizes) + within_B
        return PairBatch(source_BS, target_in_BT, target_out_BT, positions_B)


class PairDataset(PreparedTokens[PairBuckets]):
    """Pairs of one fingerprint in buckets, of one vocabulary of both languages; the tokenizer has a begin token.

    `left_out` is what was left out of training, as counts and as a sentence (`str`). `texts` are of "validation",
    "test" and, of almanac, "unseen": text i belongs to pair number i of the split. None of these is ever left out:
    where the longest has more tokens than `batch_tokens`, the split's buckets are of its size.
    """

    def __init__(self, kind: Kind, folder: Path, manifest: PairManifest) -> None:
        super().__init__(folder, manifest)
        self.left_out = manifest.left_out
        stored = read_json(folder / TEXTS, largest=1 << 32)
        self.texts: Mapping[str, PairTexts] = {split: PairTexts(**each) for split, each in stored.items()}
        self._batch_tokens = kind.data.batch_tokens
        self._source, self._target = (
            TokenLists(
                np.memmap(folder / token_file(side), dtype=np.dtype(manifest.dtype), mode="r"),
                np.memmap(folder / offset_file(side), dtype=OFFSETS, mode="r"),
            )
            for side in SIDES
        )

    @cached_property
    def unseen(self) -> PairBuckets | None:
        """A second test split, of combinations that training does not have; only almanac has one."""
        return self.split("unseen") if "unseen" in self.texts else None

    def split(self, name: str) -> PairBuckets:
        special = self.tokenizer.special
        if name == "train":
            return PairBuckets(self._source, self._target, special, self._batch_tokens, _SEED)
        texts = self.texts[name]
        encoded = [self.tokenizer.encode_batch(list(side)) for side in (texts.sources, texts.references)]
        longest = 1 + max(len(ids) for side in encoded for ids in side)
        source, target = (TokenLists.of(side) for side in encoded)
        return PairBuckets(source, target, special, max(self._batch_tokens, longest), _SEED)


opened = PairDataset


# ---- writing


def write(kind: Kind, folder: Path, name: str, progress: ProgressCallback) -> Manifest:
    """Tokenise the pairs, behind those that are there."""
    data, corpus = kind.data, kind.corpus
    if not (folder / TEXTS).exists():
        texts = corpus.decoded(progress)
        for split, each in texts.items():
            if not len(each):
                raise UserError(
                    f"corpus: no pair of {data.corpus} is in the {split} split",
                    f"Use more pairs, a larger {split}_fraction, or other {split}_files.",
                )
        write_json(folder / TEXTS, {split: asdict(each) for split, each in texts.items()})
    if not (folder / TOKENIZER).exists():
        progress("training the tokenizer", 0, None)
        _new_tokenizer(data, corpus).save(folder / TOKENIZER)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    dtype = token_dtype(tokenizer.vocabulary_size)
    writer = PairWriter(folder, dtype)
    _tokenise(data, corpus, tokenizer, writer, progress)
    if writer.pairs == 0:
        raise UserError(
            f"corpus: there is no pair to train on in {data.corpus}",
            str(writer.left_out) or "Use more pairs, or smaller shares for validation and test.",
        )
    names = (TOKENIZER, TEXTS, *(file(side) for side in SIDES for file in (token_file, offset_file)))
    return kind.record(
        name,
        format=PAIR_FORMAT,
        corpus=corpus.identity(),
        dtype=dtype.str,
        vocabulary_size=tokenizer.vocabulary_size,
        pairs=writer.pairs,
        left_out=writer.left_out,
        files=tuple(FileRecord.of(folder / file) for file in names),
    )


def _new_tokenizer(data: PairData, corpus: PairCorpus) -> Tokenizer:
    extras: tuple[Extra, ...] = ("begin",)
    if data.tokenizer == "bytes":
        return ByteTokenizer(extras)
    size, own = data.vocabulary_size, PairCorpus.named(data.corpus).is_own_text
    assert size is not None  # the settings see to it
    return train_sentencepiece(corpus.vocabulary_texts(), size, extras, key="vocabulary_size", own=own)


def _tokenise(
    data: PairData, corpus: PairCorpus, tokenizer: Tokenizer, writer: PairWriter, progress: ProgressCallback
) -> None:
    block, waiting, pairs = writer.after, 0, corpus.train(writer.after)
    while chunk := list(itertools.islice(pairs, _CHUNK_PAIRS)):  # occupies all cores; its size changes nothing
        encoded = [tokenizer.encode_batch([getattr(pair, side) for pair in chunk]) for side in SIDES]
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


def token_file(side: Side) -> str:
    """The file of a side's tokens."""
    return f"train.{side}.tokens"


def offset_file(side: Side) -> str:
    """The file that says where each of a side's texts begins in the tokens, and where the last one ends."""
    return f"train.{side}.offsets"


class _Progress(Record):
    """How far a preparation has come: where reading resumes, and what the files hold."""

    after: tuple[NonNegativeInt, NonNegativeInt] = (0, 0)
    pairs: NonNegativeInt = 0
    tokens: dict[Side, NonNegativeInt] = dict.fromkeys(SIDES, 0)
    left_out: LeftOut = LeftOut()


class PairWriter:
    """Appends pairs to the files of `folder`, after those that an earlier preparation recorded there. `left_out` is
    what was left out so far."""

    def __init__(self, folder: Path, dtype: np.dtype[Unsigned]) -> None:
        self._folder, self._dtype = folder, dtype
        self._done = self._recorded()
        self._pending: dict[Side, list[Sequence[int]]] = {side: [] for side in SIDES}
        self.left_out = self._done.left_out

    @property
    def after(self) -> tuple[int, int]:
        return self._done.after

    @property
    def pairs(self) -> int:
        return self._done.pairs + len(self._pending["source"])

    def add(self, source: Sequence[int], target: Sequence[int]) -> None:
        self._pending["source"].append(source)
        self._pending["target"].append(target)

    def flush(self, after: tuple[int, int]) -> None:
        """Write what waits; `after` is the place of the first pair that was not read. Raises `StorageError`."""
        tokens = dict(self._done.tokens)
        for side in SIDES:
            ends = tokens[side] + np.cumsum([len(ids) for ids in self._pending[side]], dtype=OFFSETS)
            ids = np.array([i for each in self._pending[side] for i in each], dtype=self._dtype)
            self._append(token_file(side), ids.tobytes())
            self._append(offset_file(side), ends.astype(OFFSETS).tobytes())
            tokens[side] += len(ids)
        self._done = _Progress(after=after, pairs=self.pairs, tokens=tokens, left_out=self.left_out)
        write_json(self._folder / PROGRESS, self._done.model_dump(mode="json"))
        self._pending = {side: [] for side in SIDES}

    def _append(self, name: str, content: bytes, mode: str = "ab") -> None:
        try:
            with (self._folder / name).open(mode) as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise StorageError(
                f"cannot write to {self._folder}: {error.strerror or error}",
                "What was prepared before is kept. Make room or restore the folder, then run the same command again.",
            ) from error

    def _recorded(self) -> _Progress:
        """The record, with the files cut to it; an empty one, with new files, where there is none that they meet."""
        try:
            found = _Progress.model_validate(read_json(self._folder / PROGRESS))
            for name, size in self._sizes(found):
                if (self._folder / name).stat().st_size < size:
                    raise ValueError(f"{name} is shorter than recorded")
        except (OSError, ValueError, ValidationError):
            found = _Progress()
            for side in SIDES:
                self._append(token_file(side), b"", "wb")
                self._append(offset_file(side), np.zeros(1, dtype=OFFSETS).tobytes(), "wb")
        for name, size in self._sizes(found):
            os.truncate(self._folder / name, size)
        return found

    def _sizes(self, progress: _Progress) -> Iterator[tuple[str, int]]:
        for side in SIDES:
            yield token_file(side), progress.tokens[side] * self._dtype.itemsize
            yield offset_file(side), (progress.pairs + 1) * OFFSETS.itemsize
