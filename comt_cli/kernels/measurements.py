"""What `comt bench` measured, read back: which operations come nearest to a device, an operation and a width, and which
training steps of ResNets to a device."""

from __future__ import annotations

import csv
import functools
import math
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import TypeVar

FILE = "kernels.csv"
STEP_FILE = "step-images.csv"
_GATES = re.compile(r"(none|comt|transponder)(?:-r(\d+))?")
_FARTHEST_RANK = 4
"""A measurement says nothing about bottlenecks more than so many times as wide, or as narrow."""
_NARROW = 16
"""Nor does it across this width, beyond which the kernels work in other tiles."""


@dataclass(frozen=True)
class Measured:
    """One operation at one place, whatever it was computed with.

    Attributes:
        kind: of gates: none, `comt` (scalar) or `transponder` (channel-wise).
        rank: their bottleneck's width; 0 without gates.
        width: channels of the operation's product, M.
        step_ms: by variant, milliseconds of a forward and a backward pass.
    """

    device: str
    device_type: str
    op: str
    shape: str
    dtype: str
    kind: str
    rank: int
    width: int
    tokens: int
    step_ms: dict[str, float]


def roots() -> list[Path]:
    """Folders of measurements, a folder a device in each: one's own, then those that came with the program."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_bench"
    own = [Path("runs/results/bench"), Path("results/bench")]
    return [*own, shipped if shipped.is_dir() else package.parent / "results" / "bench"]


@dataclass(frozen=True)
class MeasuredStep:
    """A ResNet's training step, whatever it was computed with.

    Attributes:
        size: the network and its batch, as `comt bench step` names them.
        dtype: of the convolutions: `bf16` under autocast.
        step_ms: by variant, milliseconds of a whole step.
    """

    device: str
    device_type: str
    size: str
    shape: str
    dtype: str
    step_ms: dict[str, float]


def measurements() -> tuple[list[Measured], list[Path]]:
    """All operations that are known, one's own before what came with the program; and the files that are damaged."""
    found: dict[object, Measured] = {}
    rows, damaged = _read_all(FILE, _read_operations)
    for row in rows:
        found.setdefault((row.device, row.op, row.shape, row.dtype, row.kind, row.rank, row.width, row.tokens), row)
    return list(found.values()), damaged


def measured_steps() -> tuple[list[MeasuredStep], list[Path]]:
    """All training steps of ResNets that are known, one's own first, and the files that are damaged or of a version
    that did not say the type of the device. One file may have variants of a step that another lacks: times of two are
    not mixed."""
    return _read_all(STEP_FILE, _read_steps)


Row = TypeVar("Row")


def _read_all(name: str, read: Callable[[Path, int], tuple[Row, ...]]) -> tuple[list[Row], list[Path]]:
    found: list[Row] = []
    damaged = []
    for path in dict.fromkeys(path.resolve() for root in roots() for path in sorted(root.glob(f"*/{name}"))):
        try:
            found += read(path, path.stat().st_mtime_ns)
        except (OSError, ValueError, KeyError, TypeError, csv.Error):
            damaged.append(path)
    return found, damaged


@functools.lru_cache(maxsize=64)
def _read_operations(path: Path, _changed: int) -> tuple[Measured, ...]:
    """The rows of a file, last changed then; raises one of many errors if it is not what the benchmark writes."""
    rows = []
    keys = ("device", "device_type", "op", "shape", "dtype", "gates", "width", "tokens")
    for (device, device_type, op, shape, dtype, gates, width, tokens), times in _step_times(path, keys):
        if (label := _GATES.fullmatch(gates)) is not None:
            rank = int(label[2] or 0)
            rows.append(Measured(device, device_type, op, shape, dtype, label[1], rank, int(width), int(tokens), times))
    return tuple(rows)


@functools.lru_cache(maxsize=64)
def _read_steps(path: Path, _changed: int) -> tuple[MeasuredStep, ...]:
    """As `_read_operations`. Of bf16 the measurement under autocast counts, which is how ResNets are trained."""
    rows = []
    keys = ("device", "device_type", "size", "shape", "precision")
    for (device, device_type, size, shape, precision), times in _step_times(path, keys):
        if not device_type:  # as older rows are, to which newer ones were added
            raise ValueError(device_type)
        if precision in ("fp32", "bf16-mixed"):
            rows.append(MeasuredStep(device, device_type, size, shape, precision.removesuffix("-mixed"), times))
    return tuple(rows)


def _step_times(path: Path, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, float]]]:
    """What the rows of a file that differ by their variant alone have in common, and their times by variant."""
    groups: dict[tuple[str, ...], dict[str, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, strict=True):
            if None in row.values():
                raise ValueError("a line is too short")
            variant, text = row["variant"], row["step_ms"]
            if not text:  # not measured
                continue
            step_ms = float(text)
            if not 0 < step_ms < math.inf:
                raise ValueError(text)
            groups.setdefault(tuple(row[key] for key in keys), {})[variant] = step_ms
    yield from groups.items()


def nearest(rows: Iterable[Measured], device: str, rank: int, width: int) -> Measured | None:
    """Of `rows`, of one operation, type and kind of gates: the likest device, then the nearest rank, then the nearest
    width, then the most tokens. None if no rank is near."""
    near = [
        row
        for row in rows
        if row.rank == rank or (_ratio(row.rank, rank) <= _FARTHEST_RANK and (row.rank > _NARROW) == (rank > _NARROW))
    ]
    if not near:
        return None
    likest = likest_device((row.device for row in near), device)
    return min(
        (row for row in near if row.device == likest),
        key=lambda row: (_ratio(row.rank, rank), _ratio(row.width, width), -row.tokens, row.shape),
    )


def likest_device(names: Iterable[str], device: str) -> str:
    """Of some devices' names the one that is most like that of `device`."""
    return max(set(names), key=lambda name: (SequenceMatcher(None, name, device).ratio(), name))


def _ratio(first: int, second: int) -> float:
    first, second = max(1, first), max(1, second)
    return max(first, second) / min(first, second)


def processor_name() -> str:
    """The processor's model name from the kernel, or the architecture where it does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                if name and name.lower() != "unknown":
                    return name
    except OSError:
        pass
    return f"{platform.machine()} CPU"
