"""Rows of tokens, cut from memory-mapped shards in the two layouts.

Shapes: B rows of a batch, T tokens of a row (`sequence_length`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.special_tokens import PAD
from comt_cli.data.split import IGNORE, AnyBatch, Split
from comt_cli.data.token_lists import Unsigned
from comt_cli.errors import UserError


@dataclass(frozen=True)
class Batch(AnyBatch):
    """Rows for one forward pass: `tokens` int64 [B, T]; `targets` int64 [B, T], the next token or `IGNORE`."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]


class Rows(Split[Batch]):
    """One split of a data set as numbered rows. `tokens`, `documents` and `bytes` count what its shards hold.

    `bytes` is the UTF-8 length of the text that the tokens stand for (without what truncation dropped), so that nats a
    token can be turned into bits a byte: nats / ln 2 * tokens / bytes.
    """

    def __init__(self, sequence_length: int, tokens: int, documents: int, text_bytes: int) -> None:
        self.sequence_length = sequence_length
        self.tokens = tokens
        self.documents = documents
        self.bytes = text_bytes

    @property
    def tokens_per_byte(self) -> float:
        """Tokens per byte of text: the factor from a loss per token to one per byte."""
        return self.tokens / self.bytes

    @abstractmethod
    def _fill(self, indices: NDArray[np.int64], tokens_BT: NDArray[np.int64]) -> None:
        """Copy the rows into `tokens_BT`, which is full of padding."""

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        indices = self._check(indices)
        tokens_BT = np.full((len(indices), self.sequence_length), PAD, dtype=np.int64)
        self._fill(indices, tokens_BT)
        targets_BT = np.full_like(tokens_BT, IGNORE)
        targets_BT[:, :-1] = tokens_BT[:, 1:]
        # By the rows' lengths, not by comparing with the padding id: lengths are right whatever the text holds.
        counts_B = self.target_counts(indices)
        targets_BT[np.arange(self.sequence_length) >= counts_B[:, None]] = IGNORE
        return Batch(tokens_BT, targets_BT)


class RowRange(Rows):
    """The rows of another split from `first` up to `last`, which is not among them.

    `tokens_per_byte` is that of the whole split: how many bytes a row stands for is not known.
    """

    def __init__(self, whole: Rows, first: int, last: int) -> None:
        super().__init__(whole.sequence_length, whole.tokens, whole.documents, whole.bytes)
        self._whole, self._first, self._last = whole, first, last

    def __len__(self) -> int:
        return self._last - self._first

    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """As many as the whole split has there."""
        return self._whole.target_counts(self._first + np.asarray(indices, dtype=np.int64))

    def _fill(self, indices: NDArray[np.int64], tokens_BT: NDArray[np.int64]) -> None:
        self._whole._fill(self._first + indices, tokens_BT)


def without_last(rows: Rows, share: float) -> tuple[RowRange, RowRange]:
    """`rows` in two: all but the last `share` of them, and these; at least one row each.

    Raises:
        UserError: there are not two rows.
    """
    if len(rows) < 2:
        raise UserError(
            f"{len(rows)} validation sequence cannot be divided into validation and test",
            "Use more text, a shorter sequence_length, or leave test_share out.",
        )
    first = min(max(len(rows) - round(share * len(rows)), 1), len(rows) - 1)
    return RowRange(rows, 0, first), RowRange(rows, first, len(rows))


class PackedRows(Rows):
    """The stream of all documents, each closed by its end-of-text token, cut in windows of T tokens.

    The incomplete last window is left out. A window may run from one shard into the next.
    """

    def __init__(
        self, shards: Sequence[NDArray[Unsigned]], sequence_length: int, documents: int, text_bytes: int
    ) -> None:
        self._shards = shards
        self._starts = np.concatenate([[0], np.cumsum([len(shard) for shard in shards], dtype=np.int64)])
        super().__init__(sequence_length, int(self._starts[-1]), documents, text_bytes)

    def __len__(self) -> int:
        return self.tokens // self.sequence_length

    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every token but the first is a target."""
        return np.full(len(indices), self.sequence_length - 1, dtype=np.int64)

    def _fill(self, indices: NDArray[np.int64], tokens_BT: NDArray[np.int64]) -> None:
        first_B = indices * self.sequence_length
        shard_B = np.searchsorted(self._starts, first_B, side="right") - 1
        begin_B = first_B - self._starts[shard_B]
        for row, (number, begin) in enumerate(zip(shard_B.tolist(), begin_B.tolist(), strict=True)):
            filled = 0
            while filled < self.sequence_length:
                piece = self._shards[number][begin : begin + self.sequence_length - filled]
                tokens_BT[row, filled : filled + len(piece)] = piece
                filled += len(piece)
                number, begin = number + 1, 0  # noqa: PLW2901 - the window continues in the next shard


class PaddedRows(Rows):
    """One document a row, at most T tokens (preparation truncated it), padded on the right."""

    def __init__(
        self,
        shards: Sequence[NDArray[Unsigned]],
        offsets: Sequence[NDArray[Unsigned]],
        sequence_length: int,
        text_bytes: int,
    ) -> None:
        self._shards = shards
        self._offsets = offsets
        self._starts = np.concatenate([[0], np.cumsum([len(offset) - 1 for offset in offsets], dtype=np.int64)])
        super().__init__(sequence_length, sum(len(shard) for shard in shards), int(self._starts[-1]), text_bytes)

    def __len__(self) -> int:
        return self.documents

    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every token of the document but the first is a target."""
        _, begin, end = self._locate(np.asarray(indices, dtype=np.int64))
        return end - begin - 1

    def _locate(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Shard number, begin and end within the shard of each document."""
        shard_B = (np.searchsorted(self._starts, indices, side="right") - 1).astype(np.int64)
        within_B = indices - self._starts[shard_B]
        begin_B, end_B = np.empty_like(indices), np.empty_like(indices)
        for number in np.unique(shard_B):
            here = shard_B == number
            begin_B[here] = self._offsets[number][within_B[here]]
            end_B[here] = self._offsets[number][within_B[here] + 1]
        return shard_B, begin_B, end_B

    def _fill(self, indices: NDArray[np.int64], tokens_BT: NDArray[np.int64]) -> None:
        places = zip(*(part.tolist() for part in self._locate(indices)), strict=True)
        for row, (number, begin, end) in enumerate(places):
            tokens_BT[row, : end - begin] = self._shards[number][begin:end]
