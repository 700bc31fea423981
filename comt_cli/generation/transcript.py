"""Partial output of decoding, from which a stopped one resumes."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from comt_cli.errors import StorageError
from comt_cli.files import Unreadable, make_folder, open_own, parse_json, read_text


def one_line(text: str) -> str:
    """A text as a line of a file, its white space and line breaks single spaces."""
    return " ".join(text.split())


class Transcript:
    """The texts of a `split`, or of a file, by the numbers of their sources, while one or several processes write them
    into a folder that all see: each into a file of its own, `<split>.<part>`; all parts begin with `part`.

    A line is `[number, text, checksum]`. What does not fit its checksum is decoded again: a damaged or edited line, or
    one of another `key`. `done` are the texts of all processes at the beginning, and those of this one since.
    """

    def __init__(self, folder: Path, split: str, part: str = "part-0.jsonl", key: str = "") -> None:
        """`key` names all that decides the texts, such as a run and its step; every checksum is over it, too."""
        make_folder(folder)
        self.folder, self.split, self._key = folder, split, key
        self.own = folder / f"{split}.{part}"
        self.done = self._written()

    def add(self, texts: Mapping[int, str]) -> None:
        """Write the texts of some sources; they are on disk afterwards. Raises `StorageError`."""
        # As ASCII: a line that a kill cut off in the middle of a letter would make the file unreadable. A stop in the
        # middle of a line leaves a part of it: the next line begins anew.
        lines = "".join(json.dumps([*each, self._checksum(*each)]) + "\n" for each in texts.items())
        try:
            with os.fdopen(open_own(self.own, os.O_WRONLY | os.O_APPEND), "ab") as handle:
                handle.write((("\n" if handle.tell() else "") + lines).encode())
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            said = f"cannot write {self.own}: {error.strerror or error}"
            raise StorageError(said, "What was decoded before is kept.") from error
        self.done |= texts

    def texts(self, numbers: Iterable[int]) -> list[str] | None:
        """The texts of these sources, of all processes, which must be done writing; None where one has none."""
        self.done |= self._written()
        numbers = list(numbers)
        return [self.done[number] for number in numbers] if self.done.keys() >= {*numbers} else None

    def _checksum(self, number: int, text: str) -> int:
        return zlib.crc32(json.dumps([self._key, self.split, number, text]).encode())

    def _written(self) -> dict[int, str]:
        found: dict[int, str] = {}
        parts = [path for path in self.folder.iterdir() if path.name.startswith(f"{self.split}.part")]
        for path in sorted(parts):
            try:
                lines = read_text(path).split("\n")
            except (Unreadable, FileNotFoundError):  # damaged: its texts are decoded again; or of a call that has ended
                continue
            for line in lines:
                try:
                    number, text, checksum = parse_json(line)
                except (ValueError, TypeError):  # empty, cut off by a kill, damaged, or without a checksum
                    continue
                if checksum == self._checksum(number, text):
                    found[number] = text
        return found
