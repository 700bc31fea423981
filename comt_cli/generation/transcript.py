"""Partial output of decoding, from which an interrupted call resumes."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from comt_cli.errors import StorageError
from comt_cli.files import Unreadable, make_folder, open_own, parse_json, read_text


def one_line(text: str) -> str:
    """A text as one line: white space and line breaks become single spaces."""
    return " ".join(text.split())


class Transcript:
    """The texts of a `split`, or of a file, by the numbers of their sources. Several processes may write them into one
    folder, each into its own file `<split>.<part>`; all parts begin with `part`.

    A line is `[number, text, checksum]`. A line with a wrong checksum is decoded again: it was damaged or edited, or
    has another `key`. `done` are the texts of all processes at the beginning, and later those of this one.
    """

    def __init__(self, folder: Path, split: str, part: str = "part-0.jsonl", key: str = "") -> None:
        """`key` contains everything that decides the texts, such as run and step; it is part of every checksum."""
        make_folder(folder)
        self.folder, self.split, self._key = folder, split, key
        self.own = folder / f"{split}.{part}"
        self.done = self._written()

    def add(self, texts: Mapping[int, str]) -> None:
        """Append the texts of some sources, and flush them to disk. Raises `StorageError`."""
        # In ASCII: a line cut off inside a UTF-8 character would make the file unreadable. An interrupted call may
        # leave part of a line, so a new line is begun.
        lines = "".join(json.dumps([*each, self._checksum(*each)]) + "\n" for each in texts.items())
        try:
            with os.fdopen(open_own(self.own, os.O_WRONLY | os.O_APPEND), "ab") as handle:
                handle.write((("\n" if handle.tell() else "") + lines).encode())
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            said = f"cannot write {self.own}: {error.strerror or error}"
            raise StorageError(said, "The texts that were written before are kept.") from error
        self.done |= texts

    def texts(self, numbers: Iterable[int]) -> list[str] | None:
        """The texts of these sources from all processes, which must have finished; None if one is missing."""
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
            except (Unreadable, FileNotFoundError):  # damaged (decoded again), or removed by a call that has ended
                continue
            for line in lines:
                try:
                    number, text, checksum = parse_json(line)
                except (ValueError, TypeError):  # empty, cut off by a kill, damaged, or without a checksum
                    continue
                if checksum == self._checksum(number, text):
                    found[number] = text
        return found
