"""Files that are either whole or absent, and where this program keeps things."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import platformdirs

from comt_cli.errors import StorageError


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


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all. Raises `StorageError` (see `atomic_file`)."""
    with atomic_file(path, "w") as handle:
        json.dump(value, handle, indent=2, allow_nan=False)
        handle.write("\n")


def write_text(path: Path, text: str) -> None:
    """Write `text`, whole or not at all. Raises `StorageError` (see `atomic_file`)."""
    with atomic_file(path, "w") as handle:
        handle.write(text)
