"""Folders, locks and file hashes of the cache, with the errors that people see when the disk refuses."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from comt_cli.errors import StorageError, UserError
from comt_cli.files import open_file, open_own

ProgressCallback = Callable[[str, int, int | None], None]
"""Called as `progress(stage, done, total)`. The stage names its unit ("tokenising documents"); `total` may be None."""

_ANOTHER_CACHE = "or choose another cache folder: export COMT_CACHE=/some/folder"


def no_progress(stage: str, done: int, total: int | None) -> None:
    """The callback of a caller that does not want to know."""


def make_folder(path: Path) -> None:
    """Create `path` and its parents if absent. Raises `StorageError` when the disk refuses."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot create the folder {path}: {error.strerror or error}",
            f"Make room or correct the permissions, {_ANOTHER_CACHE}",
        ) from error


def check_room(folder: Path, needed: int, what: str, instead: str) -> None:
    """Raise `StorageError` before hours of work where the disk cannot hold `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"{what} need {needed / 1e9:.1f} GB; {folder} has {free / 1e9:.1f} GB left",
            f"Make room, {instead}, {_ANOTHER_CACHE}",
        )


def first_line(error: BaseException) -> str:
    """The message of a library's error, short enough to be quoted in one of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def changed(what: object) -> UserError:
    """The error for files that are not what they were when their content was looked at."""
    return UserError(f"corpus: {what} was changed while it was read", "Run the same command again.")


@contextlib.contextmanager
def file_lock(path: Path, progress: ProgressCallback = no_progress) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created, never deleted); wait for whoever holds it, process or thread. The
    kernel drops it when its holder dies, however it dies. Raises `StorageError`."""
    make_folder(path.parent)
    try:
        descriptor = open_own(path, os.O_RDWR)
    except OSError as error:
        raise StorageError(f"cannot create the lock {path}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that prepares the same data", 0, None)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# ---- hashes


def hash_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file of any size, read in pieces. Raises as `open_file` does."""
    with open_file(path) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def state_of(status: os.stat_result) -> list[int]:
    """State of a file that changes with its content. Size and time of change alone may be those of other content:
    archives set the time, and a letter for a letter keeps the size; `ctime` is set by the system alone."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


@functools.lru_cache(maxsize=1 << 16)
def _hash_in_state(path: Path, *state: int) -> str:  # noqa: ARG001 - the cache's key
    return hash_file(path)


def hash_files(
    paths: Sequence[Path], progress: ProgressCallback, key: str = "corpus", hint: str | None = None
) -> list[str]:
    """SHA-256 of files of the user's; a process reads each once while it does not change. Raises `UserError` of a
    recipe's `key` where one cannot be read."""
    digests = []
    for number, path in enumerate(paths):
        progress("hashing files", number, len(paths))
        try:
            digests.append(_hash_in_state(path, *state_of(path.stat())))
        except OSError as error:
            raise UserError(f"{key}: cannot read {path}: {error.strerror or error}", hint) from error
    return digests
