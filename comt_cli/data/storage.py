"""Folders, locks and file hashes of the cache, with errors for users."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.files import Cache, canonical_json, make_folder, open_file, open_own, sha256

ProgressCallback = Callable[[str, int, int | None], None]
"""Called as `progress(stage, done, total)`. The stage names its unit ("tokenising documents"); `total` may be None."""


def no_progress(stage: str, done: int, total: int | None) -> None:
    """A callback that does nothing."""


def first_line(error: BaseException) -> str:
    """The first line of a library's error, to be quoted in our messages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def package_folders(package: str) -> list[Path]:
    """The folders of an installed package (of a namespace several); [] if it is not installed. Imports nothing."""
    with contextlib.suppress(ImportError, ValueError):  # of `__main__`
        found = importlib.util.find_spec(package) if package.isidentifier() else None
        return [Path(folder) for folder in (found and found.submodule_search_locations) or ()]
    return []


@contextlib.contextmanager
def file_lock(
    path: Path, progress: ProgressCallback = no_progress, doing: str = "prepares the same data"
) -> Iterator[None]:
    """Hold a lock on `path` (made, never deleted), waiting for a process that is `doing` the same. Raises `OSError`."""
    make_folder(path.parent)
    descriptor = open_own(path, os.O_RDWR)
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
    """Hexadecimal SHA-256 of a file of any size, read in blocks. Raises as `open_file` does."""
    with open_file(path) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def state_of(status: os.stat_result) -> list[int]:
    """A file's state, which changes with its content: `ctime`, unlike `mtime`, is set only by the system."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def stamp_of(files: Iterable[Path]) -> str:
    """Hash over the files' names and `state_of`; copies of the files have another one. Raises `OSError`."""
    return sha256(canonical_json([[file.name, *state_of(file.stat())] for file in files]))[:16]


def hash_files(paths: Sequence[Path], progress: ProgressCallback, key: str = "corpus") -> list[str]:
    """SHA-256 of files, cached while their `state_of` is unchanged. Raises `UserError` naming the recipe's `key` if one
    cannot be read."""
    cache, folder = Cache("file-hashes", "1"), os.path.commonpath([path.absolute().parent for path in paths])
    old: dict[str, list[Any]] = cache.get(folder) or {}
    new, digests = dict(old), list[str]()
    for number, path in enumerate(paths):
        progress("hashing files", number, len(paths))
        try:
            status = path.stat()
            *state, digest = old.get(str(path.absolute()), [None])
            # A file written within the last 2 s may change again without a new time stamp, so it is not cached yet.
            is_settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > 2 * 10**9
            digests.append(digest if state == state_of(status) else hash_file(path))
        except OSError as error:
            raise UserError(f"{key}: cannot read {path}: {error.strerror or error}") from error
        if is_settled:
            new[str(path.absolute())] = [*state_of(status), digests[-1]]
    if new != old:
        cache.put(folder, new)
    return digests
