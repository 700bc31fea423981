"""The gates of a product as the functions in C++ take them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from comt_cli.kernels.cpu.calls import TYPES, row, type_code
from comt_cli.kernels.gates import Modulation


class _Arguments(ctypes.Structure):  # GateArguments in gates.h
    _fields_ = (
        ("Wc", ctypes.c_void_p),
        ("ws", ctypes.c_void_p),
        ("Wc_row_stride", ctypes.c_int64),
        ("Wc_column_stride", ctypes.c_int64),
        ("ws_row_stride", ctypes.c_int64),
        ("ws_column_stride", ctypes.c_int64),
        ("Wc_type", ctypes.c_int32),
        ("ws_type", ctypes.c_int32),
        ("gated", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class Gates:
    """The gates of one call, and the gradients that they will have. Keeps what `address` points to alive.

    Wc and ws may be of any float type, and have any strides.

    Attributes:
        width: columns of the sites, M.
        columns: of the sites and of what the gates read, M + S R.
    """

    def __init__(self, modulation: Modulation, widths: Sequence[int]) -> None:
        Wc, ws, scale, rank, gated = modulation
        if len(gated) != len(widths) or len(gated) > 63:
            raise ValueError(f"{len(gated)} marks of gated sites for {len(widths)} widths (at most 63)")
        self.count, self.width = sum(gated), sum(widths)
        self.columns = self.width + modulation.columns
        self.channels = sum(n for n, has in zip(widths, gated, strict=True) if has)
        mask = sum(1 << site for site, has in enumerate(gated) if has)
        self.rank = rank if mask else 0
        Wc, ws = (Wc, ws) if mask else (None, None)
        if (Wc is not None or ws is not None) and rank < 1:
            raise ValueError(f"gates of rank {rank}")
        self.Wc, self.ws = (W if W is None or W.dtype in TYPES else W.float() for W in (Wc, ws))
        Wc_address, Wc_strides, Wc_type = self._matrix(self.Wc, self.channels, "Wc")
        ws_address, ws_strides, ws_type = self._matrix(self.ws, self.count, "ws")
        self._arguments = _Arguments(
            Wc_address, ws_address, *Wc_strides, *ws_strides, Wc_type, ws_type, mask, self.rank, scale
        )
        self.address = ctypes.addressof(self._arguments)

    def _matrix(self, W: Tensor | None, rows: int, name: str) -> tuple[int | None, tuple[int, ...], int]:
        """Address, strides and type; of nothing where there is no such matrix."""
        if W is None:
            return None, (0, 0), 0
        if W.shape != (rows, self.rank):
            raise ValueError(f"{name} has the shape {tuple(W.shape)}, not {(rows, self.rank)}")
        return W.data_ptr(), W.stride(), type_code(W)

    def product(self, product_TC: Tensor) -> tuple[int, int, int]:
        """Rows, address and row stride of a product, which must have at least the columns of its sites and gates."""
        rows, columns = product_TC.shape
        if columns < self.columns:
            raise ValueError(f"the product has {columns} columns, fewer than the {self.columns} of its sites and gates")
        return (rows, *row(product_TC, rows, columns, product_TC.dtype, "the product"))

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Uninitialised dWc and dws, of no elements where there is no Wc or no ws."""
        return (
            torch.empty(0) if self.Wc is None else torch.empty(self.channels, self.rank),
            torch.empty(0) if self.ws is None else torch.empty(self.count, self.rank),
        )
