"""The translations of a whole split of a data set, which several processes share, and which a kill does not lose.

The split is cut into batches by length. Each batch's hypotheses are written to a file of their own as soon as they are
found; a call that finds such a file does not decode the batch again. Which batches there are follows from the split
alone, so any number of processes, killed at any moment, ends with the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from comt_cli.errors import StorageError
from comt_cli.files import canonical_json, read_json, read_text, sha256, write_json, write_text
from comt_cli.generation.translate import Options, Translator, batches


class Processes(Protocol):
    """The processes that decode together, as one of them sees it; all see the same files."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def barrier(self) -> None:
        """Wait for all."""

    def broadcast(self, value: object) -> object:
        """The first process's value."""


@dataclass(frozen=True)
class Alone:
    """A single process."""

    rank: int = 0
    size: int = 1

    def barrier(self) -> None:
        """Nobody is waited for."""

    def broadcast(self, value: object) -> object:
        """The value."""
        return value


def decode_split(
    translator: Translator,
    texts: Sequence[str],
    options: Options,
    path: Path,
    *,
    weights: str = "",
    processes: Processes | None = None,
) -> list[str]:
    """The best translation of each text, in their order, which is that of the numbers of their pairs.

    `path` is written at the end, a line each, and a file that is there already is the answer: it must be another one
    for other weights, `hypotheses-test-3000.txt`. `weights` names them too: what is left of a call with others, or with
    other options, is not used. All processes of a run call this, and all are given the list.

    Raises:
        UserError: the outputs of the network are not numbers.
        StorageError: the disk is full or the folder gone; what was written before is kept.
    """
    processes = processes or Alone()
    done = processes.broadcast(_written(path, len(texts)) if processes.rank == 0 else None)
    if isinstance(done, list):
        return done
    key = sha256(canonical_json([weights, options.decode.model_dump(mode="json"), options.batch_tokens, list(texts)]))
    sources = translator.sources(texts)
    planned = batches(sources, options.batch_tokens)
    parts = path.with_name(f".{path.name}.parts")
    try:
        parts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {parts}: {error.strerror}") from error
    files = [parts / f"{number}.json" for number in range(len(planned))]
    for number in range(processes.rank, len(planned), processes.size):
        if _part(files[number], key, len(planned[number])) is None:
            found = translator.search([sources[place] for place in planned[number]], options)
            write_json(files[number], {"key": key, "hypotheses": [best.text for best, *_ in found]})
    processes.barrier()
    if processes.rank == 0:
        lines = [""] * len(texts)
        for file, places in zip(files, planned, strict=True):
            hypotheses = _part(file, key, len(places))
            if hypotheses is None:
                raise StorageError(f"{file} is gone, or was changed", "All processes must see the same folder.")
            for place, text in zip(places, hypotheses, strict=True):
                lines[place] = text
        write_text(path, "".join(f"{line}\n" for line in lines))
        shutil.rmtree(parts, ignore_errors=True)
        done = lines
    told = processes.broadcast(done)
    assert isinstance(told, list)
    return told


def _written(path: Path, count: int) -> list[str] | None:
    """The lines of a finished file; None where there is none, or one of another number of lines."""
    try:
        *lines, rest = read_text(path).split("\n")
    except (OSError, ValueError):
        return None
    return lines if len(lines) == count and not rest else None


def _part(path: Path, key: str, count: int) -> list[str] | None:
    """The hypotheses of a batch, if they were found with this key."""
    try:
        part = read_json(path)
    except (OSError, ValueError):
        return None
    if not isinstance(part, dict) or part.get("key") != key or len(part.get("hypotheses", ())) != count:
        return None
    return [str(text) for text in part["hypotheses"]]
