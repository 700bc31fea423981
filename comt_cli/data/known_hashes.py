"""Hashes of the user's files, remembered in the cache while the files do not change."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from comt_cli.data.storage import hash_file, make_folder, state_of
from comt_cli.errors import StorageError, UserError
from comt_cli.files import cache_folder, read_json, sha256, write_json

_SETTLED_NS = 2_000_000_000


class KnownHashes:
    """Hashes of files as they were last seen, so that an unchanged corpus is not read to be recognised."""

    def __init__(self, root: Path, pattern: str) -> None:
        self._path = cache_folder() / "file-hashes" / f"{sha256(f'{root}:{pattern}')[:16]}.json"
        self._old = self._load()
        self._new: dict[str, list[Any]] = {}

    def _load(self) -> dict[str, list[Any]]:
        try:
            stored = read_json(self._path)
        except (OSError, ValueError):  # absent or damaged: the files are hashed again
            return {}
        return stored if isinstance(stored, dict) else {}

    def of(self, path: Path, key: str = "corpus", hint: str | None = None) -> str:
        """SHA-256 of the file. Raises `UserError` of a recipe's `key` where it cannot be read."""
        try:
            return self._of(path)
        except OSError as error:
            raise UserError(f"{key}: cannot read {path}: {error.strerror or error}", hint) from error

    def _of(self, path: Path) -> str:
        status = path.stat()
        state = state_of(status)
        known = self._old.get(str(path))
        digest = str(known[-1]) if isinstance(known, list) and known[:-1] == state else None
        # A file written moments ago may be written again without its time moving on, so it is not remembered yet.
        settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS
        digest = digest or hash_file(path)
        if settled:
            self._new[str(path)] = [*state, digest]
        return digest

    def forget(self) -> None:
        """Let all be hashed again: one of the hashes was not that of its file."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def save(self) -> None:
        """Keep what was learned, if anything was. A cache that may only be read costs time, nothing else."""
        if self._new != self._old:
            with contextlib.suppress(StorageError):
                make_folder(self._path.parent)
                write_json(self._path, self._new)
