"""Token sequences of any lengths, in memory or mapped into it, and as padded arrays.

Shapes: P lists, B lists of a batch, W columns, T the longest list of a batch and one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.special_tokens import SpecialTokens
from comt_cli.data.split import IGNORE

Unsigned: TypeAlias = np.unsignedinteger[Any]


def token_dtype(vocabulary_size: int) -> np.dtype[Unsigned]:
    """The smallest unsigned type that holds every id, little-endian on any machine."""
    return np.dtype("<u2") if vocabulary_size <= 1 << 16 else np.dtype("<u4")


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
