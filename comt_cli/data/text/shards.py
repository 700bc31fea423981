"""Token shards: collected in memory, written one part at a time, found again after a kill, opened as memory maps.

A part is written as up to four files, `train-00000.tokens` (ids, uint16 or uint32), `train-00000.offsets` (uint32,
where each document begins within the shard, and the end) and the same for validation; then its record,
`part-00000.json`. The record comes last: a part without one was cut off and is written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from comt_cli.data.prepared import FileRecord, is_whole
from comt_cli.data.text.corpus import SPLITS, SplitName
from comt_cli.data.text.record import Part, SplitPart
from comt_cli.data.token_lists import Unsigned
from comt_cli.files import atomic_file, read_json, write_json

OFFSET_DTYPE = np.dtype("<u4")


def open_shards(
    folder: Path, parts: Sequence[Part], split: SplitName, kind: Literal["tokens", "offsets"], dtype: str
) -> list[NDArray[Unsigned]]:
    """Memory maps of one split's tokens or offsets, one array a shard, in order."""
    names = [file.name for part in parts for file in part.of(split).files if file.name.endswith(f".{kind}")]
    return [np.memmap(folder / name, dtype=np.dtype(dtype), mode="r") for name in names]


class _Pending:
    """The documents of one split that are not yet on disk."""

    def __init__(self) -> None:
        self.documents: list[NDArray[Unsigned]] = []
        self.tokens = 0
        self.bytes = 0


class PartWriter:
    """Collects documents and writes them to `folder` part by part, resuming after the parts that are there."""

    def __init__(self, folder: Path, dtype: np.dtype[Unsigned], part_bytes: int) -> None:
        """A shard stays within `part_bytes`, unless a single document is larger: documents are never divided."""
        self._folder = folder
        self._dtype = dtype
        self._limit = part_bytes // dtype.itemsize
        self.parts = whole_parts(folder)
        self._tokens = {split: sum(part.of(split).tokens for part in self.parts) for split in SPLITS}
        self._pending: dict[SplitName, _Pending] = {split: _Pending() for split in SPLITS}

    @property
    def after(self) -> tuple[int, int, int]:
        """Where reading resumes after the parts on disk."""
        return self.parts[-1].after if self.parts else (0, 0, 0)

    def tokens(self, split: SplitName) -> int:
        """Tokens of one split so far, on disk and in memory."""
        return self._tokens[split]

    def add(self, split: SplitName, ids: Sequence[int], text_bytes: int, place: tuple[int, int, int]) -> None:
        """Take one document, which is at `place` in the corpus; write a part first when it would not fit. Raises
        `StorageError` where the disk refuses. The parts written before are intact."""
        pending = self._pending[split]
        if pending.tokens and pending.tokens + len(ids) > self._limit:
            self.flush(place)
            pending = self._pending[split]
        pending.documents.append(np.asarray(ids, dtype=self._dtype))
        pending.tokens += len(ids)
        pending.bytes += text_bytes
        self._tokens[split] += len(ids)

    def flush(self, after: tuple[int, int, int]) -> None:
        """Write what is in memory as one part; `after` is the place of the first document that is not in it."""
        if not any(pending.documents for pending in self._pending.values()):
            return
        number = len(self.parts)
        train, validation = (self._write_split(split, number) for split in SPLITS)
        part = Part(number=number, after=after, train=train, validation=validation)
        write_json(self._folder / _record_name(number), part.model_dump(mode="json"))
        self.parts.append(part)
        self._pending = {split: _Pending() for split in SPLITS}

    def _write_split(self, split: SplitName, number: int) -> SplitPart:
        pending = self._pending[split]
        files: tuple[FileRecord, ...] = ()
        if pending.documents:
            offsets = np.zeros(len(pending.documents) + 1, dtype=OFFSET_DTYPE)
            np.cumsum([len(document) for document in pending.documents], out=offsets[1:])
            tokens = np.concatenate(pending.documents)
            stem = f"{split}-{number:05d}"
            files = (
                _write_array(self._folder / f"{stem}.tokens", tokens),
                _write_array(self._folder / f"{stem}.offsets", offsets),
            )
        return SplitPart(tokens=pending.tokens, documents=len(pending.documents), bytes=pending.bytes, files=files)


def _write_array(path: Path, values: NDArray[Unsigned]) -> FileRecord:
    """Write an array's bytes, whole or not at all, and say what was written. Raises `StorageError`."""
    content = values.view(np.uint8).data
    with atomic_file(path) as handle:
        handle.write(content)
    return FileRecord(name=path.name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def whole_parts(folder: Path) -> list[Part]:
    """The parts that an earlier preparation finished, each checked against its hashes, up to the first that is not."""
    parts: list[Part] = []
    while (part := _read_part(folder, len(parts))) is not None:
        parts.append(part)
    return parts


def _read_part(folder: Path, number: int) -> Part | None:
    try:
        part = Part.model_validate(read_json(folder / _record_name(number)))
    except (OSError, ValueError, ValidationError):
        return None
    return part if part.number == number and is_whole(folder, part.files()) else None


def _record_name(number: int) -> str:
    return f"part-{number:05d}.json"
