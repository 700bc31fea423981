"""Files that are either whole or absent, and where this program keeps things."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import platformdirs

from comt_cli.errors import StorageError

LARGEST_FILE = 256 * 2**20
"""Bytes of the largest file that is read at once where no other limit is given; the metrics of a long run are fewer."""
LONGEST_NUMBER = 300
"""Digits of the longest whole number that is read from JSON: what has more is beyond a float, and none of ours."""


class Unreadable(ValueError):
    """A file that is there and is not what it should be. The message says why, and leaves the naming to the caller."""


def cache_folder() -> Path:
    """Where prepared corpora, tokenizers and rendered images live: `$COMT_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("COMT_CACHE") or platformdirs.user_cache_path("comt"))


def sha256(content: bytes | str) -> str:
    """Hexadecimal SHA-256 of bytes, or of a string's UTF-8 encoding."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spare spaces, so that equal values have equal text and equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success flush it to disk and rename it over `path`.

    A reader, and a process restarted after a crash at any moment, sees the old file or the new one, never a part.

    Raises:
        StorageError: the disk is full, or the folder was removed or cannot be written. The old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    encoding = None if "b" in mode else "utf-8"
    try:
        try:
            with temporary.open(mode, encoding=encoding) as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(path)
            _flush_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}",
            "What was saved before is intact. Make room or restore the folder, then run the same command again.",
        ) from error


def _flush_folder(folder: Path) -> None:
    """Make a rename durable: on POSIX the folder itself must be flushed."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_bytes(path: Path, largest: int = LARGEST_FILE) -> bytes:
    """The content of an ordinary file. It is looked at before it is read: a pipe would block for ever, and a device, or
    a file put there by mistake or by a stranger, would fill the memory.

    Raises:
        FileNotFoundError: there is none.
        Unreadable: it is no file, has more than `largest` bytes, or the system refuses.
    """
    try:
        # Without O_NONBLOCK a named pipe would be waited for before it can be looked at.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise Unreadable(_said(error)) from error
    try:
        status = os.fstat(descriptor)
        refuse_other_than_file(status)
        if status.st_size > largest:
            raise Unreadable(f"it has {status.st_size:,} bytes; {largest:,} are the most that are read")
        with os.fdopen(descriptor, "rb", closefd=False) as handle:
            content = handle.read(largest + 1)  # files of /proc say that they have none
    except OSError as error:
        raise Unreadable(_said(error)) from error
    finally:
        os.close(descriptor)
    if len(content) > largest:
        raise Unreadable(f"it has more than {largest:,} bytes")
    return content


def refuse_other_than_file(status: os.stat_result) -> None:
    """Raise `Unreadable` where `status` is not that of an ordinary file, and say what it is."""
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise Unreadable(f"it is {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, not a file")


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def read_text(path: Path, largest: int = LARGEST_FILE) -> str:
    """The text of an ordinary UTF-8 file. Raises as `read_bytes` does, and `Unreadable` where it is not UTF-8."""
    content = read_bytes(path, largest)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Unreadable(f"it is not UTF-8 text (line {line})") from error


def read_csv(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV, by its first. Raises as `read_text` does, and `Unreadable` where it is no CSV."""
    if not path.parent.is_dir():
        raise FileNotFoundError(path)
    try:
        return list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except csv.Error as error:
        raise Unreadable(f"it is no CSV: {error}") from error


def read_json(path: Path, largest: int = LARGEST_FILE) -> Any:
    """The value in a JSON file. Raises as `read_text` does, and `Unreadable` where it is not JSON."""
    return parse_json(read_text(path, largest))


def parse_json(text: str) -> Any:
    """The value that JSON text stands for.

    Raises:
        Unreadable: it is no JSON, is nested deeper than Python can follow, or holds a whole number beyond all bounds.
    """
    try:
        return json.loads(text, parse_int=_whole_number)
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from error


def _whole_number(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise Unreadable(f"it holds a whole number of {len(digits):,} digits")
    return int(digits)


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a file that this program keeps for itself and writes into where it lies: a lock, a log.

    It is made if it is not there. A link is not followed: in a folder that came from a stranger it could lead to any
    file of the user's.

    Raises:
        OSError: the system refuses, or the path is a link or no file.
    """
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link, which could lead anywhere", str(path)) from error
        if error.errno == errno.ENXIO:  # a named pipe that nobody reads
            raise OSError(errno.ENXIO, "it is a pipe, not a file", str(path)) from error
        raise
    try:
        refuse_other_than_file(os.fstat(descriptor))
    except Unreadable as error:
        os.close(descriptor)
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    return descriptor


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all. Raises `StorageError` (see `atomic_file`)."""
    with atomic_file(path, "w") as handle:
        json.dump(value, handle, indent=2, allow_nan=False)
        handle.write("\n")


def write_text(path: Path, text: str) -> None:
    """Write `text`, whole or not at all. Raises `StorageError` (see `atomic_file`)."""
    with atomic_file(path, "w") as handle:
        handle.write(text)


def write_changed(path: Path, text: str) -> None:
    """`write_text`, unless the file has that text already."""
    with contextlib.suppress(OSError, Unreadable):
        if read_text(path) == text:
            return
    write_text(path, text)
