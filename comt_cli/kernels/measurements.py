"""What `comt bench` measured, read back: operations, and training steps of ResNets, each with its device.

Of an operation's Triton kernels only what was measured with their present sources counts, at the width at hand.

`measured/` has what was measured for this program, a copy of results/bench that `make measured` makes and a test holds
to it. `comt bench` adds what it measures on the user's machine to the cache folder, in the same form. Of the two that
comes first which is nearer to what is asked (`nearest`, `nearest_steps`); of equals the user's own.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from comt_cli.files import cache_folder
from comt_cli.kernels.processors import Device, device_of
from comt_cli.kernels.triton.tiles import Key, Kind, Tile

FILE = "kernels.csv"
STEP_FILE = "step-images.csv"
SHIPPED = Path(__file__).parent / "measured"
MARGIN = 1.05
"""How many times as fast a kernel must have been measured to be taken, however certain the measurement."""
_GATES = re.compile(r"(none|comt|transponder)(?:-r(\d+))?")
_FARTHEST = 4
"""A measurement says nothing about bottlenecks more than so many times as wide, or as narrow; nor, of a GPU, about so
many times as many tokens, or as few."""
_NARROW = 16
"""Nor does it across this width, beyond which the kernels work in other tiles."""

Tuned = tuple[tuple[Key, Tile], ...]
"""Tiles of Triton's kernels, and for which launches they are."""


@dataclass(frozen=True)
class DeviceTimes:
    """What was timed on one device in one run, whatever it was computed with.

    Attributes:
        own: by the user, and not for this program.
        step_ms: by variant, milliseconds of a forward and a backward pass, or of a whole training step.
        error: by variant, how far the true time may lie from that, as a part of it (`_error`).
        torch: its version; `triton`: the same, empty where there was none.
    """

    own: bool
    device: Device
    torch: str
    triton: str
    shape: str
    dtype: str
    step_ms: dict[str, float]
    error: dict[str, float]

    def speed(self, kernel: str, reference: str) -> float:
        """How many times as fast as `reference` the `kernel` was."""
        return self.step_ms[reference] / self.step_ms[kernel]

    def decides(self, kernel: str, reference: str) -> bool:
        """Whether it shows which of the two is the faster: their times differ by more than the error of their ratio, or
        that error is within `MARGIN`. The errors are added as squares, as those of independent times."""
        speed, error = self.speed(kernel, reference), math.hypot(self.error[kernel], self.error[reference])
        return error <= MARGIN - 1 or max(speed, 1 / speed) - 1 > error


@dataclass(frozen=True)
class Measured(DeviceTimes):
    """One operation at one place.

    Attributes:
        kind: of gates: none, `comt` (scalar) or `transponder` (channel-wise).
        rank: their bottleneck's width; 0 without gates.
        width: channels of the operation's product, M.
        kernel_hash: of the sources of the Triton kernels (`kernel_hash`); empty of C++.
        tiles: of these, where they were not the defaults.
    """

    op: str
    kind: str
    rank: int
    width: int
    tokens: int
    kernel_hash: str = ""
    tiles: Tuned = ()


@dataclass(frozen=True)
class MeasuredStep(DeviceTimes):
    """A ResNet's training step.

    Attributes:
        size: the network and its batch, as `comt bench step` names them.
        dtype: of the convolutions: `bf16` under autocast.
    """

    size: str


def tiles_text(tuned: Iterable[tuple[Key, Tile]]) -> str:
    """Tiles in a line, as measurements and records have them: `swiglu channel 1376: 16 64 1 8`, and `;` between two."""
    return "; ".join(
        f"{kernel} {kind} {width}: {' '.join(str(number) for number in tile if number is not None)}"
        for (kernel, kind, width), tile in tuned
    )


def tiles_of(text: str) -> Tuned:
    """The tiles that are written so. Raises `ValueError` where they are not."""
    found = []
    for part in text.split("; ") if text else []:
        name, _, numbers = part.partition(": ")
        kernel, kind, width = name.split()
        if kind not in ("none", "scalar", "channel"):
            raise ValueError(part)
        found.append(((kernel, cast(Kind, kind), int(width)), Tile(*map(int, numbers.split()))))
    return tuple(found)


