"""Folders, locks and file hashes of the cache, with the errors that people see when the disk refuses."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from comt_cli.errors import StorageError, UserError
from comt_cli.files import cache_folder, open_file, open_own, read_json, sha256, write_json

ProgressCallback = Callable[[str, int, int | None], None]
"""Called as `progress(stage, done, total)`. The stage names its unit ("tokenising documents"); `total` may be None."""

_SETTLED_NS = 2_000_000_000


def no_progress(stage: str, done: int, total: int | None) -> None:
    """The callback of a caller that does not want to know."""


def make_folder(path: Path) -> None:
    """Create `path` and its parents if absent. Raises `StorageError` when the disk refuses."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot create the folder {path}: {error.strerror or error}",
            "Make room or correct the permissions, or choose another cache folder: export COMT_CACHE=/some/folder",
        ) from error


def check_room(folder: Path, needed: int, what: str, instead: str) -> None:
    """Say before hours of work that the disk cannot hold `needed` bytes. Raises `StorageError`."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"{what} need {needed / 1e9:.1f} GB; {folder} has {free / 1e9:.1f} GB left",
            f"Make room, {instead}, or choose another cache folder: export COMT_CACHE=/some/folder",
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
    """What a change of a file's content leaves as it was only within one tick of the system's clock. Size and time of
    change alone can be those of other content: archives set the time, and a letter for a letter keeps the size; the
    system alone sets `ctime`, which chmod and links change too."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def known_hashes(
    root: Path,
    pattern: str,
    paths: Sequence[Path],
    progress: ProgressCallback = no_progress,
    key: str = "corpus",
    hint: str | None = None,
) -> list[str]:
    """SHA-256 of files of the user's, remembered under (root, pattern) while the files do not change. Raises
    `UserError` of a recipe's `key` where one cannot be read."""
    note, old, new, digests = _note(root, pattern), {}, dict[str, list[Any]](), list[str]()
    with contextlib.suppress(OSError, ValueError, TypeError):  # absent or damaged: files are hashed again
        old = dict(read_json(note))
    for number, path in enumerate(paths):
        progress("hashing files", number, len(paths))
        try:
            status = path.stat()
            state, known = state_of(status), old.get(str(path))
            # A file written moments ago may be written again without its time moving on: it is not remembered yet.
            settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS
            is_known = isinstance(known, list) and known[:-1] == state
            digests.append(str(old[str(path)][-1]) if is_known else hash_file(path))
        except OSError as error:
            raise UserError(f"{key}: cannot read {path}: {error.strerror or error}", hint) from error
        if settled:
            new[str(path)] = [*state, digests[-1]]
    if new != old:
        with contextlib.suppress(StorageError):  # a cache that may only be read costs time, nothing else
            make_folder(note.parent)
            write_json(note, new)
    return digests


def forget_hashes(root: Path, pattern: str) -> None:
    """Let all be hashed again: one of the hashes was not that of its file."""
    with contextlib.suppress(OSError):  # of a cache that may only be read
        _note(root, pattern).unlink(missing_ok=True)


def _note(root: Path, pattern: str) -> Path:
    return cache_folder() / "file-hashes" / f"{sha256(f'{root}:{pattern}')[:16]}.json"
