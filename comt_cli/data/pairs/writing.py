"""Training pairs as token files, appended block by block: a preparation that was killed resumes after the last block.

Four files, tokens and offsets of sources and of targets. A block is appended to all four and flushed to disk; then the
record of their sizes, `progress.json`, is replaced. What lies behind the recorded sizes is cut off before writing
resumes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt, ValidationError

from comt_cli.data.pairs.record import SIDES, LeftOut, Side, offset_file, token_file
from comt_cli.data.prepared import Record
from comt_cli.data.token_lists import Unsigned
from comt_cli.errors import StorageError
from comt_cli.files import read_json, write_json

PROGRESS = "progress.json"
OFFSETS = np.dtype("<i8")


class _Progress(Record):
    """How far a preparation has come: where reading resumes, and what the files hold."""

    after: tuple[NonNegativeInt, NonNegativeInt] = (0, 0)
    pairs: NonNegativeInt = 0
    tokens: dict[Side, NonNegativeInt] = dict.fromkeys(SIDES, 0)
    left_out: LeftOut = LeftOut()


class PairWriter:
    """Appends pairs to the files of `folder`, after those that an earlier preparation recorded there. `left_out` is
    what was left out so far."""

    def __init__(self, folder: Path, dtype: np.dtype[Unsigned]) -> None:
        self._folder, self._dtype = folder, dtype
        self._done = self._recorded()
        self._pending: dict[Side, list[Sequence[int]]] = {side: [] for side in SIDES}
        self.left_out = self._done.left_out

    @property
    def after(self) -> tuple[int, int]:
        """The place in the corpus where reading resumes."""
        return self._done.after

    @property
    def pairs(self) -> int:
        """How many pairs are written or wait to be."""
        return self._done.pairs + len(self._pending["source"])

    def add(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Take one pair."""
        self._pending["source"].append(source)
        self._pending["target"].append(target)

    def flush(self, after: tuple[int, int]) -> None:
        """Write what waits; `after` is the place of the first pair that was not read. Raises `StorageError`."""
        tokens = dict(self._done.tokens)
        try:
            for side in SIDES:
                ends = tokens[side] + np.cumsum([len(ids) for ids in self._pending[side]], dtype=OFFSETS)
                ids = np.array([i for each in self._pending[side] for i in each], dtype=self._dtype)
                self._append(token_file(side), ids.tobytes())
                self._append(offset_file(side), ends.astype(OFFSETS).tobytes())
                tokens[side] += len(ids)
        except OSError as error:
            raise StorageError(
                f"cannot write to {self._folder}: {error.strerror or error}",
                "What was prepared before is kept. Make room or restore the folder, then run the same command again.",
            ) from error
        self._done = _Progress(after=after, pairs=self.pairs, tokens=tokens, left_out=self.left_out)
        write_json(self._folder / PROGRESS, self._done.model_dump(mode="json"))
        self._pending = {side: [] for side in SIDES}

    def _append(self, name: str, content: bytes) -> None:
        with (self._folder / name).open("ab") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())

    def _recorded(self) -> _Progress:
        """The record, with the files cut to it; an empty one, with new files, where there is none that they meet."""
        try:
            found = _Progress.model_validate(read_json(self._folder / PROGRESS))
            for name, size in self._sizes(found):
                if (self._folder / name).stat().st_size < size:
                    raise ValueError(f"{name} is shorter than recorded")
        except (OSError, ValueError, ValidationError):
            found = _Progress()
            for side in SIDES:
                self._start(token_file(side), b"")
                self._start(offset_file(side), np.zeros(1, dtype=OFFSETS).tobytes())
        for name, size in self._sizes(found):
            os.truncate(self._folder / name, size)
        return found

    def _sizes(self, progress: _Progress) -> list[tuple[str, int]]:
        """The bytes of every file."""
        sizes: list[tuple[str, int]] = []
        for side in SIDES:
            sizes.append((token_file(side), progress.tokens[side] * self._dtype.itemsize))
            sizes.append((offset_file(side), (progress.pairs + 1) * OFFSETS.itemsize))
        return sizes

    def _start(self, name: str, content: bytes) -> None:
        try:
            (self._folder / name).write_bytes(content)
        except OSError as error:
            raise StorageError(f"cannot write to {self._folder}: {error.strerror or error}") from error


def open_side(folder: Path, side: Side, dtype: str) -> tuple[Any, Any]:
    """Memory maps of a side's tokens and offsets. Raises `OSError` and `ValueError`."""
    tokens = np.memmap(folder / token_file(side), dtype=np.dtype(dtype), mode="r")
    return tokens, np.memmap(folder / offset_file(side), dtype=OFFSETS, mode="r")
