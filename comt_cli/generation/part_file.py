"""Output that a kill does not lose: written to `<path>.part` as it comes, and to `<path>` once it is whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from comt_cli.errors import StorageError
from comt_cli.files import read_text, write_text


class PartFile:
    """The lines of an output that comes in pieces.

    `key` says what they are of: it is the first line of `<path>.part`, and what was left by a call with another key is
    not continued. Nothing else may write the file meanwhile.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.part = path.with_name(f"{path.name}.part")
        self.lines: list[str] = []

    def resume(self, piece: int) -> int:
        """How many lines of an earlier call are kept, a multiple of `piece`: what was cut short is written again.
        Raises `StorageError` where the folder cannot be written."""
        try:
            first, *lines = read_text(self.part).split("\n")[:-1]  # what has no line break was cut short
        except (OSError, ValueError):
            first, lines = "", []
        self.lines = lines[: len(lines) // piece * piece] if first == self.key else []
        write_text(self.part, "".join(f"{line}\n" for line in (self.key, *self.lines)))
        return len(self.lines)

    def add(self, lines: Sequence[str]) -> None:
        """Write more lines, flushed to the disk. Raises `StorageError`."""
        self.lines += lines
        try:
            with self.part.open("a", encoding="utf-8", newline="\n") as handle:
                handle.write("".join(f"{line}\n" for line in lines))
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise StorageError(f"cannot write {self.part}: {error.strerror or error}") from error

    def finish(self) -> None:
        """Write `path` and remove the part. Raises `StorageError`."""
        write_text(self.path, "".join(f"{line}\n" for line in self.lines))
        self.part.unlink(missing_ok=True)
