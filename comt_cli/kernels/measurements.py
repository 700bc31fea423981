"""Reads the measurements of `comt bench`: operations, and training steps of ResNets, with their devices.

`measured/` has the measurements shipped with this program, a copy of results/bench made by `make measured`. `comt
bench` adds measurements of the user's machine to the cache folder, in the same form.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from comt_cli.files import cache_folder, read_csv
from comt_cli.kernels.processors import Device
from comt_cli.kernels.triton.tiles import Key, Kind, Tile

FILE, STEP_FILE = "kernels.csv", "step-images.csv"
SHIPPED = Path(__file__).parent / "measured"
MARGIN = 1.05  # least measured speed-up of a kernel that is used
_GATES = re.compile(r"(none|comt|transponder)(?:-r(\d+))?")

Tuned = tuple[tuple[Key, Tile], ...]  # tiles of Triton's kernels by launch


@dataclass(frozen=True)
class Measured:
    """One operation, or a ResNet's training step, timed on one device in one run.

    own: measured by the user, not shipped. op: for a step its size. kind: of gates: none, `comt` (scalar) or
    `transponder` (channel-wise); rank: width of their bottleneck, or 0. width: channels of the operation's product, M.
    kernel_hash: of the Triton sources, empty for C++; tiles: of these, if not the defaults. step_ms: milliseconds by
    variant, of a forward and a backward pass, or of a step; error: relative error of these (`_error`).
    """

    own: bool
    device: Device
    torch: str
    triton: str
    shape: str
    dtype: str
    op: str
    kind: str = ""
    rank: int = 0
    width: int = 0
    tokens: int = 0
    kernel_hash: str = ""
    tiles: Tuned = ()
    step_ms: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        rank = f", rank {self.rank}" if self.rank else ""
        return f"{f'{self.width} wide' if self.width else self.op}{rank}, {self.dtype}"

    def speed(self, kernel: str, reference: str) -> float:
        return self.step_ms[reference] / self.step_ms[kernel]

    def decides(self, kernel: str, reference: str) -> bool:
        """Whether both were timed precisely enough to compare them: their times differ by more than the error of their
        ratio, or that error is within `MARGIN`. Errors are added as squares, as for independent times."""
        if not {kernel, reference} <= self.step_ms.keys():
            return False
        speed, error = self.speed(kernel, reference), math.hypot(self.error[kernel], self.error[reference])
        return error <= MARGIN - 1 or max(speed, 1 / speed) - 1 > error


def tiles_text(tuned: Iterable[tuple[Key, Tile]]) -> str:
    """Tiles as one line, for measurements and records: `swiglu channel 1376: 16 64 1 8`, separated by `;`."""
    return "; ".join(
        f"{kernel} {kind} {width}: {' '.join(str(number) for number in tile if number is not None)}"
        for (kernel, kind, width), tile in tuned
    )


def tiles_of(text: str) -> Tuned:
    """Inverse of `tiles_text`. Raises `ValueError` for other text."""
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
    """Hash of the sources of an operation's Triton kernels and of their common parts, including tiles."""
    folder = Path(__file__).parent
    files = sorted((folder / op).glob("triton*.py")) + sorted((folder / "triton").glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def own_folder() -> Path:
    """Folder of the measurements of `comt bench` on this machine."""
    return cache_folder() / "measured"


def roots() -> list[Path]:
    """The user's measurements, then those of this program: folders with one folder per device."""
    return [own_folder(), SHIPPED]


def measurements(name: str = FILE) -> tuple[list[Measured], list[Path]]:
    """All measurements of operations, or with `STEP_FILE` of steps, and the files that are damaged."""
    found, damaged = list[Measured](), list[Path]()
    for root in roots():
        for path in sorted(root.glob(f"*/{name}")):
            try:
                found += _read(path, path.stat().st_mtime_ns, root != SHIPPED)
            except (OSError, ValueError, LookupError, TypeError):
                damaged.append(path)
    return found, damaged


@functools.lru_cache(maxsize=64)
def _read(path: Path, _changed: int, own: bool) -> tuple[Measured, ...]:
    """Rows of a file in its present version; raises one of many errors for other content. Rows of one run that differ
    only in their variant are joined: only such times may be compared."""
    found: dict[tuple[Any, ...], Measured] = {}
    for row in read_csv(path):
        if None in row.values():
            raise ValueError("a line is too short")
        device = Device.of(row["device_type"], row["device"], row["device_class"])
        if path.name == STEP_FILE:
            known: object = row["precision"] in ("fp32", "bf16-mixed")  # under autocast, as ResNets are trained
            subject: tuple[Any, ...] = row["precision"].removesuffix("-mixed"), row["size"]
        elif known := _GATES.fullmatch(row["gates"]):
            tuned = row.get("kernel_hash") or "", tiles_of(row.get("tiles") or "")  # missing in older files
            sizes = int(known[2] or 0), int(row["width"]), int(row["tokens"])
            subject = row["dtype"], row["op"], known[1], *sizes, *tuned
        if not known or not row["step_ms"]:  # of a later version, or not measured
            continue
        step_ms = float(row["step_ms"])
        if not 0 < step_ms < math.inf:
            raise ValueError(row["step_ms"])
        of: tuple[Any, ...] = (own, device, row["torch"], row["triton"], row["shape"], *subject)
        measured = found.setdefault((*of, row.get("git_commit"), row.get("rounds")), Measured(*of))
        measured.step_ms[row["variant"]], measured.error[row["variant"]] = step_ms, _error(row, step_ms)
    return tuple(found.values())


def _error(row: Mapping[str, str], step_ms: float) -> float:
    """Relative error of `step_ms`, from its 90 % interval; infinite with too few repetitions for one. In older files
    without it: the distance to the 10th or 90th percentile, or 0."""
    if text := row.get("step_ms_uncertainty"):
        return float(text)
    if row.get("step_ms_settled"):
        return math.inf
    ends = (row.get("step_ms_p10"), row.get("step_ms_p90"))
    return max((abs(float(end) - step_ms) / step_ms for end in ends if end), default=0.0)
