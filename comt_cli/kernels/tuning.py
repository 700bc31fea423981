"""Tile sizes for the kernels, from a table that is part of the package: nobody waits for tuning when a run starts.

A row of `tuned.csv` says how a kernel is launched for the product of [t, d] and [n, d]^T, and where that comes from:
the name of the device that it was the fastest on, or "estimated" where nobody has measured yet. What is not in the
table takes the nearest row.
"""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch

from comt_cli.files import write_text
from comt_cli.tasks.settings.llama import LLAMA_SIZES, LlamaSize

TABLE = Path(__file__).with_name("tuned.csv")
ESTIMATED = "estimated"
ROWS = (64, 1024, 65536)
"""The numbers of rows that the table knows: sequences that grow by a token, a prompt, a training batch."""
DTYPES = {"16-bit": torch.bfloat16, "fp32": torch.float32}
"""The table's types (bf16 and fp16 run at one speed), and what they are measured in."""
SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that a program can have on Hopper (compute capability 9.0)."""


@dataclass(frozen=True)
class Tiles:
    """How a kernel is launched: the sizes of its tiles in t, n and d, and in `group` row blocks in turn.

    `registers` caps those of a thread so that two programs fit a multiprocessor; 0: no cap. `same_pass`: whether every
    program computes its rows' u itself.
    """

    rows: int
    columns: int
    inner: int
    group: int
    warps: int
    stages: int
    registers: int
    same_pass: bool

    def shared_bytes(self, itemsize: int, rank: int) -> int:
        """Bytes of shared memory of the tiles in flight, for elements of `itemsize` bytes and `rank` columns of u."""
        beside = max(16, rank) if self.same_pass else 0
        return self.stages * self.inner * (self.rows + self.columns + beside) * itemsize


@dataclass(frozen=True)
class Tuned:
    """A row of the table: `tiles` for `kernel` on [t, d] x [n, d]^T in `dtype` (a key of `DTYPES`), by `source`."""

    kernel: str
    n: int
    d: int
    t: int
    dtype: str
    tiles: Tiles
    source: str

    @property
    def shape(self) -> tuple[str, int, int, int, str]:
        """What the row is for."""
        return self.kernel, self.n, self.d, self.t, self.dtype


# ---- what a launch asks


def configuration(kernel: str, n: int, d: int, t: int, dtype: torch.dtype) -> Tiles:
    """The table's tiles for [t, d] x [n, d]^T, or those of the shape nearest to it in the ratios of n and d.

    The number of rows is first replaced by the nearest of `ROWS`. Raises KeyError for a kernel not in the table.
    """
    known_t = min(ROWS, key=lambda known: _distance(known, max(t, 1)))
    return _nearest(kernel, n, d, known_t, "16-bit" if dtype.itemsize == 2 else "fp32")


@functools.cache
def _nearest(kernel: str, n: int, d: int, t: int, dtype: str) -> Tiles:
    known = [row for row in table() if (row.kernel, row.t, row.dtype) == (kernel, t, dtype)]
    if not known:
        raise KeyError(f"no tiles for the kernel {kernel}")
    return min(known, key=lambda row: _distance(row.n, n) + _distance(row.d, d)).tiles


def _distance(one: int, other: int) -> float:
    return abs(math.log(one / other))


# ---- the table


@functools.cache
def table() -> tuple[Tuned, ...]:
    """The rows of the table in the package."""
    return tuple(read(TABLE))


HEADER = [*(field.name for field in fields(Tuned)[:5]), *(field.name for field in fields(Tiles)), "source"]


def read(path: Path) -> Iterator[Tuned]:
    """The rows that `write` has written."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            tile_rows, columns, inner, group, warps, stages, registers = (int(row[name]) for name in HEADER[5:-2])
            tiles = Tiles(tile_rows, columns, inner, group, warps, stages, registers, row["same_pass"] == "True")
            yield Tuned(row["kernel"], int(row["n"]), int(row["d"]), int(row["t"]), row["dtype"], tiles, row["source"])


def write(rows: Iterable[Tuned], path: Path = TABLE) -> None:
    """Write rows to `path`, each in place of any of its shape there; launches of this process go by them from then on.

    Raises `StorageError` where it cannot be written; it is whole then, as it was.
    """
    known = {row.shape: row for row in (read(path) if path.exists() else ())}
    known |= {row.shape: row for row in rows}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for row in sorted(known.values(), key=lambda row: row.shape):
        writer.writerow([*row.shape, *astuple(row.tiles), row.source])
    write_text(path, text.getvalue())
    for cache in (table, _nearest):
        cache.cache_clear()


def shapes(sizes: Iterable[LlamaSize] = tuple(LLAMA_SIZES.values())) -> list[tuple[int, int]]:
    """The (n, d) of the four products of a block of every size: q, k and v; o; gate and up; down."""
    found = {
        pair
        for size in sizes
        for pair in (
            (3 * size.width, size.width),
            (size.width, size.width),
            (2 * size.ffn_width, size.width),
            (size.width, size.ffn_width),
        )
    }
    return sorted(found)


# ---- where its rows come from


def estimated(n: int, d: int, t: int, dtype: str) -> Tiles:
    """Tiles chosen on paper: large ones where there are rows for them, without spilled registers (compiled for Hopper).

    Few rows: as many programs as possible, since what counts is to read the weights once. A batch: 128 x 128 with two
    programs a multiprocessor, one's gates beside the other's products; 128 x 256 where d is large and gates weigh
    little.
    """
    if dtype == "fp32":
        few, prompt = Tiles(16, 64, 32, 8, 4, 4, 0, True), Tiles(64, 64, 32, 8, 4, 3, 0, True)
        batch = Tiles(128, 64, 16, 8, 8, 3, 0, True)
    else:
        few, prompt = Tiles(16, 64, 128, 8, 4, 4, 0, True), Tiles(64, 64, 64, 8, 4, 4, 0, True)
        wide = d >= 2048 and n >= 2048
        batch = Tiles(128, 256, 64, 8, 8, 3, 0, True) if wide else Tiles(128, 128, 64, 8, 8, 3, 128, True)
    return {64: few, 1024: prompt, 65536: batch}[t]


def candidates(t: int, dtype: str, rank: int) -> list[Tiles]:
    """The tiles worth measuring for t rows: those that Hopper's shared memory holds, each with u both ways."""
    itemsize = DTYPES[dtype].itemsize
    rows = (16, 32, 64) if t <= 64 else (64, 128)
    inners = (64, 128) if itemsize == 2 else (16, 32)
    found = [
        Tiles(row, column, inner, group, _warps(row * column * itemsize), stages, registers, same_pass)
        for row in rows
        for column in (64, 128, 256)
        for inner in inners
        for stages in (3, 4)
        for group in ((8,) if t <= 64 or itemsize == 4 else (8, 16))
        for registers in ((0, 128) if row * column == 128 * 128 else (0,))
        for same_pass in (True, False)
        if row * column <= (128 * 256 if itemsize == 2 else 128 * 128)
    ]
    return [tiles for tiles in found if tiles.shared_bytes(itemsize, rank) <= SHARED_MEMORY]


def _warps(tile_bytes: int) -> int:
    """Four warps, or eight where the accumulators of a larger tile would not fit the registers of four."""
    return 4 if tile_bytes <= 64 * 128 * 2 else 8
