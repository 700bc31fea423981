"""Pairs of token sequences, a source and a target, as padded batches of whole buckets.

A bucket is a numbered sample, like a row of tokens or an image. A bucket of n pairs has n * max(source length) <= N and
n * max(target length) <= N, so N bounds each of the two padded arrays. Lengths include the end token of a source, and
the begin or end token of a target.

Packing is greedy along the pairs, sorted by the larger of their two lengths, then by their difference, alternately
rising and falling (so that neighbours have similar lengths); pairs with both equal are in an order drawn from the seed.
The buckets are then numbered in a drawn order, so that evaluations begin with buckets of all lengths. The assignment of
pairs to buckets is the same in every epoch.

Shapes: P pairs, B pairs of a micro-batch, S and T its longest source and target.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from comt_cli.data.order import sample_indices
from comt_cli.data.pairs.settings import PAIR_FORMAT, SIDES, Kind, LeftOut, PairCorpus, PairManifest, PairTexts, Side
from comt_cli.data.prepare import TOKENIZER, Manifest, PreparedTokens
from comt_cli.data.split import AnyBatch, Ints, PositionedSplit, TokenLists, token_dtype
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.tokenizer import ByteTokenizer, SpecialTokens, Tokenizer, train_sentencepiece
from comt_cli.errors import UserError
from comt_cli.files import atomic_file, read_json, write_json
from comt_cli.recipe.settings import MAX_LENGTH

ROWS = MAX_LENGTH  # positions reserved per bucket, enough for any bucket's pairs
TEXTS = "texts.json"
OFFSETS = np.dtype("<i8")

_SEED = 0  # of the packing, independent of the run's seed, so that all runs see the same buckets
_CHUNK_PAIRS = 1 << 10


class BucketPlan(NamedTuple):
    """Pairs of each bucket: `members`, the pairs' numbers, bucket after bucket, int64; `offsets`, the start of each
    bucket in `members`, and the end of the last, int64 [buckets + 1]."""

    members: Ints
    offsets: Ints

    def pairs(self, bucket: int) -> Ints:
        return self.members[self.offsets[bucket] : self.offsets[bucket + 1]]


def pack_buckets(source_P: Ints, target_P: Ints, batch_tokens: int, seed: int) -> BucketPlan:
    """Pack pairs of these lengths, int64 [P], each at least 1, into buckets of at most `batch_tokens` tokens per side.
    A pure function; every pair is in exactly one bucket. Raises `ValueError` if one is too long."""
    longer_P = np.maximum(source_P, target_P)
    if len(source_P) != len(target_P) or not len(longer_P) or min(source_P.min(), target_P.min()) < 1:
        raise ValueError("sources and targets should be equally many, at least one, with lengths of 1 or more")
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
    # For every position: its bucket's start in the sorted order, plus its index within the bucket.
    places = np.repeat(np.array(bounds)[numbering] - offsets[:-1], sizes) + np.arange(len(sorted_P))
    return BucketPlan(sorted_P[places], offsets)


@dataclass(frozen=True)
class PairBatch(AnyBatch):
    """Pairs for one forward pass, all int64, padded on the right: `source` [B, S], each with the end token; `target_in`
    and `target_out` [B, T], see `TokenLists.shifted`; `positions` [B], for dropout masks."""

    counted = "target_out"

    source: Ints
    target_in: Ints
    target_out: Ints
    positions: Ints


class PairBuckets(PositionedSplit[PairBatch]):
    """One split of a corpus of pairs, as numbered buckets of `plan`. Several buckets in a batch are padded to the
    longest pair: `batch_tokens` bounds a micro-batch of one bucket."""

    def __init__(
        self, sources: TokenLists, targets: TokenLists, special: SpecialTokens, batch_tokens: int, seed: int
    ) -> None:
        """Sources and targets are texts without special tokens; `seed` is the data's. Raises `ValueError` if a pair or
        a bucket does not fit, the tokenizer has no begin token, or the numbers of sources and targets differ."""
        special.need("begin")
        self._sources, self._targets, self._special = sources, targets, special
        # Both include the end token; a target has as many tokens after its begin token.
        self._source_P, self._target_P = sources.lengths() + 1, targets.lengths() + 1
        self.plan = pack_buckets(self._source_P, self._target_P, batch_tokens, seed)
        super().__init__(np.add.reduceat(self._target_P[self.plan.members], self.plan.offsets[:-1]))

    def pairs(self, indices: Ints) -> Ints:
        """The numbers of the pairs of these buckets, int64 [B], in the order of their batch."""
        return np.concatenate([self.plan.pairs(bucket) for bucket in self._check(indices).tolist()])

    def numbers(self, batch: PairBatch) -> Ints:
        """The numbers of the pairs of a batch from `batch`, int64 [B]."""
        buckets_B, within_B = np.divmod(batch.positions, ROWS)
        return self.plan.members[self.plan.offsets[buckets_B] + within_B]

    def _batch(self, indices: Ints, positions: Ints) -> PairBatch:
        """The buckets' pairs; pair j of the bucket at position i has position i * `ROWS` + j."""
        pairs_B = self.pairs(indices)
        source_B = self._source_P[pairs_B]
        source_BS = self._sources.padded(pairs_B, int(source_B.max()), self._special.need("pad"))
        rows_B = np.arange(len(pairs_B))
        source_BS[rows_B, source_B - 1] = self._special.end
        target_in_BT, target_out_BT = self._targets.shifted(pairs_B, self._special)
        sizes = np.diff(self.plan.offsets)[indices]
        within_B = rows_B - np.repeat(np.cumsum(sizes) - sizes, sizes)
        positions_B = np.repeat(positions * ROWS, sizes) + within_B
        return PairBatch(source_BS, target_in_BT, target_out_BT, positions_B)


