"""Measurements of `comt bench`, read back: operations, and training steps of ResNets, each with its device.

`measured/` has what was measured for this program, a copy of results/bench that `make measured` makes and a test holds
to it. `comt bench` adds what it measures on the user's machine to the cache folder, in the same form.
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
MARGIN = 1.05  # times as fast must a kernel have been measured to be taken, however certain the measurement
_GATES = re.compile(r"(none|comt|transponder)(?:-r(\d+))?")

Tuned = tuple[tuple[Key, Tile], ...]  # tiles of Triton's kernels, and for which launches they are


@dataclass(frozen=True)
class Measured:
    """One operation, or a ResNet's training step, timed on one device in one run.

    own: by the user, and not for this program. op: of a step its size. kind: of gates: none, `comt` (scalar) or
    `transponder` (channel-wise); rank: their bottleneck's width, or 0. width: channels of the operation's product, M.
    kernel_hash: of the Triton kernels' sources, empty of C++; tiles: of these, where not the defaults. step_ms: by
    variant, of a forward and a backward pass, or of a step; error: how far off, as a part (`_error`).
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
        """Speed of the `kernel` as a multiple of the `reference`'s."""
        return self.step_ms[reference] / self.step_ms[kernel]

    def decides(self, kernel: str, reference: str) -> bool:
        """Whether both were timed, and it shows which is the faster: their times differ by more than the error of their
        ratio, or that error is within `MARGIN`. The errors are added as squares, as those of independent times."""
        if not {kernel, reference} <= self.step_ms.keys():
            return False
        speed, error = self.speed(kernel, reference), math.hypot(self.error[kernel], self.error[reference])
        return error <= MARGIN - 1 or max(speed, 1 / speed) - 1 > error


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
    """Hash of the sources of an operation's Triton kernels, and of what all have in common, its tiles included."""
    folder = Path(__file__).parent
    files = sorted((folder / op).glob("triton*.py")) + sorted((folder / "triton").glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def own_folder() -> Path:
    """The folder of what `comt bench` measures on this machine for the choice."""
    return cache_folder() / "measured"


def roots() -> list[Path]:
    """The user's own measurements, then those of this program: folders with a folder for each device."""
    return [own_folder(), SHIPPED]


def measurements(name: str = FILE) -> tuple[list[Measured], list[Path]]:
    """All that is known of operations, or with `STEP_FILE` of steps, and the files that are damaged."""
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
    """The rows of a file, last changed then; raises one of many errors if it is not what the benchmark writes. Rows of
    one run that differ by their variant alone are one: only such times may be divided by each other."""
    found: dict[tuple[Any, ...], Measured] = {}
    for row in read_csv(path):
        if None in row.values():
            raise ValueError("a line is too short")
        device = Device.of(row["device_type"], row["device"], row["device_class"])
        if path.name == STEP_FILE:
            known: object = row["precision"] in ("fp32", "bf16-mixed")  # under autocast, as ResNets are trained
            subject: tuple[Any, ...] = row["precision"].removesuffix("-mixed"), row["size"]
        elif known := _GATES.fullmatch(row["gates"]):
            tuned = row.get("kernel_hash") or "", tiles_of(row.get("tiles") or "")  # older files have neither
            sizes = int(known[2] or 0), int(row["width"]), int(row["tokens"])
            subject = row["dtype"], row["op"], known[1], *sizes, *tuned
        if not known or not row["step_ms"]:  # a later version's, or not measured
            continue
        step_ms = float(row["step_ms"])
        if not 0 < step_ms < math.inf:
            raise ValueError(row["step_ms"])
        of: tuple[Any, ...] = (own, device, row["torch"], row["triton"], row["shape"], *subject)
        measured = found.setdefault((*of, row.get("git_commit"), row.get("rounds")), Measured(*of))
        measured.step_ms[row["variant"]], measured.error[row["variant"]] = step_ms, _error(row, step_ms)
    return tuple(found.values())


def _error(row: Mapping[str, str], step_ms: float) -> float:
    """Error of `step_ms`, as a part of it: the reach of its 90 % interval, infinite where there were too few rounds for
    one. Of older files, which have none: that of the 10th or 90th percentile, or 0."""
    if text := row.get("step_ms_uncertainty"):
        return float(text)
    if row.get("step_ms_settled"):
        return math.inf
    ends = (row.get("step_ms_p10"), row.get("step_ms_p90"))
    return max((abs(float(end) - step_ms) / step_ms for end in ends if end), default=0.0)
