"""What a command is about to train, and what is printed of it before the first run begins."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comt_cli.campaign.queue import RunQueue
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.words import duration, plural


@dataclass(frozen=True)
class Workload:
    """What a command is about to train.

    Attributes:
        every: its runs, each once; `waiting` those that have no result yet, in their order.
        before: the other runs, with their results.
        runs: the folder of the run directories.
        workers: the names of the workers: `cuda:0`, `cpu 1`.
        device: the device's name for people, with each worker's threads.
        processes: how many share every run, each on such a device.
    """

    every: Sequence[RunSpec]
    waiting: Sequence[RunSpec]
    before: Sequence[tuple[RunSpec, dict[str, Any]]]
    runs: Path
    workers: Sequence[str]
    device: str
    processes: int = 1

    @classmethod
    def of(cls, queue: RunQueue, workers: Sequence[str], device: str, processes: int = 1) -> Workload:
        """Of a queue from which nothing was taken yet."""
        before = [(each.spec, each.result) for each in queue.summary().outcomes if each.result is not None]
        every, waiting = ([shared.spec for shared in runs] for runs in (queue.every, queue.open))
        return cls(every, waiting, before, queue.runs, workers, device, processes)

    @property
    def timed(self) -> list[tuple[RunSpec, float]]:
        """Those of `before` that were trained to their end as these will be, and the seconds of their steps."""
        as_here = {"state": "done", "device": self.device, "processes": self.processes}
        alike = [(spec, result) for spec, result in self.before if as_here.items() <= result.items()]
        return [(spec, result["train_seconds"]) for spec, result in alike if _is_time(result.get("train_seconds"))]


def _is_time(seconds: object) -> bool:
    """Whether this is a time that something took: `result.json` may come from anywhere."""
    return isinstance(seconds, int | float) and 0 < seconds < math.inf


def opening(workload: Workload, seconds: float | None) -> list[tuple[str, str]]:
    """(subject, text) pairs: `runs`, `where`, `time`, `stop`. `seconds` is an estimate, None without one."""
    return [
        ("runs", _runs(workload)),
        ("where", f"{_at_once(workload)}; files in {_folder(workload)}"),
        ("time", _time(workload, seconds)),
        ("stop", "Ctrl-C saves what runs; the same command resumes from there"),
    ]


def _runs(workload: Workload) -> str:
    done = len(workload.every) - len(workload.waiting)
    steps = {spec.settings.train.steps for spec in workload.waiting}
    each = f" of {min(steps):,} steps" if len(steps) == 1 else f" of {min(steps):,} to {max(steps):,} steps"
    finished = f", {done} of {len(workload.every)} are finished" if done else ""
    return f"{len(workload.waiting)} to train{each}{finished} ({_shape(workload)})"


def _shape(workload: Workload) -> str:
    """`comt/table3: 3 rows, 1 column, 2 seeds`."""
    specs = workload.every
    tables = {f"{spec.paper}/{spec.table}" for spec in specs}
    sizes = [plural(len({getattr(spec, key) for spec in specs}), key) for key in ("row", "column", "seed")]
    points = {point_in_words(spec.point) for spec in specs}
    if len(points) > 1:
        sizes.append(f"a grid of {len(points)}")
    return f"{tables.pop()}: {', '.join(sizes)}" if len(tables) == 1 else f"{len(tables)} tables"


def _at_once(workload: Workload) -> str:
    number = min(len(workload.workers), len(workload.waiting))
    device = f"{workload.processes} x {workload.device}" if workload.processes > 1 else workload.device
    return f"on {device}" if number == 1 else f"{number} at a time on {device}"


def _folder(workload: Workload) -> str:
    """The folder that holds the readable names of all the runs."""
    folders = {
        str(workload.runs / spec.relative_path.parts[0] / spec.relative_path.parts[1]) for spec in workload.every
    }
    return folders.pop() if len(folders) == 1 else str(Path(os.path.commonpath(folders)))


def _time(workload: Workload, seconds: float | None) -> str:
    if seconds is None:
        return "not known before the first steps"
    number = len(workload.timed)
    finished = "1 run that is" if number == 1 else f"{number} runs that are"
    return f"about {duration(seconds)}, by {finished} finished"
