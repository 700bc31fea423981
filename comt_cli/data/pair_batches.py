"""Pairs of token sequences, a source and a target, as padded batches of whole buckets: translation's samples.

Shapes: P pairs, B pairs of a micro-batch, S and T its longest source and target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.buckets import pack_buckets
from comt_cli.data.shards import Unsigned
from comt_cli.data.special_tokens import SpecialTokens
from comt_cli.data.split import IGNORE, Split, uncounted

ROWS = 1 << 20
"""Positions are counted as if every bucket had so many pairs: room for any bucket's."""


@dataclass(frozen=True)
class TokenLists:
    """Token sequences behind each other: list i is `tokens[offsets[i] : offsets[i + 1]]`. Both may be memory maps."""

    tokens: NDArray[Unsigned]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Self:
        """From lists in memory, of ids below 2^32."""
        offsets = np.cumsum([0, *(len(each) for each in lists)], dtype=np.int64)
        return cls(np.array([i for each in lists for i in each], dtype=np.uint32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self) -> NDArray[np.int64]:
        """The length of every list, int64 [P]."""
        return np.diff(self.offsets).astype(np.int64)

    def padded(self, indices_B: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """The lists with these numbers, int64 [B, width], filled up on the right; none may be longer than `width`."""
        begin_B, end_B = (self.offsets[indices_B + next_one].astype(np.int64) for next_one in (0, 1))
        columns = np.arange(width)
        is_token_BW = columns < (end_B - begin_B)[:, None]
        found_BW = np.full((len(indices_B), width), fill, dtype=np.int64)
        found_BW[is_token_BW] = self.tokens[(begin_B[:, None] + columns)[is_token_BW]]
        return found_BW

    def shifted(
        self, indices_B: NDArray[np.int64], special: SpecialTokens
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What a decoder reads and what it predicts, int64 [B, T] both, of the lists with these numbers: the begin
        token before each list, padded; the end token behind each, `IGNORE` after that."""
        length_B = self.lengths_of(indices_B)
        out_BT = self.padded(indices_B, int(length_B.max()) + 1, IGNORE)
        in_BT = np.full_like(out_BT, special.need("begin"))
        in_BT[:, 1:] = np.where(out_BT[:, :-1] == IGNORE, special.pad, out_BT[:, :-1])
        out_BT[np.arange(len(indices_B)), length_B] = special.end
        return in_BT, out_BT

    def lengths_of(self, indices_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths of the lists with these numbers, int64 [B]."""
        return (self.offsets[indices_B + 1] - self.offsets[indices_B]).astype(np.int64)


@dataclass(frozen=True)
class PairBatch:
    """Pairs for one forward pass, all int64, padded on the right.

    Attributes:
        source: [B, S], each closed by the end token; padding is the pad token, which no text holds.
        target_in: [B, T], what the decoder reads: the begin token, then the target.
        target_out: [B, T], what it predicts: the target, then the end token; `IGNORE` behind that.
        positions: [B], a number for each pair that no other has in training, the same for every division of a step
            among devices and micro-batches. Dropout's masks follow from it.
    """

    source: NDArray[np.int64]
    target_in: NDArray[np.int64]
    target_out: NDArray[np.int64]
    positions: NDArray[np.int64]

    @property
    def target_count(self) -> int:
        """How many targets there are to predict, the ends included."""
        return int(np.count_nonzero(self.target_out != IGNORE))

    def uncounted(self, first: int = 0) -> Self:
        return replace(self, target_out=uncounted(self.target_out, first))


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
