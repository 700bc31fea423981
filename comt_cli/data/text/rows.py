"""Rows of tokens from memory-mapped shards, in two layouts; and masked sequences as a view of such rows.

Shapes: B rows of a batch, T tokens of a row (`sequence_length`; one more in a masked sequence), K most chosen tokens of
a row, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.order import uniform_draws
from comt_cli.data.split import IGNORE, AnyBatch, Ints, Split, Unsigned
from comt_cli.data.text.settings import predicted
from comt_cli.data.tokenizer import PAD, SpecialTokens
from comt_cli.errors import UserError

MASKED, RANDOM = 0.8, 0.1
"""The shares of the chosen tokens that are hidden, and that become random ones; the others stay."""

Shards = Sequence[NDArray[Unsigned]]


@dataclass(frozen=True)
class Batch(AnyBatch):
    """Rows for one forward pass: `tokens` int64 [B, T]; `targets` int64 [B, T], the next token or `IGNORE`."""

    tokens: Ints
    targets: Ints


class Rows(Split[Batch]):
    """One split of a data set as numbered rows. Its shards have `tokens` tokens of `documents` documents, from `bytes`
    bytes of UTF-8. A loss in nats per token is nats / ln 2 * tokens / bytes in bits per byte."""

    def __init__(self, shards: Shards, sequence_length: int, documents: int, text_bytes: int) -> None:
        self.sequence_length, self.documents, self.bytes = sequence_length, documents, text_bytes
        self._shards, self._starts = shards, np.cumsum([0, *map(len, shards)], dtype=np.int64)
        self.tokens = int(self._starts[-1])

    @property
    def tokens_per_byte(self) -> float:
        """Tokens per byte of text: the factor that converts a loss per token to one per byte."""
        return self.tokens / self.bytes

    @abstractmethod
    def _locate(self, indices: Ints) -> tuple[Ints, Ints]:
        """The start of each row in the concatenated shards, and its number of tokens."""

    def target_counts(self, indices: Ints) -> Ints:
        return self._locate(np.asarray(indices, dtype=np.int64))[1] - 1

    def batch(self, indices: Ints) -> Batch:
        begin_B, length_B = self._locate(self._check(indices))
        shard_B = np.searchsorted(self._starts, begin_B, side="right") - 1
        tokens_BT = np.full((len(indices), self.sequence_length), PAD, dtype=np.int64)
        places = zip(shard_B.tolist(), (begin_B - self._starts[shard_B]).tolist(), length_B.tolist(), strict=True)
        for row_T, (shard, begin, length) in zip(tokens_BT, places, strict=True):
            filled = 0
            while filled < length:
                piece = self._shards[shard][begin : begin + length - filled]
                row_T[filled : filled + len(piece)] = piece
                filled += len(piece)
                shard, begin = shard + 1, 0  # noqa: PLW2901 - the row continues in the next shard
        targets_BT = np.full_like(tokens_BT, IGNORE)
        targets_BT[:, :-1] = tokens_BT[:, 1:]
        # By the rows' lengths, not by the padding id, which a text might contain.
        targets_BT[np.arange(1, self.sequence_length + 1) >= length_B[:, None]] = IGNORE
        return Batch(tokens_BT, targets_BT)


class RowRange(Rows):
    """The rows of another split from `first` to before `last`; `tokens_per_byte` is the whole split's."""

    def __init__(self, whole: Rows, first: int, last: int) -> None:
        super().__init__(whole._shards, whole.sequence_length, whole.documents, whole.bytes)
        self._whole, self._first, self._last = whole, first, last

    def __len__(self) -> int:
        return self._last - self._first

    def _locate(self, indices: Ints) -> tuple[Ints, Ints]:
        return self._whole._locate(self._first + indices)


def without_last(rows: Rows, share: float) -> tuple[RowRange, RowRange]:
    """`rows` without the last `share` of them, and these. Raises `UserError` if there are fewer than two."""
    if len(rows) < 2:
        hint = "Use more text, a shorter sequence_length, or leave test_share out."
        raise UserError(f"{len(rows)} validation sequence cannot be divided into validation and test", hint)
    first = min(max(len(rows) - round(share * len(rows)), 1), len(rows) - 1)
    return RowRange(rows, 0, first), RowRange(rows, first, len(rows))


class PackedRows(Rows):
    """The stream of all documents in windows of T tokens, which may cross shards; a partial one is dropped."""

    def __len__(self) -> int:
        return self.tokens // self.sequence_length

    def _locate(self, indices: Ints) -> tuple[Ints, Ints]:
        return indices * self.sequence_length, np.full_like(indices, self.sequence_length)


