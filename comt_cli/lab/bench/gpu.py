"""What is worth running on a GPU machine that is lent for minutes: tests, tuning, speeds, a table.

Each part is a command in a process of its own with a time limit, so that what one leaves in memory, or its failure, is
no other's. A file says which parts are done: the next call goes on there. Without a CUDA device the parts that need one
are left out, and the others run at the sizes that are for a CPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from comt_cli.commit import git_commit
from comt_cli.files import write_text
from comt_cli.lab.bench.record import beside_goals
from comt_cli.lab.bench.runner import Deadline, Failed, Outcome, measuring
from comt_cli.lab.bench.tables import TABLES

ROOT = Path(__file__).resolve().parents[3]
"""The repository, whose tests are run."""
LARGEST_FILE = 16 * 2**20
"""What such machines often take and give back in one file, in bytes."""
_GRACE, _ENDING = 10.0, 10.0
"""Seconds for a part to end after it was asked to, and for what is written after all parts."""
_LEAST = 45.0
"""Seconds in which what resumes begins at all."""
_LAST = 25.0
"""Seconds that what a benchmark has begun may take when its own time is up: it is ended where it takes longer."""
_TAIL = 15
_TAKEN = {".csv", ".json", ".jsonl", ".log", ".md", ".pdf", ".png", ".tex", ".txt"}
_OUTCOME = re.compile(r"^\[gw\d+\] \[ *\d+%\] ([A-Z]+) ", re.MULTILINE)
"""A line of pytest's about one test, in several processes."""
INCOMPLETE = re.compile("left out for want of time|cut short and not settled")
"""What a benchmark says that ends well and has not measured all of it, its time being up."""


@dataclass(frozen=True)
class Part:
    """A command, as words behind `python -m`, and how many seconds it may take. `{seconds}` in a word: how many it has
    when it begins, less what it takes to end. `needs_cuda`: there is nothing to it without a CUDA device; `after`: nor
    before that part is done. `resumes`: what is stopped goes on in the next call."""

    name: str
    seconds: float
    words: tuple[str, ...]
    needs_cuda: bool = False
    after: str | None = None
    resumes: bool = False


def parts_for(folder: Path, *, on_cuda: bool) -> list[Part]:
    """All parts in their order (`measured.yaml`), whose files go to `folder`."""
    filled = {"results": folder / "results", "runs": folder / "runs", "processes": min(12, os.cpu_count() or 1)}
    parts = []
    for of in TABLES["gpu"]:
        words = tuple(
            word.format(**filled, seconds="{seconds}")  # which is known when it begins
            for word in shlex.split(of["command"])
        )
        if of.get("on") != ("cpu" if on_cuda else "cuda"):
            parts.append(Part(**{key: value for key, value in of.items() if key not in ("on", "command")}, words=words))
    return parts


class State:
    """What became of each part, in a file of the folder: `done`, `failed`, `cut short` (the whole time was up), or
    `too long` (its own time was, before it was complete). Of another commit or device nothing is known."""

    def __init__(self, folder: Path, **of: str | None) -> None:
        self._path, self._of = folder / "state.json", of
        self.parts: dict[str, str] = {}
        self.begun: set[str] = set()  # by this process
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(self._path.read_text(encoding="utf-8"))
            if read.items() >= of.items():
                self.parts = read["parts"]

    def put(self, part: Part, what: str) -> None:
        """Remember it, on disk."""
        self.parts[part.name] = what
        self.begun.add(part.name)
        write_text(self._path, json.dumps({**self._of, "parts": self.parts}, indent=1) + "\n")

    def open(self, parts: Sequence[Part]) -> list[Part]:
        """Those that are not done; last those that have had their time and would most likely end alike, and what needs
        one of them."""
        left = [part for part in parts if self.parts.get(part.name) != "done"]
        had_its_time = {name for name, what in self.parts.items() if what in ("failed", "too long")}
        return sorted(left, key=lambda part: not had_its_time.isdisjoint({part.name, part.after}))


