"""What `comt bench` measured, read back: operations, and training steps of ResNets, each with its device.

`measured/` has what was measured for this program, a copy of results/bench that `make measured` makes and a test holds
to it. `comt bench` adds what it measures on the user's machine to the cache folder, in the same form; that comes first.
"""

from __future__ import annotations

import csv
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from comt_cli.files import cache_folder
from comt_cli.kernels.processors import Device, device_of

FILE = "kernels.csv"
STEP_FILE = "step-images.csv"
SHIPPED = Path(__file__).parent / "measured"
_GATES = re.compile(r"(none|comt|transponder)(?:-r(\d+))?")
_FARTHEST_RANK = 4
"""A measurement says nothing about bottlenecks more than so many times as wide, or as narrow."""
_NARROW = 16
"""Nor does it across this width, beyond which the kernels work in other tiles."""


@dataclass(frozen=True)
class DeviceTimes:
    """What was timed on one device, whatever it was computed with.

    Attributes:
        own: by the user, and not for this program.
        step_ms: by variant, milliseconds of a forward and a backward pass, or of a whole training step.
        torch: its version; `triton`: the same, empty where there was none.
    """

    own: bool
    device: Device
    torch: str
    triton: str
    shape: str
    dtype: str
    step_ms: dict[str, float]


@dataclass(frozen=True)
class Measured(DeviceTimes):
    """One operation at one place.

    Attributes:
        kind: of gates: none, `comt` (scalar) or `transponder` (channel-wise).
        rank: their bottleneck's width; 0 without gates.
        width: channels of the operation's product, M.
    """

    op: str
    kind: str
    rank: int
    width: int
    tokens: int


@dataclass(frozen=True)
class MeasuredStep(DeviceTimes):
    """A ResNet's training step.

    Attributes:
        size: the network and its batch, as `comt bench step` names them.
        dtype: of the convolutions: `bf16` under autocast.
    """

    size: str


def own_folder() -> Path:
    """Where `comt bench` keeps what it measures on this machine for the choice: a folder for each device in it."""
    return cache_folder() / "measured"


def roots() -> list[Path]:
    """Folders of measurements, a folder for each device in them: the user's own, then those of this program."""
    return [own_folder(), SHIPPED]


def measurements() -> tuple[list[Measured], list[Path]]:
    """All operations that are known, and those of the user's files that are damaged.

    One file may have variants that another lacks; times of two files, or with two versions of torch, are not mixed.
    Raises as the reader does if a file of the program's own is damaged.
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
    keys = ("op", "shape", "dtype", "gates", "width", "tokens")
    for device, torch, triton, (op, shape, dtype, gates, width, tokens), times in _times(path, keys):
        if (label := _GATES.fullmatch(gates)) is not None:
            place = op, label[1], int(label[2] or 0), int(width), int(tokens)
            rows.append(Measured(own, device, torch, triton, shape, dtype, times, *place))
    return tuple(rows)


@functools.lru_cache(maxsize=64)
def _read_steps(path: Path, _changed: int, own: bool) -> tuple[MeasuredStep, ...]:
    """As `_read_operations`. Of bf16 the measurement under autocast counts, which is how ResNets are trained."""
    rows = []
    for device, torch, triton, (size, shape, precision), times in _times(path, ("size", "shape", "precision")):
        if precision in ("fp32", "bf16-mixed"):
            dtype = precision.removesuffix("-mixed")
            rows.append(MeasuredStep(own, device, torch, triton, shape, dtype, times, size))
    return tuple(rows)


def _times(path: Path, keys: tuple[str, ...]) -> Iterator[tuple[Device, str, str, tuple[str, ...], dict[str, float]]]:
    """For the rows of a file that differ by their variant alone: device, versions of torch and triton, the values of
    `keys`, and the times by variant."""
    groups: dict[tuple[Device, str, str, tuple[str, ...]], dict[str, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, strict=True):
            if None in row.values():
                raise ValueError("a line is too short")
            device = device_of(row["device_type"], row["device"], row["device_class"])
            key = device, row["torch"], row["triton"], tuple(row[key] for key in keys)
            variant, text = row["variant"], row["step_ms"]
            if not text:  # not measured
                continue
            step_ms = float(text)
            if not 0 < step_ms < math.inf:
                raise ValueError(text)
            groups.setdefault(key, {})[variant] = step_ms
    for (device, torch, triton, values), times in groups.items():
        yield device, torch, triton, values, times


def of_nearest_device(rows: Iterable[Row], device: Device) -> list[Row]:
    """Those of `rows` that were measured on the device that says most about `device` (`Device.distance`); of several
    equally near, and of two measurements of one, the user's own, then the first by name. Empty if none of them says
    anything."""
    near = [
        ((distance, not row.own, str(row.device)), row)
        for row in rows
        if (distance := row.device.distance(device)) is not None
    ]
    nearest = min((place for place, _ in near), default=None)
    return [row for place, row in near if place == nearest]


def near_in_rank(rows: Iterable[Measured], rank: int) -> list[Measured]:
    """Those of `rows` whose bottleneck is near enough to `rank` to say something about it."""
    return [
        row
        for row in rows
        if row.rank == rank or (_ratio(row.rank, rank) <= _FARTHEST_RANK and (row.rank > _NARROW) == (rank > _NARROW))
    ]


def nearest(rows: Iterable[Measured], rank: int, width: int) -> Measured:
    """Of `rows`, of which there is one: the nearest rank, then the nearest width, then the most tokens; of equals the
    first."""
    return min(rows, key=lambda row: (_ratio(row.rank, rank), _ratio(row.width, width), -row.tokens, row.shape))


def _ratio(first: int, second: int) -> float:
    first, second = max(1, first), max(1, second)
    return max(first, second) / min(first, second)
