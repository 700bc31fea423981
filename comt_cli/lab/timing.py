"""Timing of alternating variants in one process, round after round, until their times settle; and memory counts.

Other work on a machine only slows repetitions down. The time of a variant is therefore the 20th percentile of its
repetitions: an undisturbed one, as long as fewer than four in five are disturbed. A ratio is that of two such times.
The order is rotated with every round, so that none always follows the same other.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from comt_cli.training.devices import synchronise

Part = Callable[[], object]  # one thing to time: a whole step, a forward pass, one kernel
Key = TypeVar("Key", bound=Hashable)

PERCENT = 20  # the percentile of a variant's repetitions that is its time
SETTLED = 0.03  # times have settled when the 90 % interval of each is at most this share of the time
PATIENCE = 1  # unsettled, up to this many times the requested rounds are added
_HEAD_START = 8192  # side of a matrix product, 1.5 ms on an H200, that keeps a GPU busy while the timed part is queued


def stopwatch_for(device: torch.device, *, head_start: bool = False) -> Callable[[Part], float]:
    """Measures the seconds of a part, by the clock or by CUDA events of the current stream. `head_start` keeps the GPU
    busy until the host has queued the whole part, as within a training step, where the host is ahead."""

    def by_clock(part: Part) -> float:
        synchronise(device)
        start = time.perf_counter()
        part()
        synchronise(device)
        return time.perf_counter() - start

    if device.type != "cuda":
        return by_clock
    busy = torch.zeros(_HEAD_START, _HEAD_START, device=device, dtype=torch.bfloat16) if head_start else torch.zeros(0)

    def by_events(part: Part) -> float:
        with torch.cuda.device(device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            busy @ busy
            begin.record()
            part()
            end.record()
            torch.cuda.synchronize()
            milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3

    return by_events


@dataclass(frozen=True)
class Times:
    """Seconds of one part, one number per round; `cut_short`: fewer rounds than requested."""

    seconds: tuple[float, ...]
    cut_short: bool = False

    def percentile(self, percent: int) -> float:
        """Seconds, without interpolation. p and 100 - p are equally far from the ends."""
        ordered = sorted(self.seconds)
        place = min(percent, 100 - percent) * len(ordered) // 100
        return ordered[place] if percent < 50 else ordered[-1 - place]

    @property
    def undisturbed(self) -> float:
        """Seconds of an undisturbed repetition: the `PERCENT`th percentile."""
        return self.percentile(PERCENT)

    @property
    def reaches(self) -> tuple[float, float]:
        """The distances of the ends of the 90 % interval from `undisturbed`, as shares of it, for any distribution of
        repetitions. The lower is NaN with fewer than 14 repetitions, whose least may be above the true percentile."""
        from scipy.stats import quantile_test

        low, high = quantile_test(self.seconds, p=PERCENT / 100).confidence_interval(0.9)
        return 1 - low / self.undisturbed, high / self.undisturbed - 1

    @property
    def settled(self) -> bool:
        return not self.cut_short and sum(self.reaches) <= SETTLED

    def columns(self, name: str, decimals: int = 4) -> dict[str, float]:
        """Milliseconds by the columns of a row: `step_ms`, `step_ms_p10`, `step_ms_p90`."""
        of = {name: self.undisturbed, f"{name}_p10": self.percentile(10), f"{name}_p90": self.percentile(90)}
        return {column: round(1e3 * seconds, decimals) for column, seconds in of.items()}


def in_turns(
    parts: Mapping[Key, Part], rounds: int, stopwatch: Callable[[Part], float], go_on: Callable[[], bool]
) -> dict[Key, Times]:
    """Time every part once a round, after an untimed one: `rounds` times, and then until the times have settled, at
    most `PATIENCE` times as often again. `go_on` is asked before each repetition: if False, a round ends at once unless
    it is the first, and none starts. Returns the times of all parts in the finished rounds."""
    taken: list[dict[Key, float]] = []

    def times() -> dict[Key, Times]:
        return {key: Times(tuple(turns[key] for turns in taken), len(taken) < rounds) for key in taken[0]}

    for part in parts.values():
        part()
    while len(taken) < rounds * (1 + PATIENCE) and (len(taken) < rounds or unsettled(times())):
        turns: dict[Key, float] = {}
        for key in [*parts][:: -1 if len(taken) % 2 else 1]:
            if taken and not go_on():
                return times()
            turns[key] = stopwatch(parts[key])
        taken.append(turns)
    return times()


def unsettled(times: Mapping[Key, Times]) -> str | None:
    """None if all times have settled, otherwise a phrase that says so."""
    if all(each.settled for each in times.values()):
        return None
    last = [*times.values()][-1]
    return f"{'cut short and ' if last.cut_short else ''}not settled after {len(last.seconds)} rounds"


def quickest(times: Mapping[Key, Times], of: Sequence[Key]) -> Key | None:
    """The fastest of `of`; None if none was timed."""
    return min((key for key in of if key in times), key=lambda key: times[key].undisturbed, default=None)


def compared(name: str, times: Mapping[Key, Times], key: Key, to: Key | None) -> dict[str, float | bool | None]:
    """One time over another and its `reliability`, by columns; all None if one of the two is missing."""
    if to is None or to not in times or key not in times:
        return dict.fromkeys((name, *(f"{name}_{each}" for each in ("spread", "uncertainty", "settled"))))
    one, other = times[key], times[to]
    found = {name: round(one.undisturbed / other.undisturbed, 4), **reliability(name, one, other)}
    return found | {f"{name}_uncertainty": 0.0} if key == to else found  # it is 1, whatever the time


def reliability(name: str, *of: Times) -> dict[str, float | bool | None]:
    """The error of a time or of a ratio of two, by columns: the larger p90 / p10, the half-width of the 90 % interval
    as a share of the value (None with too few repetitions), and whether all have settled. The half-widths of two times
    are added as squares, as if their errors were independent; a disturbance of a round affects both."""
    reach = math.hypot(*(max(each.reaches) for each in of))
    return {
        f"{name}_spread": round(max(each.percentile(90) / each.percentile(10) for each in of), 3),
        f"{name}_uncertainty": None if math.isnan(reach) else round(reach, 4),
        f"{name}_settled": all(each.settled for each in of),
    }


def saved_bytes(forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """Bytes that `forward` keeps for the backward pass: storages, each once and whole, since a view keeps all of it;
    not those of `parameters`, which exist anyway, but copies of them."""
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # a storage freed within the pass would give its address to another

    # Returns nothing: a tensor would be kept by the graph node that it keeps itself, a cycle through C++ that no
    # collector sees, with everything that the pass has saved.
    def pack(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor.detach())

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda nothing: nothing):
        result = forward()
    del result
    return sum(kept.values())


def peak_beyond(part: Part, device: torch.device) -> int | None:
    """The largest memory, in bytes, of `part` on a CUDA device beyond what is held before it; None on other devices."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    part()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def mebibytes(count: int | None) -> float | None:
    """MiB to one decimal; to three below one."""
    return None if count is None else round(count / 2**20, 1 if count >= 2**20 else 3)


def free(device: torch.device) -> None:
    """Return unused memory to the device, so that the next measurement finds all of it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
