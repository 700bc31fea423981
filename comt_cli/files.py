"""Reading and atomic writing of files, and the cache folder."""

from __future__ import annotations

import codecs
import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import secrets
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import platformdirs

from comt_cli.errors import StorageError, UserError


class Unreadable(ValueError):
    """A file exists but cannot be read as expected. The message has the reason; the caller adds the name."""


def cache_folder() -> Path:
    """Folder for prepared corpora, tokenizers and rendered images: `$COMT_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("COMT_CACHE") or platformdirs.user_cache_path("comt"))


def sha256(content: bytes | str) -> str:
    """Hexadecimal SHA-256 of bytes, or of a string's UTF-8 encoding."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and without spaces, so that equal values have equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file next to `path`; on success flush it to disk and rename it to `path`. A reader, also after a
    crash at any moment, sees the old file or the new one, never a part. Raises `StorageError` if the disk is full, or
    the folder was removed or cannot be written; then the old file is unchanged."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    encoding = None if "b" in mode else "utf-8"
    try:
        try:
            with temporary.open(mode, encoding=encoding) as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(path)
            descriptor = os.open(path.parent, os.O_RDONLY)  # a rename is durable only after a flush of the folder
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        hint = "Everything saved before is intact. Make room or restore the folder, then run the same command again."
        raise StorageError(f"cannot write {path}: {error.strerror or error}", hint) from error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents unless they exist. Raises `StorageError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error


def check_writable(folder: Path, option: str) -> None:
    """Raise `UserError` if `folder`, the value of `option`, could not be made or written. The check writes and removes
    a temporary folder, since permissions alone do not decide."""
    place = folder.absolute()
    try:
        while True:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                place.lstat()
                break
            place = place.parent
        with tempfile.TemporaryDirectory(prefix=".comt-", dir=place):
            pass
    except OSError as error:
        wrong = f"{option}: {folder} cannot be written: {place}: {error.strerror or error}"
        raise UserError(wrong, f"Choose another folder by {option}, or change the permissions.") from error


def open_file(path: Path) -> io.BufferedReader:
    """Open a user's file for reading. Raises `OSError`, also for a pipe, which would block for ever."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or a device"
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
    return path.open("rb")


def read_bytes(path: Path, largest: int | None = None) -> bytes:
    """The content of a file. Raises `FileNotFoundError`, or `Unreadable` if it is no file or has over `largest`
    bytes."""
    try:
        with open_file(path) as handle:
            content = handle.read() if largest is None else handle.read(largest + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise Unreadable(getattr(error, "strerror", None) or str(error)) from error
    if largest is not None and len(content) > largest:
        raise Unreadable(f"it has more than {largest:,} bytes")
    return content


def if_damaged(hint: str, error: BaseException | None) -> str | None:
    """The hint to delete a damaged file; None if the file only could not be read, since it may be intact."""
    while error is not None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            return None
        error = error.__cause__
    return hint


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark. Raises as `read_bytes`, and `Unreadable` if it is not
    UTF-8."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Unreadable(f"it is not UTF-8 text (line {line})") from error


def conversion(path: Path, begin: bytes) -> str:
    """The command that converts a file, which begins with these bytes, to UTF-8."""
    is_wide = begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return f"iconv -f {'utf-16' if is_wide else 'latin1'} -t utf-8 {shlex.quote(path.name)}"


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by the names in its header. Raises as `read_text`, and `Unreadable` if it is no CSV."""
    if not path.parent.is_dir():
        raise FileNotFoundError(path)
    try:
        return list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except csv.Error as error:
        raise Unreadable(f"it is not a CSV: {error}") from error


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises as `read_text`, and `Unreadable` if it is not JSON."""
    return parse_json(read_text(path))


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises `Unreadable` if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON: {error}") from error


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a file that this program writes in place, such as a lock or a log. The file is made if necessary.
    A link raises `OSError`: in a folder from someone else it could point to any file of the user."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def refuse_same(out: Path, *inputs: Path) -> None:
    """Raise `UserError` if the output is one of the inputs, also through a link."""
    for path in inputs:
        with contextlib.suppress(OSError, ValueError):  # a file that does not exist cannot be lost
            if out.samefile(path):
                raise UserError(f"the output {out} would overwrite the input {path}", "Choose another output.")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. Raises `StorageError` (see `atomic_file`)."""
    write_text(path, f"{json.dumps(value, indent=2, allow_nan=False)}\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` atomically. Raises `StorageError` (see `atomic_file`)."""
    with atomic_file(path, "w") as handle:
        handle.write(text)


def write_changed(path: Path, text: str) -> None:
    """Write `text` atomically, unless the file has that text already."""
    with contextlib.suppress(OSError, Unreadable):
        if read_text(path) == text:
            return
    write_text(path, text)


class Cache:
    """Values in the cache folder, by a key of everything that they depend on; both are JSON values. Values of another
    `version` of the code and damaged files count as missing. Failed writes are ignored."""

    def __init__(self, name: str, version: str) -> None:
        self.folder = cache_folder() / name / sha256(version)[:16]

    def get(self, key: Any) -> Any:
        """The stored value of `key`; None if there is none."""
        with contextlib.suppress(OSError, Unreadable):
            return read_json(self._path(key))
        return None

    def put(self, key: Any, value: Any) -> None:
        """Store `value` if the disk allows it."""
        with contextlib.suppress(OSError, StorageError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self._path(key), value)

    def _path(self, key: Any) -> Path:
        return self.folder / f"{sha256(canonical_json(key))[:32]}.json"
