"""Masked sequences (Devlin et al. 2019, section 3.1): a view of rows of text in which some tokens are hidden.

Of the tokens that are no special ones a share is chosen, in every sequence the nearest whole number to it: 80 % of
these are replaced by the mask token, 10 % by a token of the vocabulary, any but the special ones, and 10 % stay. Which
and how is a pure function of (seed, position in the order of training), so of (seed, step, sample); in evaluation of
the sample's number alone. A sequence begins with the begin token, whose vector stands for it in classifiers.

Shapes: B samples of a batch, T tokens of a sequence, K the most that are chosen in one, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.order import uniform_draws
from comt_cli.data.special_tokens import SpecialTokens
from comt_cli.data.split import IGNORE, AnyBatch, Split
from comt_cli.data.text.dataset import Dataset
from comt_cli.data.text.rows import Rows
from comt_cli.data.text.settings import MaskedData, predicted

MASKED, RANDOM = 0.8, 0.1
"""Of the chosen tokens, the share that is hidden, and the share that becomes another one; the others stay."""

EVALUATION_SEED = 0
"""The masks of evaluations: the same in every run."""


@dataclass(frozen=True)
class MaskedBatch(AnyBatch):
    """Sequences for one forward pass.

    Attributes:
        tokens: int64 [B, T], as the model sees them.
        places: int64 [B, K], where the chosen ones stand.
        targets: int64 [B, K], what they are; `IGNORE` where a sequence has fewer than K.
        positions: int64 [B], the samples' in the order of training, which dropout follows.
    """

    tokens: NDArray[np.int64]
    places: NDArray[np.int64]
    targets: NDArray[np.int64]
    positions: NDArray[np.int64]


class MaskedRows(Split[MaskedBatch]):
    """A split of text as masked sequences, a token longer than its rows."""

    def __init__(self, rows: Rows, special: SpecialTokens, vocabulary: int, share: float) -> None:
        """Raises `ValueError` where the tokenizer has no begin or no mask token."""
        self.rows, self.share = rows, share
        self._begin, self._mask = special.need("begin"), special.need("mask")
        self._is_special_V = np.zeros(vocabulary, dtype=bool)
        self._is_special_V[list(special.ids)] = True
        self._words = np.flatnonzero(~self._is_special_V)
        self._length = rows.sequence_length + 1
        self._most = predicted(rows.sequence_length, share)

    def __len__(self) -> int:
        return len(self.rows)

    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many tokens of each sequence are chosen. Reads the rows: special tokens are not counted."""
        return self._chosen(~self._is_special_V[self.rows.batch(indices).tokens])

    def batch(self, indices: NDArray[np.int64]) -> MaskedBatch:
        """The sequences with these numbers, with the masks of evaluations."""
        numbers = np.asarray(indices, dtype=np.int64)
        draws = [uniform_draws(EVALUATION_SEED, number, 1, self._draws) for number in numbers.tolist()]
        return self._masked(numbers, np.concatenate(draws), numbers)

    def train_batch(self, indices: NDArray[np.int64], seed: int, first: int) -> MaskedBatch:
        positions = first + np.arange(len(indices), dtype=np.int64)
        return self._masked(indices, uniform_draws(seed, first, len(indices), self._draws), positions)

    @property
    def _draws(self) -> int:
        """Random numbers of a sequence: an order of its tokens; for each chosen one what becomes of it, and a token."""
        return self._length + 2 * self._most

    def _chosen(self, is_word_BT: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many of each sequence's words are chosen, [B]; none where there is no word."""
        words_B: NDArray[np.int64] = is_word_BT.sum(1)
        counts_B = np.array([predicted(int(words), self.share) for words in words_B], dtype=np.int64)
        return np.minimum(counts_B, words_B.astype(np.int64))

    def _masked(
        self, indices: NDArray[np.int64], draws: NDArray[np.float64], positions: NDArray[np.int64]
    ) -> MaskedBatch:
        T, K = self._length, self._most
        text_BT = self.rows.batch(indices).tokens
        tokens_BT = np.concatenate([np.full((len(text_BT), 1), self._begin, dtype=np.int64), text_BT], axis=1)
        order_BT, action_BK, word_BK = draws[:, :T], draws[:, T : T + K], draws[:, T + K :]
        is_word_BT = ~self._is_special_V[tokens_BT]
        # The chosen are the first K of the words in a random order; what is no word stands behind all.
        places_BK = np.argsort(np.where(is_word_BT, order_BT, 1.0), axis=1, kind="stable")[:, :K]
        is_chosen_BK = np.arange(K) < self._chosen(is_word_BT)[:, None]
        own_BK = np.take_along_axis(tokens_BT, places_BK, axis=1)
        other_BK = self._words[(word_BK * len(self._words)).astype(np.int64)]
        seen_BK = np.select([action_BK < MASKED, action_BK < MASKED + RANDOM], [self._mask, other_BK], own_BK)
        np.put_along_axis(tokens_BT, places_BK, np.where(is_chosen_BK, seen_BK, own_BK), axis=1)
        return MaskedBatch(tokens_BT, places_BK, np.where(is_chosen_BK, own_BK, IGNORE), positions)


class MaskedDataset:
    """A prepared text with its splits masked; `text` is what was prepared."""

    def __init__(self, data: MaskedData, text: Dataset) -> None:
        self.text, self.tokenizer = text, text.tokenizer
        self.content_hash, self.vocabulary_size = text.content_hash, text.vocabulary_size
        self.train, self.validation = (
            MaskedRows(rows, self.tokenizer.special, self.vocabulary_size, data.mask_share)
            for rows in (text.train, text.validation)
        )
