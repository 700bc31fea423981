"""Cache of a decoder: keys and values of self-attention, in every layer, of the tokens so far.

A row is a hypothesis; all rows have as many tokens.
Shapes: L layers, R rows, H heads, C columns, E head width, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from comt_cli.errors import UserError


class DecodingCache:
    """Keys and values of `rows` hypotheses of up to `capacity` tokens each, on the device of `positions`, [C, D], which
    holds what is added to the embedding of each column's token, in its type, or the one that autocast multiplies in.

    Raises `UserError` where the memory does not suffice.
    """

    def __init__(self, layers: int, rows: int, heads: int, positions_CD: Tensor) -> None:
        capacity, width = positions_CD.shape
        if rows < 1 or capacity < 1:
            raise ValueError(f"a cache of {rows} rows and {capacity} columns holds nothing")
        self.rows, self.capacity, self.stored = rows, capacity, 0
        self._positions_CD = positions_CD
        device = positions_CD.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else positions_CD.dtype
        try:
            self._L2RHCE = positions_CD.new_empty((layers, 2, rows, heads, capacity, width // heads), dtype=dtype)
        except RuntimeError as error:  # also torch.OutOfMemoryError
            reason = str(error).partition("\n")[0]
            raise UserError(f"cannot reserve a cache for {rows} texts of {capacity} tokens: {reason}") from None

    @property
    def position(self) -> Tensor:
        """Position of the next token, [D]. Raises `UserError` where there is no room for it."""
        if self.stored == self.capacity:
            raise UserError(f"the cache has room for {self.capacity} tokens a text; {self.stored + 1} are needed")
        return self._positions_CD[self.stored]

    def columns(self, layer: int) -> LayerColumns:
        """Stored columns of a layer, with room for the next token."""
        k_RHcE, v_RHcE = self._L2RHCE[layer, :, :, :, : self.stored + 1]
        return LayerColumns(k_RHcE, v_RHcE)

    def advance(self) -> None:
        """The next token's column has been written, in every layer."""
        self.stored += 1

    def reorder(self, indices_R: Tensor) -> None:
        """Keep the rows with these numbers, in this order; a row may come more than once, or not at all. There may be
        fewer of them than before, not more."""
        rows = len(indices_R)
        if rows > self.rows:
            raise ValueError(f"a cache of {self.rows} rows cannot hold {rows}")
        for part_RHCE in self._L2RHCE.view(-1, *self._L2RHCE.shape[2:]):  # one by one: no copy of all at once
            filled_RHcE = part_RHCE[:, :, : self.stored]
            filled_RHcE[:rows] = filled_RHcE[indices_R]
        self.rows, self._L2RHCE = rows, self._L2RHCE[:, :, :rows]


class LayerColumns(NamedTuple):
    """Keys and values of one layer, [R, H, c, E] each, of which the last column is still to be written."""

    k: Tensor
    v: Tensor

    def append(self, k_RH1E: Tensor, v_RH1E: Tensor) -> tuple[Tensor, Tensor]:
        """Write the last column; all columns."""
        with torch.no_grad():
            self.k[:, :, -1:] = k_RH1E
            self.v[:, :, -1:] = v_RH1E
        return self.k, self.v
