"""The run directory: the only contract between training, which writes it, and everything that reads it.

spec.json          the run, fully resolved (`RunSpec`)
environment.json   versions, device, git commit: one entry per time the run was started
metrics.jsonl      one line per logged step: the ground truth; holds nothing that differs between two equal runs
timings.jsonl      one line per logged step: seconds, tokens per second (these do differ)
metrics.csv        metrics.jsonl as a table, written at the end
checkpoint.pt      the newest complete checkpoint, with the tokenizer, so that it can be fed text
result.json        written last: its presence means that the run is done
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from comt_cli.errors import StorageError, UserError
from comt_cli.files import write_json
from comt_cli.recipe.plan import RunSpec


class RunState(StrEnum):
    """Where a run stands."""

    missing = "missing"
    unfinished = "unfinished"
    running = "running"
    done = "done"
    diverged = "diverged"


class RunDirectory:
    """One run's folder: paths, what they hold, and the lock that lets one process at a time write there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec_file = path / "spec.json"
        self.environment_file = path / "environment.json"
        self.metrics_file = path / "metrics.jsonl"
        self.timings_file = path / "timings.jsonl"
        self.metrics_table = path / "metrics.csv"
        self.checkpoint_file = path / "checkpoint.pt"
        self.result_file = path / "result.json"
        self.lock_file = path / ".lock"

    @classmethod
    def of(cls, runs: Path, spec: RunSpec) -> RunDirectory:
        """The directory of `spec` below the folder `runs`."""
        return cls(runs / spec.relative_path)

    def state(self) -> RunState:
        """Done or diverged if there is a result; else running if a process holds the lock; else unfinished."""
        result = self.result()
        if result is not None:
            return RunState.diverged if result["state"] == "diverged" else RunState.done
        if not self.path.is_dir():
            return RunState.missing
        if self._is_locked():
            return RunState.running
        return RunState.unfinished if self.spec_file.exists() else RunState.missing

    def result(self) -> dict[str, Any] | None:
        """`result.json`, or None while there is none."""
        return _read_json(self.result_file)

    def spec(self) -> RunSpec:
        """`spec.json`. Raises `UserError` if there is none, or it is from another version."""
        data = _read_json(self.spec_file)
        if data is None:
            raise UserError(f"{self.path} is not a run directory", "It has no spec.json.")
        try:
            return RunSpec.model_validate({key: value for key, value in data.items() if key != "id"})
        except ValueError as error:
            raise UserError(f"{self.spec_file} does not fit this version of comt: {error}") from None

    def metrics(self) -> list[dict[str, Any]]:
        """The logged steps, oldest first. A line cut short by a crash is left out."""
        return read_lines(self.metrics_file)

    def timings(self) -> list[dict[str, Any]]:
        """The logged speeds, oldest first."""
        return read_lines(self.timings_file)

    def create(self, spec: RunSpec) -> None:
        """Make the folder and write `spec.json`. Raises `StorageError` where that is not possible."""
        self._make()
        write_json(self.spec_file, {**spec.model_dump(mode="json"), "id": spec.id})

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {self.path}: {error.strerror}") from error

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory, made if need be, for writing. The system releases the lock when its owner dies.

        Raises:
            UserError: another process is training this run; says which.
        """
        self._make()
        try:
            handle = self.lock_file.open("a+")
        except OSError as error:
            raise StorageError(f"cannot lock {self.path}: {error.strerror}") from error
        with handle:
            if not _try_lock(handle):
                handle.seek(0)
                owner = handle.read().strip() or "another process"
                raise UserError(
                    f"{self.path} is being trained by {owner}", "Wait for it, or stop it; then run this again."
                )
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {socket.gethostname()}")
            handle.flush()
            yield

    def _is_locked(self) -> bool:
        try:
            with self.lock_file.open() as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def _try_lock(handle: IO[str]) -> bool:
    """Take the lock; False if another process has it. Tries thrice: `state()` elsewhere may hold it for a moment."""
    for _ in range(3):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}", "Delete the run directory to train it anew.") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} does not hold a JSON object", "Delete the run directory to train it anew.")
    return data


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, oldest first; [] if there is none. An unfinished last line is left out.

    Raises:
        UserError: another line is not JSON; says which.
    """
    if not path.exists():
        return []
    *lines, _unfinished = path.read_text(encoding="utf-8").split("\n")
    objects = []
    for number, line in enumerate(lines, start=1):
        try:
            objects.append(json.loads(line))
        except ValueError:
            raise UserError(
                f"{path}, line {number} is not JSON", "Delete the run directory to train it anew."
            ) from None
    return objects