def run_parts(parts: Sequence[Part], state: State, folder: Path, deadline: Deadline) -> Iterator[str]:
    """Run what is open; yields lines, of which a `Failed` says what failed, and is followed by the end of its log.

    A part begins where at least four fifths of its seconds are left, or where it resumes. After each the archive is
    written anew.
    """
    for part in state.open(parts):
        left = deadline.left() - _ENDING - _GRACE
        if part.after is not None and state.parts.get(part.after) != "done":
            yield f"{part.name}: left for the next call, {part.after} is not done"
            continue
        if left < (_LEAST if part.resumes else 0.8 * part.seconds):
            yield f"{part.name}: left for the next call ({part.seconds:g} s, {max(0.0, left):.0f} s left)"
            continue
        yield f"{part.name} (at most {min(left, part.seconds):.0f} s; {max(0.0, left):.0f} s left)"
        log = folder / "logs" / f"{re.sub('[^a-z0-9]+', '-', part.name.lower()).strip('-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        state.put(part, "cut short")  # which it is unless it ends
        status = _run(part, min(left, part.seconds), log, deadline)
        took, text = time.monotonic() - began, log.read_text(encoding="utf-8", errors="replace")
        tests = ", ".join(f"{count} {word.lower()}" for word, count in Counter(_OUTCOME.findall(text)).items())
        counted = f" ({tests})" if tests else ""
        if status is None or (status == 0 and INCOMPLETE.search(text)):
            state.put(part, "too long" if part.seconds <= left and not part.resumes else "cut short")
            yield f"{part.name}: ended after {took:.0f} s, not complete{counted}"
        elif status:
            state.put(part, "failed")
            yield Failed(f"{part.name}: failed with status {status} after {took:.0f} s{counted}; {log} ends:")
            yield from (f"    {line}" for line in text.splitlines()[-_TAIL:])
        else:
            state.put(part, "done")
            yield f"{part.name}: done in {took:.0f} s{counted}"
        archive(folder)


def _run(part: Part, seconds: float, log: Path, deadline: Deadline) -> int | None:
    """The exit status; None where its time was up."""
    words = [word.format(seconds=f"{max(0.0, seconds - _LAST):.0f}") for word in part.words]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    new = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if words[0] == "pytest":
        new["OMP_NUM_THREADS"] = "1"
    with log.open("wb") as out:
        out.write(f"$ python -m {' '.join(words)}\n".encode())
        out.flush()
        command = [sys.executable, "-m", *words]
        # In a session of its own, which is ended as a whole: tests and training have processes of their own.
        child = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | new, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        end = time.monotonic() + seconds
        try:
            while child.poll() is None and time.monotonic() < end and deadline():
                time.sleep(0.2)
            in_time = child.returncode is not None
        finally:
            _end(child)
    return child.returncode if in_time else None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask it to end, as Ctrl-C would, and end it and its processes if it does not."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if child.poll() is None:
            child.send_signal(signal.SIGINT)  # not to the compilers that it has called
            child.wait(_GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def archive(folder: Path) -> Path:
    """Write what is to be taken home into one file: the state, logs, tables, pages, figures, and records of runs
    without weights."""
    path = folder / "gpu.tar.gz"
    new = path.with_suffix(".new")
    taken = [*folder.glob("*.json"), *folder.glob("*.md")]
    for name in ("logs", "results", "runs"):
        below = (folder / name).rglob("*")
        taken += [file for file in below if file.suffix in _TAKEN and file.is_file() and not file.is_symlink()]
    with tarfile.open(new, "w:gz") as tar:
        for file in sorted(taken):
            tar.add(file, file.relative_to(folder))
    new.replace(path)
    return path


def measure_parts(folder: Path, minutes: float, devices: Sequence[str] | None) -> None:
    """Run the parts that are for these CUDA devices within so many minutes, and print what was measured beside its
    goals. Raises as `measuring` does."""
    on_cuda = devices is None or len(devices) > 0  # None: they could not be counted
    parts = parts_for(folder, on_cuda=on_cuda)
    if absent := [part.name for part in parts if part.needs_cuda and not on_cuda]:
        typer.echo(f"no CUDA device here; left out: {', '.join(absent)}")
    parts = [part for part in parts if on_cuda or not part.needs_cuda]
    folder.mkdir(parents=True, exist_ok=True)
    state = State(folder, commit=git_commit(), device=devices[0] if devices else None)
    outcome = Outcome()
    try:
        with measuring(outcome, 60 * minutes, "parts", "The same command goes on where this one stopped.") as deadline:
            try:
                for line in run_parts(parts, state, folder, deadline):
                    typer.echo(line)
                    outcome.add(line)
            finally:
                outcome.rows = len(state.begun) if state.open(parts) else len(parts)  # with none to do all is well
    finally:
        table = beside_goals(folder / "results")
        write_text(folder / "goals.md", table)
        path = archive(folder)
        size = path.stat().st_size
        typer.echo(f"\n{table}\nto keep: {path}, {size / 2**20:.1f} MiB")
        if size > LARGEST_FILE:
            typer.echo(f"larger than {LARGEST_FILE // 2**20} MiB, which may be too large to be taken home as one file")
        still = [part.name for part in state.open(parts)]
        typer.echo(f"open: {', '.join(still)}; the same command goes on" if still else "all parts are done")