@functools.cache
def kernel_hash(op: str) -> str:
    """Of the sources of an operation's Triton kernels, and of what all have in common, its tiles included."""
    folder = Path(__file__).parent
    files = sorted((folder / op).glob("triton*.py")) + sorted((folder / "triton").glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def own_folder() -> Path:
    """Where `comt bench` keeps what it measures on this machine for the choice: a folder for each device in it."""
    return cache_folder() / "measured"


def roots() -> list[Path]:
    """Folders of measurements, a folder for each device in them: the user's own, then those of this program."""
    return [own_folder(), SHIPPED]


def measurements() -> tuple[list[Measured], list[Path]]:
    """All operations that are known, and those of the user's files that are damaged.

    One file may have variants that another lacks; times of two files or runs, or with two versions of torch, are not
    mixed. Raises as the reader does if a file of the program's own is damaged.
    """
    return _read_all(FILE, _read_operations)


def measured_steps() -> tuple[list[MeasuredStep], list[Path]]:
    """The same of training steps of ResNets."""
    return _read_all(STEP_FILE, _read_steps)


Row = TypeVar("Row", bound=DeviceTimes)


def _read_all(name: str, read: Callable[[Path, int, bool], tuple[Row, ...]]) -> tuple[list[Row], list[Path]]:
    found: list[Row] = []
    damaged = []
    for root in roots():
        for path in sorted(root.glob(f"*/{name}")):
            try:
                found += read(path, path.stat().st_mtime_ns, root != SHIPPED)
            except (OSError, ValueError, KeyError, TypeError, csv.Error):
                if root == SHIPPED:
                    raise
                damaged.append(path)
    return found, damaged


@functools.lru_cache(maxsize=64)
def _read_operations(path: Path, _changed: int, own: bool) -> tuple[Measured, ...]:
    """The rows of a file, last changed then; raises one of many errors if it is not what the benchmark writes."""
    rows = []
    keys, of_triton = ("shape", "dtype", "op", "gates", "width", "tokens"), ("kernel_hash", "tiles")
    for common, (shape, dtype, op, gates, width, tokens, sources, tiles), times in _times(path, keys, of_triton):
        if (label := _GATES.fullmatch(gates)) is not None:
            device_times = own, *common, shape, dtype, *times
            of = label[1], int(label[2] or 0), int(width), int(tokens)
            rows.append(Measured(*device_times, op, *of, kernel_hash=sources, tiles=tiles_of(tiles)))
    return tuple(rows)


@functools.lru_cache(maxsize=64)
def _read_steps(path: Path, _changed: int, own: bool) -> tuple[MeasuredStep, ...]:
    """As `_read_operations`. Of bf16 the measurement under autocast counts, which is how ResNets are trained."""
    rows = []
    for common, (shape, precision, size), times in _times(path, ("shape", "precision", "size")):
        if precision in ("fp32", "bf16-mixed"):
            rows.append(MeasuredStep(own, *common, shape, precision.removesuffix("-mixed"), *times, size))
    return tuple(rows)


_Common = tuple[Device, str, str]


def _times(
    path: Path, keys: tuple[str, ...], later: tuple[str, ...] = ()
) -> Iterator[tuple[_Common, tuple[str, ...], tuple[dict[str, float], dict[str, float]]]]:
    """For the rows of a file that differ by their variant alone: device and versions of torch and triton, the values of
    `keys`, those of `later`, which older files lack, and the times and their errors by variant.

    Rows of one run are of one commit and were timed in as many rounds: only such times may be divided by each other. A
    file may have rows of several, since a run of some variants is added to what is there.
    """
    groups: dict[tuple[Any, ...], tuple[dict[str, float], dict[str, float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, strict=True):
            if None in row.values():
                raise ValueError("a line is too short")
            device = device_of(row["device_type"], row["device"], row["device_class"])
            run = row.get("git_commit"), row.get("rounds")
            values = *(row[key] for key in keys), *(row.get(key) or "" for key in later)
            key = (device, row["torch"], row["triton"]), values, run
            variant, text = row["variant"], row["step_ms"]
            if not text:  # not measured
                continue
            step_ms = float(text)
            if not 0 < step_ms < math.inf:
                raise ValueError(text)
            times, errors = groups.setdefault(key, ({}, {}))
            times[variant], errors[variant] = step_ms, _error(row, step_ms)
    for (common, values, _), both in groups.items():
        yield common, values, both


def _error(row: Mapping[str, str], step_ms: float) -> float:
    """How far the true time may lie from `step_ms`, as a part of it: the reach of its 90 % interval, or, in files of an
    older version, of its ratio's to another time, which reaches farther. Infinite where there were too few rounds for
    an interval. Of a version that recorded none it is the reach of the 10th or 90th percentile; 0 without those."""
    for value in ("step_ms", "step_ratio_to_plain_compiled"):
        if text := row.get(f"{value}_uncertainty"):
            return float(text)
        if row.get(f"{value}_settled"):
            return math.inf
    ends = (row.get("step_ms_p10"), row.get("step_ms_p90"))
    return max((abs(float(end) - step_ms) / step_ms for end in ends if end), default=0.0)


def about(rows: Iterable[Row], device: Device) -> list[Row]:
    """Those of `rows` that say something about `device` (`Device.distance`)."""
    return [row for row in rows if row.device.distance(device) is not None]


def near_in_rank(rows: Iterable[Measured], rank: int) -> list[Measured]:
    """Those of `rows` whose bottleneck is near enough to `rank` to say something about it."""
    return [
        row
        for row in rows
        if row.rank == rank or (_ratio(row.rank, rank) <= _FARTHEST and (row.rank > _NARROW) == (rank > _NARROW))
    ]


def of_these_kernels(rows: Iterable[Measured], width: int, tokens: int | None) -> list[Measured]:
    """Those of `rows` that are of the Triton kernels as they are now, at this width and about as many tokens."""
    return [
        row
        for row in rows
        if (row.kernel_hash, row.width) == (kernel_hash(row.op), width)
        and (tokens is None or _ratio(row.tokens, tokens) <= _FARTHEST)
    ]


def nearest_origin(rows: Sequence[Measured], gpu: Device, versions: tuple[str, str]) -> list[Measured]:
    """Of `rows`, which all are about `gpu`, those of the nearest origin: the user's on such a card under these versions
    of torch and triton; any on such a card; this program's on a card of its class."""
    here = [row for row in rows if row.device.name == gpu.name]
    own = [row for row in here if row.own and (row.torch, row.triton) == versions]
    return own or here or [row for row in rows if not row.own]


def nearest(rows: Iterable[Measured], device: Device, rank: int, width: int, tokens: int | None = None) -> Measured:
    """Of `rows`, of which there is one and which all are about `device`: a device of its name, the nearest rank, the
    nearest width, the nearest number of tokens where one is given, the user's own, the nearest number of threads, the
    most tokens; of equals the first."""

    def place(row: Measured) -> tuple[Any, ...]:
        differs, threads = _distance(row, device)
        shape = _ratio(row.rank, rank), _ratio(row.width, width), _ratio(row.tokens, tokens or row.tokens)
        return differs, *shape, not row.own, threads, str(row.device), -row.tokens, row.shape

    return min(rows, key=place)


def nearest_steps(rows: Sequence[MeasuredStep], device: Device) -> list[MeasuredStep]:
    """Of `rows`, which all are about `device`, one for each size: those of a device of its name, or, where there are
    none, of the others; of one size the user's own, then the nearest number of threads; of equals the first."""

    def place(row: MeasuredStep) -> tuple[Any, ...]:
        differs, threads = _distance(row, device)
        return differs, not row.own, threads, str(row.device), row.shape

    found: dict[str, MeasuredStep] = {}
    for row in sorted(rows, key=place):
        found.setdefault(row.size, row)
    differs = min((place(row)[0] for row in rows), default=False)
    return [row for row in found.values() if place(row)[0] == differs]


def _distance(row: DeviceTimes, device: Device) -> tuple[bool, float]:
    distance = row.device.distance(device)
    assert distance is not None
    return distance


def _ratio(first: int, second: int) -> float:
    first, second = max(1, first), max(1, second)
    return max(first, second) / min(first, second)
