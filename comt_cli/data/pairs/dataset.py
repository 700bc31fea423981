"""Pairs of token sequences, a source and a target: written block by block, and read as padded batches of whole buckets.

A bucket is a numbered sample like a row of tokens or an image: order, reading ahead, evaluation and resuming are those
of every task. A step takes k buckets, which are divided among devices.

Counting rule: a bucket of n pairs has n * max(source length) <= N and n * max(target length) <= N. N so bounds each of
the two padded arrays, padding included; lengths count the token that closes a source, and the one that opens or closes
a target.

Packing is greedy along the pairs sorted by the longer of both lengths, and then by their difference, upwards and
downwards in turn (so that neighbours differ little in both); pairs equal in both lie in an order drawn from the seed.
The buckets are then numbered in a drawn order: those that evaluation reads first are of all lengths. Which pairs share
a bucket is the same in every epoch.

Training tokens are four files, tokens and offsets of sources and of targets. A block is appended to all four and
flushed to disk; then the record of their sizes, `progress.json`, is replaced. What lies behind the recorded sizes is
cut off before writing resumes.

Shapes: P pairs, B pairs of a micro-batch, S and T its longest source and target.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt, ValidationError

from comt_cli.data.order import sample_indices
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
from comt_cli.data.prepare import TOKENIZER, Manifest, PreparedTokens, Record
from comt_cli.data.split import AnyBatch, PositionedSplit, TokenLists, Unsigned, token_dtype
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.tokenizer import ByteTokenizer, SpecialTokens, Tokenizer, load_tokenizer, train_sentencepiece
from comt_cli.errors import StorageError, UserError
from comt_cli.files import read_json, write_json

ROWS = 1 << 20
"""Positions are counted as if every bucket had so many pairs: room for any bucket's."""
TEXTS, PROGRESS = "texts.json", "progress.json"
OFFSETS = np.dtype("<i8")

_SEED = 0  # of the packing: the data's own, so that every run sees the same buckets
_CHUNK_PAIRS = 1 << 10
_BLOCK_PAIRS = 1 << 16  # what a kill loses


# ---- buckets


class BucketPlan(NamedTuple):
    """Pairs of each bucket: `members`, the packed pairs' numbers, bucket after bucket, int64; `offsets`, where each
    bucket begins among them, and the end of the last, int64 [buckets + 1]."""

    members: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def pairs(self, bucket: int) -> NDArray[np.int64]:
        """The numbers of a bucket's pairs, at least one."""
        return self.members[self.offsets[bucket] : self.offsets[bucket + 1]]


