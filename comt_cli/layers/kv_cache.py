"""Cache for decoding: the keys and values of every layer, in columns that are reserved beforehand.

A row is one text. Texts of unequal length end in the same column, so shorter ones begin later: the columns before a
row's first are padding, and no token of the text sees them.
Shapes: B rows, T new tokens, S columns that are looked at, H heads, K key-value heads, G = H / K, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.kernels.attend import attend
from comt_cli.layers.rotary import rotation_table
from comt_cli.tasks.settings.llama import LlamaShape


class KeyValueCache:
    """Keys and values of `rows` texts of up to `capacity` tokens each, in the type and on the device of `like`.

    One forward pass is `rotation(T)`, then `attend` of every layer, then `advance(T)`. The column that is written next
    is a tensor on the device, so that a pass of one token that was captured in a CUDA graph can be replayed; `stored`
    is the same number for the host, which a replay does not move (see `replayed`). Gradients are not kept.

    Raises `UserError` where the memory does not suffice.
    """

    static_shapes = False
    """Whether attention runs over all columns and always by mask, so that every pass of T tokens is the same kernels:
    what a captured pass needs. Otherwise it runs over the columns that are filled."""

    def __init__(self, shape: LlamaShape, rows: int, capacity: int, theta: float, like: Tensor) -> None:
        if rows < 1 or capacity < 1:
            raise ValueError(f"a cache of {rows} rows and {capacity} columns holds nothing")
        self.rows, self.capacity, self.stored = rows, capacity, 0
        self.is_padded = False
        self._pass: tuple[Tensor, Tensor | None] | None = None
        try:
            self._reserve(shape, theta, like)
        except RuntimeError as error:  # also torch.OutOfMemoryError
            reason = str(error).partition("\n")[0]
            raise UserError(f"cannot reserve a cache for {rows} texts of {capacity} tokens: {reason}") from None

    def _reserve(self, shape: LlamaShape, theta: float, like: Tensor) -> None:

        head_width = shape.width // shape.heads
        self.next_column = torch.zeros((), dtype=torch.int64, device=like.device)
        self.first_B = torch.zeros(self.rows, dtype=torch.int64, device=like.device)
        self._columns_S = torch.arange(self.capacity, device=like.device)
        self._table = rotation_table(self.capacity, head_width, theta, like)
        size = (self.rows, shape.kv_heads, self.capacity, head_width)
        # Zeros, not what happens to lie there: a column that is masked is still multiplied, by zero.
        self.layers = [
            LayerCache(self, *(torch.zeros(size, dtype=like.dtype, device=like.device) for _ in range(2)))
            for _ in range(shape.layers)
        ]

    def begin(self, lengths_B: Sequence[int] | Tensor) -> None:
        """Forget everything and expect texts of these many tokens, padded on the left to the longest.

        Raises `ValueError` where there are not `rows` lengths or one is below 1, `UserError` where one is beyond the
        capacity.
        """
        lengths = [int(length) for length in lengths_B]
        if len(lengths) != self.rows or min(lengths) < 1:
            raise ValueError(f"{lengths} are not the lengths of {self.rows} texts")
        self.rewind(0)
        self.need(max(lengths))
        self.is_padded = min(lengths) != max(lengths)
        self.first_B.copy_(max(lengths) - torch.tensor(lengths))

    def rotation(self, T: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines for the next T columns, each [B, T, E/2]: a row's positions count from its first column.

        Raises `UserError` where the columns do not suffice.
        """
        self.need(T)
        self._pass = None
        position_BT = (self.columns(T) - self.first_B[:, None]).clamp(min=0)
        cos_SE, sin_SE = self._table
        return cos_SE[position_BT], sin_SE[position_BT]

    def columns(self, T: int) -> Tensor:
        """The next T columns, int64 [T]."""
        return self._columns_S[:T] + self.next_column

    def this_pass(self, T: int) -> tuple[Tensor, Tensor | None]:
        """Columns to write in all layers of a pass, [T], and the mask of what is visible, [B, 1, T, S].

        The latter is None where no mask is needed: one token sees all that is stored, and the first
        pass is plain causal attention.
        """
        if self._pass is None:
            needs_none = not self.is_padded and not self.static_shapes and (T == 1 or self.stored == 0)
            self._pass = (self.columns(T), None if needs_none else self._visible(T))
        return self._pass

    def _visible(self, T: int) -> Tensor:
        column_S, own_T1 = self._columns_S[: self.looked_at(T)], self.columns(T)[:, None]
        is_text_B1S = column_S >= self.first_B[:, None, None]
        # A padding token sees itself: seeing nothing would be 0 / 0.
        visible_BTS = (column_S <= own_T1) & is_text_B1S | (column_S == own_T1)
        return visible_BTS[:, None]

    def looked_at(self, T: int) -> int:
        """Number of columns that the next T tokens look at, S."""
        return self.capacity if self.static_shapes else self.stored + T

    def advance(self, T: int) -> None:
        """T columns have been written, in every layer."""
        self.next_column.add_(T)
        self.replayed(T)

    def replayed(self, T: int) -> None:
        """T columns have been written by a captured pass, which moved the device's column but not the host's."""
        self.stored += T
        self._pass = None

    def rewind(self, column: int) -> None:
        """Write at `column` next; what was stored from there on counts no more."""
        self.next_column.fill_(column)
        self.stored = column
        self._pass = None

    def need(self, T: int) -> None:
        """Raise `UserError` unless there is room for T more columns."""
        if self.stored + T > self.capacity:
            raise UserError(f"the cache has room for {self.capacity} tokens a text; {self.stored + T} are needed")


class LayerCache:
    """The keys and values of one layer, each [B, K, capacity, E]."""

    def __init__(self, cache: KeyValueCache, k_BKSE: Tensor, v_BKSE: Tensor) -> None:
        self.cache, self.k_BKSE, self.v_BKSE = cache, k_BKSE, v_BKSE

    def attend(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        """Store `k` and `v` at the next T columns; what the queries find in all that is stored up to their own column.

        Returns [B, H, T, E].
        """
        cache = self.cache
        B, H, T, E = q_BHTE.shape
        K = k_BKTE.shape[1]
        column_T, visible_B1TS = cache.this_pass(T)
        self.k_BKSE.index_copy_(2, column_T, k_BKTE)
        self.v_BKSE.index_copy_(2, column_T, v_BKTE)
        if visible_B1TS is None and T > 1:  # the first pass, which need not look into the cache
            return attend(q_BHTE, k_BKTE, v_BKTE, causal=True)
        S, G = cache.looked_at(T), H // K
        if visible_B1TS is not None and G > 1 and T > 1:
            visible_B1TS = visible_B1TS.repeat(1, 1, G, 1)
        # The G heads that share keys stand behind each other as G * T queries of one head: no key is copied for them.
        q_BKGTE = q_BHTE.reshape(B, K, G * T, E)
        mixed_BKGTE = attend(q_BKGTE, self.k_BKSE[:, :, :S], self.v_BKSE[:, :, :S], visible_B1TS, tokens=T)
        return mixed_BKGTE.reshape(B, H, T, E)
