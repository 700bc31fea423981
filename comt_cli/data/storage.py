"""Folders, locks and file hashes of the cache, with the errors that people see when the disk refuses."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
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
        hint = "Make room or correct the permissions, or choose another cache folder: export COMT_CACHE=/some/folder"
        raise StorageError(f"cannot create the folder {path}: {error.strerror or error}", hint) from error


def first_line(error: BaseException) -> str:
    """The message of a library's error, short enough to be quoted in one of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def file_lock(
    path: Path, progress: ProgressCallback = no_progress, doing: str = "prepares the same data"
) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created, never deleted), waiting for whoever holds it and is `doing` the same.
    Raises `StorageError`."""
    make_folder(path.parent)
    try:
        descriptor = open_own(path, os.O_RDWR)
    except OSError as error:
        raise StorageError(f"cannot create the lock {path}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that {doing}", 0, None)
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
    """State of a file that changes with its content: `ctime`, unlike the time of change, is set by the system alone."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def hash_files(
    paths: Sequence[Path], progress: ProgressCallback, key: str = "corpus", hint: str | None = None
) -> list[str]:
    """SHA-256 of files of the user's, stored in the cache and valid while `state_of` the file is the same. Raises
    `UserError` of a recipe's `key` where one cannot be read."""
    old, digests = dict[str, list[Any]](), list[str]()
    folder = os.path.commonpath([path.absolute().parent for path in paths])
    note = cache_folder() / "file-hashes" / f"{sha256(folder)[:16]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):  # absent or damaged: files are hashed again
        old = dict(read_json(note))
    new = dict(old)
    for number, path in enumerate(paths):
        progress("hashing files", number, len(paths))
        try:
            status = path.stat()
            *state, digest = old.get(str(path.absolute()), [None])
            # A file written moments ago may be written again without its time moving on: it is not stored yet.
            is_settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS
            digests.append(digest if state == state_of(status) else hash_file(path))
        except OSError as error:
            raise UserError(f"{key}: cannot read {path}: {error.strerror or error}", hint) from error
        if is_settled:
            new[str(path.absolute())] = [*state_of(status), digests[-1]]
    if new != old:
        with contextlib.suppress(StorageError):  # a cache that may only be read costs time, nothing else
            make_folder(note.parent)
            write_json(note, new)
    return digests
