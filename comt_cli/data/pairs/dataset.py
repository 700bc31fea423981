"""Pairs of token sequences, a source and a target, as padded batches of whole buckets: translation's samples.

Shapes: P pairs, B pairs of a micro-batch, S and T its longest source and target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.pairs.buckets import pack_buckets
from comt_cli.data.pairs.corpus import PairTexts
from comt_cli.data.pairs.record import SIDES, TEXTS, PairManifest
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.pairs.writing import open_side
from comt_cli.data.prepared import PreparedTokens
from comt_cli.data.special_tokens import SpecialTokens
from comt_cli.data.split import AnyBatch, Split
from comt_cli.data.token_lists import TokenLists
from comt_cli.files import read_json

ROWS = 1 << 20
"""Positions are counted as if every bucket had so many pairs: room for any bucket's."""


@dataclass(frozen=True)
class PairBatch(AnyBatch):
    """Pairs for one forward pass, all int64, padded on the right.

    Attributes:
        source: [B, S], each closed by the end token; padding is the pad token, which no text holds.
        target_in: [B, T], what the decoder reads: the begin token, then the target.
        target_out: [B, T], what it predicts: the target, then the end token; `IGNORE` behind that.
        positions: [B], a number for each pair that no other has in training, the same for every division of a step
            among devices and micro-batches. Dropout's masks follow from it.
    """

    counted = "target_out"

    source: NDArray[np.int64]
    target_in: NDArray[np.int64]
    target_out: NDArray[np.int64]
    positions: NDArray[np.int64]


class PairBuckets(Split[PairBatch]):
    """One split of a corpus of pairs, as buckets (`buckets.pack_buckets`) numbered from 0.

    A batch of several buckets is padded to the longest of them, so it may have more cells than its buckets together: a
    micro-batch of one bucket is what `batch_tokens` bounds. Means are over targets, so the division of a step changes
    its numbers by rounding alone.

    Attributes:
        plan: the buckets; `plan.too_long` are the pairs left out, `plan.padding` the share of padding.
    """

    def __init__(
        self, sources: TokenLists, targets: TokenLists, special: SpecialTokens, batch_tokens: int, seed: int
    ) -> None:
        """Sources and targets are texts without special tokens; `seed` is the data's, not a run's.

        Raises:
            UserError: no pair fits in `batch_tokens`.
            ValueError: the tokenizer has no begin token (it may be given another: `dataclasses.replace`), there are
                not as many sources as targets, or a bucket may hold more than `ROWS` pairs.
        """
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
        """Every token of a target and its end."""
        return self._counts[np.asarray(indices, dtype=np.int64)]

    def pairs(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the pairs of these buckets, int64 [B], in the order of their batch."""
        return np.concatenate([self.plan.pairs(bucket) for bucket in self._check(indices).tolist()])

    def numbers(self, batch: PairBatch) -> NDArray[np.int64]:
        """The numbers of the pairs of a batch that `batch` made, int64 [B]."""
        buckets_B, within_B = np.divmod(batch.positions, ROWS)
        return self.plan.members[self.plan.offsets[buckets_B] + within_B]

    def batch(self, indices: NDArray[np.int64]) -> PairBatch:
        return self._batch(indices, np.asarray(indices, dtype=np.int64))

    def train_batch(self, indices: NDArray[np.int64], seed: int, first: int) -> PairBatch:
        return self._batch(indices, np.arange(first, first + len(indices), dtype=np.int64))

    def _batch(self, indices: NDArray[np.int64], bucket_positions: NDArray[np.int64]) -> PairBatch:
        """The buckets' pairs; pair j of the bucket at position i is at position i * `ROWS` + j."""
        pairs_B = self.pairs(indices)
        source_B = self._source_P[pairs_B]
        source_BS = self._sources.padded(pairs_B, int(source_B.max()), self._special.pad)
        rows_B = np.arange(len(pairs_B))
        source_BS[rows_B, source_B - 1] = self._special.end
        target_in_BT, target_out_BT = self._targets.shifted(pairs_B, self._special)
        sizes = np.diff(self.plan.offsets)[indices]
        within_B = rows_B - np.repeat(np.cumsum(sizes) - sizes, sizes)
        positions_B = np.repeat(bucket_positions * ROWS, sizes) + within_B
        return PairBatch(source_BS, target_in_BT, target_out_BT, positions_B)


_SEED = 0  # of the packing: the data's own, so that every run sees the same buckets


class PairDataset(PreparedTokens[PairBuckets]):
    """Pairs of one fingerprint in buckets, of one vocabulary of both languages; the tokenizer has a begin token.

    Attributes:
        left_out: what was left out of training, as counts and as a sentence (`str`): no pair in it is longer than
            `max_length`.
        texts: of "validation", "test" and, of almanac, "unseen"; text i belongs to pair number i of the split
            (`PairBuckets.pairs`). None of these is ever left out: where the longest has more tokens than
            `batch_tokens`, the split's buckets are of its size.
    """

    def __init__(self, data: PairData, folder: Path, manifest: PairManifest) -> None:
        super().__init__(folder, manifest)
        self.left_out = manifest.left_out
        self.texts: Mapping[str, PairTexts] = read_texts(folder)
        self._batch_tokens = data.batch_tokens
        self._source, self._target = (TokenLists(*open_side(folder, side, manifest.dtype)) for side in SIDES)

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


def texts_as_json(texts: Mapping[str, PairTexts]) -> dict[str, dict[str, Sequence[Any] | None]]:
    """What `read_texts` reads."""
    return {
        split: {"sources": each.sources, "references": each.references, "slots": each.slots}
        for split, each in texts.items()
    }


def read_texts(folder: Path) -> dict[str, PairTexts]:
    """The texts of the splits that are decoded, as they were prepared. Raises `OSError` and `ValueError`."""
    return {split: PairTexts(**each) for split, each in read_json(folder / TEXTS, largest=1 << 32).items()}