class PaddedRows(Rows):
    """One document per row, truncated to T tokens in preparation, padded on the right."""

    def __init__(self, shards: Shards, offsets: Shards, sequence_length: int, text_bytes: int) -> None:
        self._offsets = offsets
        self._firsts = np.cumsum([0, *(len(offset) - 1 for offset in offsets)], dtype=np.int64)
        super().__init__(shards, sequence_length, int(self._firsts[-1]), text_bytes)

    def __len__(self) -> int:
        return self.documents

    def _locate(self, indices: Ints) -> tuple[Ints, Ints]:
        shard_B = np.searchsorted(self._firsts, indices, side="right") - 1
        bounds_2B = np.empty((2, len(indices)), dtype=np.int64)
        for number in np.unique(shard_B):
            here = shard_B == number
            rows = indices[here] - self._firsts[number]
            bounds_2B[:, here] = self._offsets[number][[rows, rows + 1]]
        return self._starts[shard_B] + bounds_2B[0], bounds_2B[1] - bounds_2B[0]


@dataclass(frozen=True)
class MaskedBatch(AnyBatch):
    """Sequences for one forward pass, all int64: `tokens` [B, T] as the model sees them; `places` [B, K], the masked
    positions; `targets` [B, K], the original tokens there, or `IGNORE`; `positions` [B], for dropout masks."""

    tokens: Ints
    places: Ints
    targets: Ints
    positions: Ints


class MaskedRows(Split[MaskedBatch]):
    """A split of text as masked sequences (Devlin et al. 2019, section 3.1): the begin token, then a row.

    In every sequence a share of the tokens that are not special is chosen, rounded to the nearest whole number: 80 % of
    these are replaced by the mask token, 10 % by a random token of the vocabulary (not special), and 10 % stay. The
    choice is a pure function of (seed, position in the training order), in evaluation of the sample's number.
    """

    def __init__(self, rows: Rows, special: SpecialTokens, vocabulary: int, share: float) -> None:
        """Raises `ValueError` if the tokenizer has no begin or mask token."""
        self.rows, self.share = rows, share
        self._begin, self._mask = special.need("begin"), special.need("mask")
        self._is_special_V = np.zeros(vocabulary, dtype=bool)
        self._is_special_V[list(special.ids)] = True
        self._words = np.flatnonzero(~self._is_special_V)
        self._length = rows.sequence_length + 1
        self._most = predicted(rows.sequence_length, share)
        # Draws per sequence: the order of its tokens; an action and a random token for each chosen one.
        self._draws = self._length + 2 * self._most

    def __len__(self) -> int:
        return len(self.rows)

    def target_counts(self, indices: Ints) -> Ints:
        """The numbers of chosen tokens. Reads the rows, because special tokens do not count."""
        return self._chosen(~self._is_special_V[self.rows.batch(indices).tokens])

    def batch(self, indices: Ints) -> MaskedBatch:
        """The sequences with these numbers, with the masks of evaluations."""
        numbers = np.asarray(indices, dtype=np.int64)
        draws = [uniform_draws(0, number, 1, self._draws) for number in numbers.tolist()]
        return self._masked(numbers, np.concatenate(draws), numbers)

    def train_batch(self, indices: Ints, seed: int, first: int) -> MaskedBatch:
        positions = first + np.arange(len(indices), dtype=np.int64)
        return self._masked(indices, uniform_draws(seed, first, len(indices), self._draws), positions)

    def _chosen(self, is_word_BT: NDArray[np.bool_]) -> Ints:
        words = is_word_BT.sum(1).tolist()
        return np.array([min(count, predicted(count, self.share)) for count in words], dtype=np.int64)

    def _masked(self, indices: Ints, draws: NDArray[np.float64], positions: Ints) -> MaskedBatch:
        T, K = self._length, self._most
        text_BT = self.rows.batch(indices).tokens
        tokens_BT = np.concatenate([np.full((len(text_BT), 1), self._begin, dtype=np.int64), text_BT], axis=1)
        order_BT, action_BK, word_BK = draws[:, :T], draws[:, T : T + K], draws[:, T + K :]
        is_word_BT = ~self._is_special_V[tokens_BT]
        # The chosen tokens are the first K words in a random order; special tokens come last.
        places_BK = np.argsort(np.where(is_word_BT, order_BT, 1.0), axis=1, kind="stable")[:, :K]
        is_chosen_BK = np.arange(K) < self._chosen(is_word_BT)[:, None]
        own_BK = np.take_along_axis(tokens_BT, places_BK, axis=1)
        other_BK = self._words[(word_BK * len(self._words)).astype(np.int64)]
        seen_BK = np.select([action_BK < MASKED, action_BK < MASKED + RANDOM], [self._mask, other_BK], own_BK)
        np.put_along_axis(tokens_BT, places_BK, np.where(is_chosen_BK, seen_BK, own_BK), axis=1)
        return MaskedBatch(tokens_BT, places_BK, np.where(is_chosen_BK, own_BK, IGNORE), positions)