def pack_buckets(source_P: NDArray[np.int64], target_P: NDArray[np.int64], batch_tokens: int, seed: int) -> BucketPlan:
    """Pack pairs of these lengths, int64 [P], each at least 1, into buckets of at most `batch_tokens` tokens a side. A
    pure function of its arguments: every pair is in exactly one bucket. Raises `ValueError` where one is too long."""
    longer_P = np.maximum(source_P, target_P)
    if len(source_P) != len(target_P) or not len(longer_P) or min(source_P.min(), target_P.min()) < 1:
        raise ValueError("lengths are of pairs, and at least 1")
    if longer_P.max() > batch_tokens:
        raise ValueError(f"a pair of {longer_P.max()} tokens does not fit in {batch_tokens}")
    drawn_P, difference_P = sample_indices(seed, 0, len(longer_P), len(longer_P)), source_P - target_P
    turning_P = np.where(longer_P % 2, difference_P, -difference_P)
    sorted_P = np.lexsort((drawn_P, turning_P, longer_P))
    ascending_P, bounds = longer_P[sorted_P], [0]
    while (begin := bounds[-1]) < len(ascending_P):
        longest = ascending_P[begin : begin + batch_tokens // ascending_P[begin]]  # no later pair is shorter
        bounds.append(begin + int(np.count_nonzero(np.arange(1, len(longest) + 1) * longest <= batch_tokens)))
    numbering = sample_indices(seed, 0, len(bounds) - 1, len(bounds) - 1)
    sizes = np.diff(bounds)[numbering]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    # For every place: its bucket's beginning in the sorted order, and its place within the bucket.
    places = np.repeat(np.array(bounds)[numbering] - offsets[:-1], sizes) + np.arange(len(sorted_P))
    return BucketPlan(sorted_P[places], offsets)


# ---- batches


@dataclass(frozen=True)
class PairBatch(AnyBatch):
    """Pairs for one forward pass, all int64, padded on the right: `source` [B, S], each closed by the end token;
    `target_in` and `target_out` [B, T], see `TokenLists.shifted`; `positions` [B], which dropout follows."""

    counted = "target_out"

    source: NDArray[np.int64]
    target_in: NDArray[np.int64]
    target_out: NDArray[np.int64]
    positions: NDArray[np.int64]


class PairBuckets(PositionedSplit[PairBatch]):
    """One split of a corpus of pairs, as buckets numbered from 0, by `plan`. Several in a batch are padded to the
    longest: `batch_tokens` bounds a micro-batch of one bucket."""

    def __init__(
        self, sources: TokenLists, targets: TokenLists, special: SpecialTokens, batch_tokens: int, seed: int
    ) -> None:
        """Sources and targets are texts without special tokens; `seed` is the data's, not a run's. Raises `ValueError`
        where a pair does not fit in `batch_tokens`, the tokenizer has no begin token, there are not as many sources as
        targets, or a bucket may hold more than `ROWS` pairs."""
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
        return len(self._counts)

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
    """Pairs in buckets, of one vocabulary of both languages. `texts` are of "validation", "test" and, of almanac,
    "unseen": text i belongs to pair number i of the split. None of these is ever left out: where the longest has more
    tokens than `batch_tokens`, the split's buckets are of its size."""

    def __init__(self, kind: Kind, folder: Path, manifest: PairManifest) -> None:
        super().__init__(folder, manifest)
        self.left_out = manifest.left_out
        stored = read_json(folder / TEXTS)
        self.texts: Mapping[str, PairTexts] = {split: PairTexts(**each) for split, each in stored.items()}
        self._batch_tokens = kind.data.batch_tokens
        self._source, self._target = (
            TokenLists(
                np.memmap(folder / tokens, dtype=np.dtype(manifest.dtype), mode="r"),
                np.memmap(folder / offsets, dtype=OFFSETS, mode="r"),
            )
            for tokens, offsets in map(side_files, SIDES)
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
        size, own = data.vocabulary_size or 0, PairCorpus.named(data.corpus).is_own_text
        made = (
            ByteTokenizer(["begin"])
            if data.tokenizer == "bytes"
            else train_sentencepiece(corpus.vocabulary_texts(), size, ["begin"], key="vocabulary_size", own=own)
        )
        made.save(folder / TOKENIZER)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    dtype = token_dtype(tokenizer.vocabulary_size)
    writer = PairWriter(folder, dtype)
    _tokenise(data, corpus, tokenizer, writer, progress)
    if writer.pairs == 0:
        raise UserError(
            f"corpus: there is no pair to train on in {data.corpus}",
            str(writer.left_out) or "Use more pairs, or smaller shares for validation and test.",
        )
    return kind.record(
        name,
        folder,
        (TOKENIZER, TEXTS, *(file for side in SIDES for file in side_files(side))),
        format=PAIR_FORMAT,
        corpus=corpus.identity(),
        dtype=dtype.str,
        vocabulary_size=tokenizer.vocabulary_size,
        pairs=writer.pairs,
        left_out=writer.left_out,
    )


def _tokenise(
    data: PairData, corpus: PairCorpus, tokenizer: Tokenizer, writer: PairWriter, progress: ProgressCallback
) -> None:
    waiting, place = 0, writer.done.after
    pairs = corpus.train(place)
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
        place = (chunk[-1].place[0], chunk[-1].place[1] + 1)
        progress("tokenising pairs", writer.pairs, corpus.total)
        if waiting >= _BLOCK_PAIRS:
            writer.flush(place)
            waiting = 0
    writer.flush(place)


def side_files(side: Side) -> tuple[str, str]:
    """The files of a side: its tokens, and the begins of its texts among them with the end of the last."""
    return f"train.{side}.tokens", f"train.{side}.offsets"


class _Progress(Record):
    """State of a preparation: where reading resumes, and the content of the files."""

    after: tuple[NonNegativeInt, NonNegativeInt] = (0, 0)
    pairs: NonNegativeInt = 0
    tokens: dict[Side, NonNegativeInt] = dict.fromkeys(SIDES, 0)
    left_out: LeftOut = LeftOut()


class PairWriter:
    """Appends pairs to the files of `folder`, after those that an earlier preparation recorded there. `left_out` is
    what was left out so far."""

    def __init__(self, folder: Path, dtype: np.dtype[Unsigned]) -> None:
        self._folder, self._dtype = folder, dtype
        self.done = self._recorded()
        self._pending: dict[Side, list[Sequence[int]]] = {side: [] for side in SIDES}
        self.left_out = self.done.left_out

    @property
    def pairs(self) -> int:
        return self.done.pairs + len(self._pending["source"])

    def add(self, source: Sequence[int], target: Sequence[int]) -> None:
        self._pending["source"].append(source)
        self._pending["target"].append(target)

    def flush(self, after: tuple[int, int]) -> None:
        """Write what waits; `after` is the place of the first pair that was not read. Raises `StorageError`."""
        tokens = dict(self.done.tokens)
        for side in SIDES:
            ends = tokens[side] + np.cumsum([len(ids) for ids in self._pending[side]], dtype=OFFSETS)
            ids = np.array([i for each in self._pending[side] for i in each], dtype=self._dtype)
            for name, content in zip(side_files(side), (ids, ends.astype(OFFSETS)), strict=True):
                self._append(name, content.tobytes())
            tokens[side] += len(ids)
        self.done = _Progress(after=after, pairs=self.pairs, tokens=tokens, left_out=self.left_out)
        write_json(self._folder / PROGRESS, self.done.model_dump(mode="json"))
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
            for name, size in self._sizes(found):
                self._append(name, bytes(size), "wb")
        for name, size in self._sizes(found):
            os.truncate(self._folder / name, size)
        return found

    def _sizes(self, progress: _Progress) -> Iterator[tuple[str, int]]:
        for side in SIDES:
            tokens, offsets = side_files(side)
            yield tokens, progress.tokens[side] * self._dtype.itemsize
            yield offsets, (progress.pairs + 1) * OFFSETS.itemsize


# ---- a baseline

_WORD = re.compile(r"\w+|[^\w\s]")


def nearest_translations(sources: Sequence[str], targets: Sequence[str], asked: Sequence[str]) -> list[str]:
    """For each text of `asked` the target of the training pair whose source has the largest cosine of tf-idf, the first
    of equals: words and punctuation marks are the terms, counted within a text, weighted by log(N / n) of the N
    `sources` of which n have the term. A trained model is expected to beat this by much."""
    counts = [Counter(_WORD.findall(text.lower())) for text in sources]
    frequency: Counter[str] = Counter(term for each in counts for term in each)
    weight = {term: np.log(len(sources) / n) for term, n in frequency.items()}
    postings: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for number, each in enumerate(counts):
        norm = float(np.sqrt(sum((count * weight[term]) ** 2 for term, count in each.items())))
        for term, count in each.items():
            postings[term][0].append(number)
            postings[term][1].append(count * weight[term] / max(1e-12, norm))
    arrays = {term: (np.array(numbers), np.array(values)) for term, (numbers, values) in postings.items()}
    found = []
    for text in asked:
        scores = np.zeros(len(sources))
        for term, count in Counter(_WORD.findall(text.lower())).items():
            if term in arrays:
                numbers, values = arrays[term]
                scores[numbers] += count * weight[term] * values
        found.append(targets[int(np.argmax(scores))])
    return found
