"""Caches for decoding: the keys and values of every layer, in preallocated columns, and token ids where needed.

A row is one text. Texts of unequal length end in the same column, so shorter ones begin later. The columns before a
row's first are padding, which no token of the text attends to.
Shapes: B rows, T new tokens, S attended columns, H heads, K key-value heads, G = H / K, E head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.kernels.attend import attend
from comt_cli.layers.positions import rotation_table
from comt_cli.tasks.settings.language import LlamaShape


@contextlib.contextmanager
def _reserving(rows: int, capacity: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # also torch.OutOfMemoryError
        reason = str(error).partition("\n")[0]
        raise UserError(f"cannot reserve a cache for {rows} texts of {capacity} tokens: {reason}") from None


def _need(capacity: int, tokens: int) -> None:
    if tokens > capacity:
        raise UserError(f"the cache has room for {capacity} tokens per text; {tokens} are needed")


class KeyValueCache:
    """Keys and values of `rows` texts of up to `capacity` tokens each, in the type and on the device of `like`. One
    forward pass is `rotation(T)`, then `attend` of every layer, then `advance(T)`. The next column is a tensor on the
    device, so that a pass of one token can be captured in a CUDA graph and replayed. `stored` is the same number on the
    host, which a replay does not update (see `replayed`). No gradients. Raises `UserError` without enough memory."""

    static_shapes = False
    """Whether attention always covers all columns, with a mask, so that every pass of T tokens runs the same kernels,
    as a captured pass needs. Otherwise it covers only filled columns."""

    def __init__(self, shape: LlamaShape, rows: int, capacity: int, theta: float, like: Tensor) -> None:
        self.rows, self.capacity, self.stored = rows, capacity, 0
        self.is_padded = False
        self._pass: tuple[Tensor, Tensor | None] | None = None
        head_width = shape.width // shape.heads
        with _reserving(rows, capacity):
            self.next_column = torch.zeros((), dtype=torch.int64, device=like.device)
            self.first_B = torch.zeros(rows, dtype=torch.int64, device=like.device)
            self._columns_S = torch.arange(capacity, device=like.device)
            self._tokens_BS = torch.zeros(rows, capacity, dtype=torch.int64, device=like.device)
            self._table = rotation_table(capacity, head_width, theta, like)
            # Zeros, because masked columns are still multiplied, by zero.
            self.layers = [
                LayerCache(self, *(like.new_zeros((rows, shape.kv_heads, capacity, head_width)) for _ in range(2)))
                for _ in range(shape.layers)
            ]

    def begin(self, lengths_B: Sequence[int] | Tensor) -> None:
        """Clear the cache for texts of these lengths, padded on the left. Raises `UserError` beyond the capacity."""
        lengths = [int(length) for length in lengths_B]
        self.rewind(0)
        self.need(max(lengths))
        self.is_padded = min(lengths) != max(lengths)
        self.first_B.copy_(max(lengths) - torch.tensor(lengths))

    def rotation(self, T: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines for the next T columns, each [B, T, E/2]. A row's positions count from its first column.
        Raises `UserError` beyond the capacity."""
        self.need(T)
        self._pass = None
        position_BT = (self.columns(T) - self.first_B[:, None]).clamp(min=0)
        cos_SE, sin_SE = self._table
        return cos_SE[position_BT], sin_SE[position_BT]

    def columns(self, T: int) -> Tensor:
        return self._columns_S[:T] + self.next_column

    def with_previous(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Ids of the next T columns after those of the column before them, and which of these are tokens of their text,
        [B, 1 + T] each. Stores the ids. Raises `UserError` beyond the capacity."""
        T = tokens_BT.shape[1]
        self.need(T)
        column_T, before_1 = self.columns(T), self.columns(1) - 1
        self._tokens_BS.index_copy_(1, column_T, tokens_BT)
        previous_B1 = self._tokens_BS.index_select(1, before_1.clamp(min=0))
        is_text_BU = torch.cat([before_1, column_T]) >= self.first_B[:, None]
        return torch.cat([previous_B1, tokens_BT], 1), is_text_BU

    def this_pass(self, T: int) -> tuple[Tensor, Tensor | None]:
        """Columns to write in all layers, [T], and the mask of visible ones, [B, 1, T, S]. None if no mask is needed:
        one token sees all stored columns, and the first pass is plain causal attention."""
        if self._pass is None:
            visible_B1TS = None
            if self.is_padded or self.static_shapes or (T > 1 and self.stored > 0):
                column_S, own_T1 = self._columns_S[: self.looked_at(T)], self.columns(T)[:, None]
                is_text_B1S = column_S >= self.first_B[:, None, None]
                # A padding token attends to itself: without keys it would be 0 / 0.
                visible_B1TS = ((column_S <= own_T1) & is_text_B1S | (column_S == own_T1))[:, None]
            self._pass = self.columns(T), visible_B1TS
        return self._pass

    def looked_at(self, T: int) -> int:
        """Number of columns that the next T tokens attend to, S."""
        return self.capacity if self.static_shapes else self.stored + T

    def advance(self, T: int) -> None:
        """Count T columns as written, in every layer."""
        self.next_column.add_(T)
        self.replayed(T)

    def replayed(self, T: int) -> None:
        """Count T columns as written by a captured pass, which updated the device's column but not the host's."""
        self.stored, self._pass = self.stored + T, None

    def rewind(self, column: int) -> None:
        """Continue at `column`; columns from there on are discarded."""
        self.next_column.fill_(column)
        self.stored, self._pass = column, None

    def need(self, T: int) -> None:
        _need(self.capacity, self.stored + T)


class LayerCache:
    """Keys and values of one layer, [B, K, capacity, E] each."""

    def __init__(self, cache: KeyValueCache, k_BKSE: Tensor, v_BKSE: Tensor) -> None:
        self.cache, self.k_BKSE, self.v_BKSE = cache, k_BKSE, v_BKSE

    def attend(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        """Store `k` and `v` in the next T columns; attention to all columns up to the query's own, [B, H, T, E]."""
        cache = self.cache
        (B, H, T, E), K = q_BHTE.shape, k_BKTE.shape[1]
        column_T, visible_B1TS = cache.this_pass(T)
        self.k_BKSE.index_copy_(2, column_T, k_BKTE)
        self.v_BKSE.index_copy_(2, column_T, v_BKTE)
        if visible_B1TS is None and T > 1:  # the first pass does not read the cache
            return attend(q_BHTE, k_BKTE, v_BKTE, causal=True)
        S, G = cache.looked_at(T), H // K
        if visible_B1TS is not None and G > 1 and T > 1:
            visible_B1TS = visible_B1TS.repeat(1, 1, G, 1)
        # The G heads that share keys are G * T queries of one head, so that no key is copied.
        q_BKGTE = q_BHTE.reshape(B, K, G * T, E)
        mixed_BKGTE = attend(q_BKGTE, self.k_BKSE[:, :, :S], self.v_BKSE[:, :, :S], visible_B1TS, tokens=T)
        return mixed_BKGTE.reshape(B, H, T, E)


class DecodingCache:
    """Keys and values of `rows` hypotheses of up to `capacity` tokens each. `positions`, [C, D], are added to the
    embeddings; the cache has their device and type, or autocast's. Raises `UserError` if there is not enough memory."""

    def __init__(self, layers: int, rows: int, heads: int, positions_CD: Tensor) -> None:
        capacity, width = positions_CD.shape
        self.rows, self.capacity, self.stored = rows, capacity, 0
        self._positions_CD = positions_CD
        device = positions_CD.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else positions_CD.dtype
        with _reserving(rows, capacity):
            self._L2RHCE = positions_CD.new_empty((layers, 2, rows, heads, capacity, width // heads), dtype=dtype)

    @property
    def position(self) -> Tensor:
        """Position of the next token, [D]. Raises `UserError` beyond the capacity."""
        _need(self.capacity, self.stored + 1)
        return self._positions_CD[self.stored]

    def columns(self, layer: int) -> LayerColumns:
        """Stored columns of a layer and an empty one for the next token."""
        k_RHcE, v_RHcE = self._L2RHCE[layer, :, :, :, : self.stored + 1]
        return LayerColumns(k_RHcE, v_RHcE)

    def advance(self) -> None:
        """Count the next token's column as written, in every layer."""
        self.stored += 1

    def reorder(self, indices_R: Tensor) -> None:
        """Keep the rows with these indices, in this order, each several times or not at all; no more than before."""
        rows = len(indices_R)
        for part_RHCE in self._L2RHCE.view(-1, *self._L2RHCE.shape[2:]):  # one by one, to copy less at once
            filled_RHcE = part_RHCE[:, :, : self.stored]
            filled_RHcE[:rows] = filled_RHcE[indices_R]
        self.rows, self._L2RHCE = rows, self._L2RHCE[:, :, :rows]


class LayerColumns(NamedTuple):
    """Keys and values of one layer, [R, H, c, E] each. The last column is not written yet."""

    k: Tensor
    v: Tensor

    def append(self, k_RH1E: Tensor, v_RH1E: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            self.k[:, :, -1:] = k_RH1E
            self.v[:, :, -1:] = v_RH1E
        return self.k, self.v