class PairDataset(PreparedTokens[PairBuckets]):
    """Pairs in buckets, with one vocabulary. `texts` has "validation", "test" and, for almanac, "unseen": text i
    belongs to pair i of the split. All of these pairs are kept: if one is longer than `batch_tokens`, the buckets are
    as large."""

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
        """A second test split with combinations that training does not have; only for almanac, else None."""
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


def write(kind: Kind, folder: Path, name: str, progress: ProgressCallback) -> Manifest:
    """Tokenise the pairs."""
    data, corpus = kind.data, kind.corpus
    texts = corpus.decoded(progress)
    for split, each in texts.items():
        if not len(each):
            hint = f"Use more pairs, a larger {split}_fraction, or other {split}_files."
            raise UserError(f"corpus: no pair of {data.corpus} is in the {split} split", hint)
    write_json(folder / TEXTS, {split: asdict(each) for split, each in texts.items()})
    progress("training the tokenizer", 0, None)
    tokenizer: Tokenizer
    if data.tokenizer == "bytes":
        tokenizer = ByteTokenizer(["begin"])
    else:
        size, own = data.vocabulary_size or 0, PairCorpus.named(data.corpus).is_own_text
        tokenizer = train_sentencepiece(corpus.vocabulary_texts(), size, ["begin"], key="data.vocabulary_size", own=own)
    tokenizer.save(folder / TOKENIZER)
    pairs, left_out = _tokenise(kind, tokenizer, folder, progress)
    if pairs == 0:
        hint = str(left_out) or "Use more pairs, or smaller shares for validation and test."
        raise UserError(f"corpus: {data.corpus} has no pair to train on", hint)
    about = {"format": PAIR_FORMAT, "corpus": corpus.identity(), "pairs": pairs, "left_out": left_out}
    about |= {"dtype": token_dtype(tokenizer.vocabulary_size).str, "vocabulary_size": tokenizer.vocabulary_size}
    return kind.record(name, folder, (TOKENIZER, TEXTS, *itertools.chain(*map(side_files, SIDES))), **about)


def _tokenise(kind: Kind, tokenizer: Tokenizer, folder: Path, progress: ProgressCallback) -> tuple[int, LeftOut]:
    """Write the files of both sides; returns the number of pairs in them, and the pairs left out."""
    pairs, left_out, ends = 0, LeftOut(), dict.fromkeys(SIDES, 0)
    dtype, read = token_dtype(tokenizer.vocabulary_size), kind.corpus.train()
    with contextlib.ExitStack() as stack:
        files = {side: [stack.enter_context(atomic_file(folder / each)) for each in side_files(side)] for side in SIDES}
        for _, offsets in files.values():
            offsets.write(bytes(OFFSETS.itemsize))
        while chunk := list(itertools.islice(read, _CHUNK_PAIRS)):  # occupies all cores; its size changes nothing
            encoded = [tokenizer.encode_batch(texts) for texts in zip(*chunk, strict=True)]
            kept = []
            for pair, source, target in zip(chunk, *encoded, strict=True):
                length = 1 + max(len(source), len(target))  # with the end token
                if not source or not target:
                    left_out = left_out.with_one("empty", f"{''.join(pair)[:30]!r}")
                elif length > kind.data.max_length:
                    left_out = left_out.with_one("too_long", f"{pair[0][:30]!r} ({length} tokens)")
                else:
                    kept.append((source, target))
            for number, (side, (tokens, offsets)) in enumerate(files.items()):
                lists = TokenLists.of([pair[number] for pair in kept])
                tokens.write(lists.tokens.astype(dtype).tobytes())
                offsets.write((ends[side] + lists.offsets[1:]).astype(OFFSETS).tobytes())
                ends[side] += len(lists.tokens)
            pairs += len(kept)
            progress("tokenising pairs", pairs, None)
    return pairs, left_out


def side_files(side: Side) -> tuple[str, str]:
    """The files of a side: its tokens, and the starts of its texts with the end of the last."""
    return f"train.{side}.tokens", f"train.{side}.offsets"


_WORD = re.compile(r"\w+|[^\w\s]")


def nearest_translations(sources: Sequence[str], targets: Sequence[str], asked: Sequence[str]) -> list[str]:
    """For each text of `asked` the target of the training pair whose source has the largest tf-idf cosine (the first of
    equals). Terms are words and punctuation marks, counted within a text, weighted by log(N / n), where n of the N
    `sources` have the term. A trained model should be much better."""
    from scipy.sparse import csr_array

    counts = [Counter(_WORD.findall(text.lower())) for text in (*sources, *asked)]
    terms = {term: place for place, term in enumerate(dict.fromkeys(itertools.chain(*counts[: len(sources)])))}
    cells = [(row, terms[term], n) for row, each in enumerate(counts) for term, n in each.items() if term in terms]
    rows, columns, values = np.array(cells).T
    frequency = np.bincount(columns[rows < len(sources)], minlength=len(terms))
    weights = values * np.log(len(sources) / frequency)[columns]
    every = csr_array((weights, (rows, columns)), shape=(len(counts), len(terms)))
    norms = np.sqrt((every * every).sum(axis=1))[: len(sources)]
    scores = (every[[row]] @ every[: len(sources)].T for row in range(len(sources), len(counts)))
    return [targets[int(np.argmax(each.toarray()[0] / np.maximum(1e-12, norms)))] for each in scores]
