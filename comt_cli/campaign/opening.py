"""What is said before the first run begins: how much there is to do, where, for how long, and how to stop it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from comt_cli.campaign.progress import Start
from comt_cli.words import duration


def opening(start: Start, seconds: float | None) -> list[tuple[str, str]]:
    """(subject, what is said of it): `runs`, `where`, `time`, `stop`. `seconds` is an estimate, None without one."""
    return [
        ("runs", _runs(start)),
        ("where", f"{_at_once(start)}; files in {_folder(start)}"),
        ("time", _time(start, seconds)),
        ("stop", "Ctrl-C saves what runs; the same command goes on from there"),
    ]


def _runs(start: Start) -> str:
    done = len(start.every) - len(start.waiting)
    steps = {spec.settings.train.steps for spec in start.waiting}
    each = f" of {min(steps):,} steps" if len(steps) == 1 else f" of {min(steps):,} to {max(steps):,} steps"
    finished = f", {done} of {len(start.every)} are finished" if done else ""
    return f"{len(start.waiting)} to train{each}{finished} ({_shape(start)})"


def _shape(start: Start) -> str:
    """`comt/table3: 3 rows, 1 column, 2 seeds`."""
    specs = start.every
    tables = {f"{spec.paper}/{spec.table}" for spec in specs}
    sizes = [
        _count({spec.row for spec in specs}, "row"),
        _count({spec.column for spec in specs}, "column"),
        _count({spec.seed for spec in specs}, "seed"),
    ]
    return f"{tables.pop()}: {', '.join(sizes)}" if len(tables) == 1 else f"{len(tables)} tables"


def _count(found: Iterable[object], noun: str) -> str:
    number = len(set(found))
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _at_once(start: Start) -> str:
    number = min(len(start.workers), len(start.waiting))
    device = f"{start.processes} x {start.device}" if start.processes > 1 else start.device
    return f"on {device}" if number == 1 else f"{number} at a time on {device}"


def _folder(start: Start) -> str:
    """The folder that all the runs' readable names have in common."""
    folders = {str(start.runs / spec.relative_path.parts[0] / spec.relative_path.parts[1]) for spec in start.every}
    return folders.pop() if len(folders) == 1 else str(Path(os.path.commonpath(folders)))


def _time(start: Start, seconds: float | None) -> str:
    if seconds is None:
        return "not known before the first steps"
    number = len(start.timed)
    finished = "1 run that is" if number == 1 else f"{number} runs that are"
    return f"about {duration(seconds)}, by {finished} finished"
