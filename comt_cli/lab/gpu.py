"""The parts of `comt bench gpu`, for a GPU machine that is available for minutes: tests, tuning, speeds, a table. Each
is a command in its own process with a time limit. A file lists finished parts, and the next call continues there."""

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from comt_cli.commit import git_commit
from comt_cli.files import atomic_file, write_text
from comt_cli.lab.runner import OUT_OF_TIME, Session
from comt_cli.lab.subjects import TABLES

ROOT = Path(__file__).resolve().parents[2]  # the repository, whose tests are run
_GRACE, _ENDING = 10.0, 10.0  # seconds that a part has to end after it was asked to, and for what is written afterwards
_LEAST, _LAST = 45.0, 25.0  # the least seconds for a part that resumes to start; and for a benchmark to end
_TAKEN = {".csv", ".json", ".jsonl", ".log", ".md", ".pdf", ".png", ".tex", ".txt"}
INCOMPLETE = re.compile(f"{OUT_OF_TIME}|cut short and not settled")
"""Printed by a benchmark that ran out of time before it had measured everything."""


@dataclass(frozen=True)
class Part:
    """A command, the words after `python -m`, and its time limit in seconds; `{minutes}` in a word is the time it has.
    `after`: the part that it needs. `resumes`: the next call continues it."""

    name: str
    seconds: float
    words: tuple[str, ...]
    after: str | None = None
    resumes: bool = False


def parts_for(folder: Path, *, on_cuda: bool) -> list[Part]:
    """All parts in order (`measured.yaml`), with files in `folder`."""
    known = {"results": str(folder / "results"), "runs": str(folder / "runs"), "minutes": "{minutes}"}
    known["processes"] = str(min(12, os.cpu_count() or 1))
    words = {name: text.format(**known) for name, text in TABLES["gpu"]["words"].items()} | known
    parts = []
    for of in TABLES["gpu"]["parts"]:
        fields = {name: value for name, value in of.items() if name not in ("on", "command")}
        if of.get("on") != ("cpu" if on_cuda else "cuda"):
            parts.append(Part(**fields, words=tuple(shlex.split(of["command"].format(**words)))))
    return parts


class State:
    """`done`, `failed` or `cut short` for each part that was started with this commit and device, in a file."""

    def __init__(self, folder: Path, **of: str | None) -> None:
        self._path, self._of = folder / "state.json", of
        self.parts: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(self._path.read_text(encoding="utf-8"))
            if read.items() >= of.items():
                self.parts = read["parts"]

    def put(self, part: Part, what: str) -> None:
        self.parts[part.name] = what
        write_text(self._path, json.dumps({**self._of, "parts": self.parts}, indent=1) + "\n")

    def open(self, parts: Sequence[Part]) -> list[Part]:
        """The parts that are not done; last those that were tried, which may fail again."""
        left = [part for part in parts if self.parts.get(part.name) != "done"]
        return sorted(left, key=lambda part: part.name in self.parts and not part.resumes)


def run_parts(parts: Sequence[Part], state: State, folder: Path, session: Session) -> None:
    """Run the open parts. A part starts if four fifths of its seconds are left, or if it resumes."""
    for part in state.open(parts):
        left = session.left() - _ENDING - _GRACE
        misses = part.after is not None and state.parts.get(part.after) != "done"
        if misses or left < (_LEAST if part.resumes else 0.8 * part.seconds):
            typer.echo(f"{part.name}: left for the next call")
            continue
        typer.echo(f"{part.name} (at most {min(left, part.seconds):.0f} s; {left:.0f} s left)")
        log = folder / "logs" / f"{re.sub('[^a-z0-9]+', '-', part.name.lower()).strip('-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        state.put(part, "cut short")  # unless it ends
        session.rows += 1
        status = _run(part, min(left, part.seconds), log, session)
        text = log.read_text(encoding="utf-8", errors="replace")
        if status:
            state.put(part, "failed")
            session.fail(part.name, RuntimeError(f"status {status}, {log}"))
            typer.echo("\n".join(f"    {line}" for line in text.splitlines()[-15:]))
        elif status is not None and not INCOMPLETE.search(text):
            state.put(part, "done")
        typer.echo(f"{part.name}: {state.parts[part.name]} (the log: {log})")
        archive(folder)  # each time, since the machine can be withdrawn at any moment


def _run(part: Part, seconds: float, log: Path, session: Session) -> int | None:
    words = [word.format(minutes=f"{max(0.0, seconds - _LAST) / 60:.2f}") for word in part.words]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    new = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if words[0] == "pytest":
        new["OMP_NUM_THREADS"] = "1"
    log.write_text(f"$ python -m {' '.join(words)}\n", encoding="utf-8")
    with log.open("ab") as out:
        # In its own session, which is ended as a whole: tests and training start processes.
        child = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, env=os.environ | new,
            stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + seconds
        try:
            while child.poll() is None and time.monotonic() < end and session.goes_on():
                time.sleep(0.2)
            return child.returncode
        finally:  # ended as by Ctrl-C, without its compilers; remaining processes are killed afterwards
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def archive(folder: Path) -> Path:
    """Write everything to keep into one file: the state, logs, results, and records of runs without weights."""
    path = folder / "gpu.tar.gz"
    with atomic_file(path) as handle, tarfile.open(fileobj=handle, mode="w:gz") as tar:
        for file in sorted(folder.rglob("*")):
            if file.suffix in _TAKEN and file.is_file() and not file.is_symlink():
                tar.add(file, file.relative_to(folder))
    return path


def measure_parts(folder: Path, minutes: float, devices: Sequence[str] | None) -> None:
    """Run the parts for these CUDA devices within a number of minutes. Raises as `Session` does."""
    on_cuda = devices is None or bool(devices)  # None: they could not be counted
    parts = parts_for(folder, on_cuda=on_cuda)
    if not on_cuda:
        typer.echo("no CUDA device: tests and tuning are skipped, and networks are those for a CPU")
    folder.mkdir(parents=True, exist_ok=True)
    state = State(folder, commit=git_commit(), device=devices[0] if devices else None)
    try:
        with Session(minutes=minutes) as session:
            run_parts(parts, state, folder, session)
            session.rows += not state.open(parts)  # without any, everything is fine
    finally:
        path = archive(folder)
        for page in sorted(folder.glob("results/bench/*/*.md")):
            typer.echo(page.read_text(encoding="utf-8"))
        typer.echo(f"\nto keep: {path}, {path.stat().st_size / 2**20:.1f} MiB")
        still = [part.name for part in state.open(parts)]
        typer.echo(f"open: {', '.join(still)}; the same command continues" if still else "all parts are done")
