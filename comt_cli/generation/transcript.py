"""Partial output of decoding, from which a stopped one resumes: of numbered sentences, and of a file of lines."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from comt_cli.errors import StorageError, UserError
from comt_cli.files import Unreadable, make_folder, open_own, parse_json, read_text, write_text


def one_line(text: str) -> str:
    """A text as a line of a file, its white space and line breaks single spaces."""
    return " ".join(text.split())


def append(path: Path, text: str, hint: str | None = None, *, separator: str = "") -> None:
    """Write text behind what a file has, if anything with a separator between, to the disk. Raises `StorageError`."""
    try:
        with os.fdopen(open_own(path, os.O_WRONLY | os.O_APPEND), "ab") as handle:
            handle.write(((separator if handle.tell() else "") + text).encode())
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}", hint) from error


class Transcript:
    """The texts of a split, by the numbers of its sentences, while one or several processes write them into a folder
    that all see: each into a file of its own, `<split>.part-<rank>.jsonl`. In the end `finish` writes `<split>.txt`.

    A line is `[number, text, checksum]`. What does not fit its checksum is decoded again: a damaged or edited line, or
    one of other `weights`. `done` are the texts of all processes at the beginning, and those of this one since.
    """

    def __init__(self, folder: Path, split: str, rank: int = 0, weights: str = "") -> None:
        """`weights` names their model, such as a run and its step; every checksum is over it, too."""
        make_folder(folder)
        self.folder, self.split, self._weights = folder, split, weights
        self._own = folder / f"{split}.part-{rank}.jsonl"
        self.done = self._written()

    def add(self, texts: Mapping[int, str]) -> None:
        """Write the texts of some sentences, as lines; they are on disk afterwards. Raises `StorageError`."""
        texts = {number: one_line(text) for number, text in texts.items()}
        # As ASCII: a line that a kill cut off in the middle of a letter would make the file unreadable. A stop in the
        # middle of a line leaves a part of it: the next line begins anew.
        lines = "".join(json.dumps([*each, self._checksum(*each)]) + "\n" for each in texts.items())
        append(self._own, lines, "What was translated before is kept.", separator="\n")
        self.done |= texts

    def texts(self, numbers: Iterable[int]) -> list[str] | None:
        """The texts of these sentences, of all processes, which must be done writing; None where one has none."""
        self.done |= self._written()
        numbers = list(numbers)
        return [self.done[number] for number in numbers] if self.done.keys() >= {*numbers} else None

    def finish(self, texts: Iterable[str]) -> None:
        """Write the whole, a line a text. Raises `StorageError`."""
        write_text(self.folder / f"{self.split}.txt", "".join(f"{text}\n" for text in texts))

    def _checksum(self, number: int, text: str) -> int:
        return zlib.crc32(json.dumps([self._weights, self.split, number, text]).encode())

    def _written(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for path in sorted(self.folder.glob(f"{self.split}.part-*.jsonl")):
            try:
                lines = read_text(path).split("\n")
            except Unreadable:
                continue  # its sentences are decoded again
            for line in lines:
                try:
                    number, text, checksum = parse_json(line)
                except (ValueError, TypeError):  # empty, cut off by a kill, damaged, or without a checksum
                    continue
                if checksum == self._checksum(number, text):
                    found[number] = text
        return found


class PartFile:
    """The lines of an output that a kill does not lose: written to `<path>.part` as they come, behind `key`, which says
    what they are of; and to `<path>` in the end. Nothing else may write the file meanwhile."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.part = path.with_name(f"{path.name}.part")
        self.lines: list[str] = []

    def resume(self, piece: int) -> int:
        """The number of lines of an earlier call that are kept, a multiple of `piece`. Raises `UserError` where they
        are of another key, `StorageError` where the folder cannot be written."""
        content = self.part.read_bytes() if self.part.is_file() else b""
        # What has no line break was cut short.
        first, *lines = content.decode(errors="replace").split("\n")[:-1] or [self.key]
        if first != self.key:
            hint = f"Delete {self.part} or give it another name, or write to another file."
            raise UserError(f"{self.part} is of another model, input or options", hint)
        self.lines = lines[: len(lines) // piece * piece]
        write_text(self.part, "".join(f"{line}\n" for line in [self.key, *self.lines]))
        return len(self.lines)

    def add(self, lines: Sequence[str]) -> None:
        """Write more lines, flushed to the disk. Raises `StorageError`."""
        append(self.part, "".join(f"{line}\n" for line in lines))
        self.lines += lines

    def finish(self) -> None:
        """Write `path` and remove the part. Raises `StorageError`."""
        write_text(self.path, "".join(f"{line}\n" for line in self.lines))
        self.part.unlink(missing_ok=True)
