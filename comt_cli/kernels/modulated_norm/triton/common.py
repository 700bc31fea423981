"""What the passes share: their operands and tiles, and what is read from rows.

Shapes as in `__init__`.
"""

# Triton knows tuples as long as it can count, and builds them by adding.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from comt_cli.kernels.operators import unit_stride
from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.gates import sigmoid

LEAST_DOT = 16
"""The smallest side of a product that the tensor cores take."""

PROGRAMS = 1056
"""Programs that share the pixels, at most: eight for each of an H200's 132 processors."""

BUSY = 264
"""Programs that a GPU should have: two for each of an H200's processors."""

LEAST_ROWS = 64
"""A program that sums over pixels takes at least so many, or writing its sums would be work to speak of: but for a
batch so small that there would be fewer than `BUSY` programs."""

WHOLE = {"apply": 1024, "sums": 256}
"""The widest rows, in channels, that a program of these kernels keeps in registers; half of that for sums in fp32."""

COLUMNS = 16
"""Columns of the window gate that are read at a time, and channels whose partial sums a program adds up."""

PARTS = 64
"""Programs' partial sums that are added up at a time."""


class Tile(NamedTuple):
    """Rows and channels of a tile, and the warps of a program."""

    rows: int
    channels: int
    warps: int


def tile(kernel: str, C: int, pixel: bool, dtype: torch.dtype) -> Tile:
    """The tile of a kernel ("statistics", "apply", "rows", "sums", "gradient") for C channels, with a `pixel` gate or
    without.

    16 elements a thread, and 8 where sums over pixels of a pixel gate stay in registers too: so on Hopper (compute
    capability 9.0) hardly anything spills, which is the compiler's count, not a measurement. fp32 takes more.
    """
    width, elements = max(LEAST_DOT, triton.next_power_of_2(C)), 2048
    if pixel and kernel in WHOLE:
        in_fp32 = kernel == "sums" and dtype == torch.float32
        width = width if width <= WHOLE[kernel] // (1 + in_fp32) else 128
        elements = 1024 if kernel == "sums" else elements
    else:
        width = min(width, 128)
    rows = max(LEAST_DOT, min(64, (elements if dtype == torch.float32 else 2048) // width))
    return Tile(rows, width, min(16, max(4, 4 * rows * width // elements)))


def groups(P: int, tile: Tile, programs: int = PROGRAMS, shares: int = 1) -> tuple[int, int]:
    """How many groups of rows there are, and the row blocks of each. At most `programs` with the `shares` that each
    group's channels are divided among; of at least `LEAST_ROWS` rows, or as many as leave `BUSY` programs."""
    blocks = triton.cdiv(P, tile.rows)
    each = min(triton.cdiv(LEAST_ROWS, tile.rows), blocks * shares // BUSY)
    each = max(1, each, triton.cdiv(blocks, max(1, programs // shares)))
    return triton.cdiv(blocks, each), each


class Operands:
    """What both passes are given, as the kernels want it: parameters without gaps, the product's columns side by side.

    Raises ValueError where they do not fit each other, or where there is no pixel.

    Attributes:
        sizes: P, C and H. R: rows of A, 0 without a pixel gate.
        source: what z is computed from: the product, its u, and the window gate's weights.
        pixel: the two layers of the pixel gate.
    """

    def __init__(
        self, product_PK: Tensor, window_H: Tensor | None, A_RC: Tensor | None, b_R: Tensor | None,
        weight_C: Tensor | None, C: int,
    ) -> None:  # fmt: skip
        P, H = len(product_PK), 0 if window_H is None else window_H.numel()
        if P == 0:
            raise ValueError("a batch normalisation of no pixels has no mean: at least one is needed")
        if product_PK.shape[1] < C + H:
            raise ValueError(f"a product of {product_PK.shape[1]} columns for {C} channels and {H} of the gate")
        if (None if A_RC is None else A_RC.shape) != (None if b_R is None else (b_R.numel(), C)):
            raise ValueError("the pixel gate's layers A and b do not fit each other and the channels")
        window_H, *self.pixel, self.weight_C = (
            None if tensor is None else tensor.contiguous() for tensor in (window_H, A_RC, b_R, weight_C)
        )
        self.product_PK = unit_stride(product_PK)
        self.sizes, self.R = (P, C, H), 0 if A_RC is None else len(A_RC)
        self.source = self.product_PK, self.product_PK[:, C:], window_H

    def tile(self, kernel: str, *, pixel: bool | None = None) -> Tile:
        """The tile of a kernel, by its name."""
        return tile(kernel, self.sizes[1], self.R > 0 if pixel is None else pixel, self.product_PK.dtype)

    def run(
        self, kernel: Any, grid: tuple[int, ...], *arguments: Any, tile: Tile, rows: list[Tensor], **constants: Any
    ) -> None:
        """Launch a kernel with its arguments. UNIT divides the row strides of the product and of `rows`."""
        constants |= {
            "R": self.R,
            "BH": min(COLUMNS, triton.next_power_of_2(max(self.sizes[2], 1))),
            "BT": tile.rows,
            "BN": tile.channels,
            "UNIT": math.gcd(launch.LONGEST_VECTOR, *(tensor.stride(0) for tensor in (self.product_PK, *rows))),
        }
        named = {name: constants[name] for name in kernel.arg_names[len(arguments) :]}
        with torch.cuda.device_of(self.product_PK):
            kernel[grid](*arguments, **named, num_warps=tile.warps, num_stages=2)


# ---- on the device


@triton.jit
def load_tile(ptr, stride, channels, inside_T, inside_N):
    """A tile of the rows that `ptr` points to the first of, [BT, BN] in fp32; zeros outside."""
    BT: tl.constexpr = inside_T.shape[0]
    pointers = ptr + tl.arange(0, BT)[:, None] * stride + channels[None, :]
    return tl.load(pointers, mask=inside_T[:, None] & inside_N[None, :], other=0.0).to(tl.float32)


@triton.jit
def window_gate(u_ptr, stride, row, window_ptr, inside_T, H, BH: tl.constexpr):
    """gw of the row block that begins with `row`, [BT]."""
    BT: tl.constexpr = inside_T.shape[0]
    if window_ptr is None:
        return tl.full([BT], 1.0, tl.float32)
    else:
        logits = tl.zeros([BT], tl.float32)
        for start in range(0, H, BH):
            columns = start + tl.arange(0, BH)
            u = load_tile(u_ptr + row * stride, stride, columns, inside_T, columns < H)
            weights = tl.load(window_ptr + columns, mask=columns < H, other=0.0).to(tl.float32)
            logits += tl.sum(sigmoid(u) * weights[None, :], 1)
        return sigmoid(logits)


@triton.jit
def store_tile(ptr, stride, channels, inside_T, inside_N, value):
    """Writes what `load_tile` would read."""
    BT: tl.constexpr = inside_T.shape[0]
    pointers = ptr + tl.arange(0, BT)[:, None] * stride + channels[None, :]
    tl.store(pointers, value, mask=inside_T[:, None] & inside_N[None, :])


@triton.jit
def load_statistics(mean_ptr, var_ptr, channels, inside_N, epsilon):
    """mean and rstd of the channels, [BN] each."""
    mean = tl.load(mean_ptr + channels, mask=inside_N, other=0.0)
    var = tl.load(var_ptr + channels, mask=inside_N, other=0.0)
    return mean, 1 / tl.sqrt(var + epsilon)


@triton.jit
def load_weight(weight_ptr, channels, inside_N):
    """The channels' weights, [BN] in fp32; ones where there are none."""
    BN: tl.constexpr = inside_N.shape[0]
    if weight_ptr is None:
        return tl.full([BN], 1.0, tl.float32)
    else:
        return tl.load(weight_ptr + channels, mask=inside_N, other=0.0).to(tl.float32)


@triton.jit
def load_first(A_ptr, k, C, channels, inside_N):
    """The channels' weights in row k of the pixel gate's first layer, [BN] in fp32."""
    return tl.load(A_ptr + k * C + channels, mask=inside_N, other=0.0).to(tl.float32)


@triton.jit
def nothing_yet(BT: tl.constexpr, R: tl.constexpr):
    """R vectors of zeros, [BT] each."""
    vectors = ()
    for _ in tl.static_range(R):
        vectors = vectors + (tl.zeros([BT], tl.float32),)
    return vectors


@triton.jit
def add_each(vectors, more, R: tl.constexpr):
    """The R sums of two vectors."""
    sums = ()
    for k in tl.static_range(R):
        sums = sums + (vectors[k] + more[k],)
    return sums


@triton.jit
def first_layer(n, A_ptr, C, channels, inside_N, R: tl.constexpr):
    """n A^T of a tile, R vectors [BT].

    R sums along rows: a few operations an element. A product on the tensor cores would be one of 16 columns, for which
    every warp would hold the whole tile, and a tile [BT, R] of such narrow rows takes more registers than it has
    numbers.
    """
    t = ()
    for k in tl.static_range(R):
        t = t + (tl.sum(n * load_first(A_ptr, k, C, channels, inside_N)[None, :], 1),)
    return t


@triton.jit
def second_layer(t, b_ptr, R: tl.constexpr):
    """The pixel gate of a row block, [BT], from the R vectors t."""
    logits = tl.zeros_like(t[0])
    for k in tl.static_range(R):
        logits += sigmoid(t[k]) * tl.load(b_ptr + k).to(tl.float32)
    return sigmoid(logits)
