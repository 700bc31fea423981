"""Output that a kill does not lose: written to `<path>.part` as it comes, and to `<path>` once it is whole."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from comt_cli.files import read_text, write_text
from comt_cli.generation.transcript import append


class PartFile:
    """The lines of an output that comes in pieces.

    `key` says what they are of: it is the first line of `<path>.part`, and what was left by a call with another key is
    not continued but archived (`aside`), under another name. A checksum is before each other line there, and from the
    first on that does not fit it all are written again. Nothing else may write the file meanwhile.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.part = path.with_name(f"{path.name}.part")
        self.lines: list[str] = []
        self.aside: Path | None = None

    def resume(self, piece: int) -> int:
        """How many lines of an earlier call are kept, a multiple of `piece`: what was cut short is written again.
        Raises `StorageError` where the folder cannot be written."""
        try:
            first, *stored = read_text(self.part).split("\n")[:-1] or [""]  # what has no line break was cut short
        except FileNotFoundError:
            first, stored = self.key, []
        except (OSError, ValueError):
            first, stored = "", [""]
        if first != self.key and stored and self.part.is_file():
            names = (self.part.with_name(f"{self.part.name}.replaced-{number}") for number in count(1))
            self.aside = self.part.rename(next(name for name in names if not name.exists()))
        lines = [line.partition(" ")[2] for line in stored] if first == self.key else []
        fits = [one == f"{other}\n" for one, other in zip(self._stored(lines), stored, strict=False)]
        self.lines = lines[: [*fits, False].index(False) // piece * piece]
        write_text(self.part, "".join([f"{self.key}\n", *self._stored(self.lines)]))
        return len(self.lines)

    def _stored(self, lines: Sequence[str], first: int = 0) -> list[str]:
        """Lines, of which the first is number `first`, as the part has them."""
        return [f"{zlib.crc32(f'{self.key} {n} {line}'.encode()):08x} {line}\n" for n, line in enumerate(lines, first)]

    def add(self, lines: Sequence[str]) -> None:
        """Write more lines, flushed to the disk. Raises `StorageError`."""
        append(self.part, "".join(self._stored(lines, len(self.lines))))
        self.lines += lines

    def finish(self) -> None:
        """Write `path` and remove the part. Raises `StorageError`."""
        write_text(self.path, "".join(f"{line}\n" for line in self.lines))
        self.part.unlink(missing_ok=True)
