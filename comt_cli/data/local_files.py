"""`files:GLOB`: any local text, one document a file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comt_cli.data.corpus import Document, SplitName, Stream
from comt_cli.data.storage import ProgressCallback, changed, hash_file, make_folder, no_progress, state_of
from comt_cli.errors import StorageError, UserError
from comt_cli.files import cache_folder, canonical_json, conversion, open_file, read_json, sha256, write_json

_WILDCARDS = "*?["
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True)
class _File:
    name: str  # relative to the part of the pattern before its first wildcard, with "/"
    path: Path
    sha256: str


class LocalFiles:
    """The files that a glob matches, sorted by name. The corpus and, as there is only one, its stream."""

    endless = False
    validation_tokens: int | None = None
    split: SplitName | None = None

    def __init__(self, pattern: str) -> None:
        """`pattern` as a shell reads it: `~`, `*`, `?`, `[...]`, and `**` for any folders; relative to where we run."""
        self.pattern = pattern
        self._found: list[_File] | None = None

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """The hash of every file's name and content; where the folder lies does not count. Raises `UserError`."""
        listing = [[file.name, file.sha256] for file in self._hashed(progress)]
        return {"corpus": "files", "sha256": sha256(canonical_json(listing))}

    def streams(self) -> Sequence[Stream]:
        """Itself."""
        return [self]

    @property
    def total(self) -> int | None:
        """How many files there are."""
        return len(self._hashed())

    def documents(self, start: tuple[int, int] = (0, 0)) -> Iterator[Document]:
        """The text of each file from `start` on; the number within a file is always 0. Empty files are left out. Raises
        `UserError` where a file is not UTF-8, cannot be read, or has changed since it was hashed."""
        for number, file in enumerate(self._hashed()):
            if (number, 0) < start:
                continue
            text = self._text(file)
            if text.strip():
                yield Document(text, (number, 0))

    def _hashed(self, progress: ProgressCallback = no_progress) -> list[_File]:
        """The files with their hashes, found once per object: one preparation reads one state of the disk."""
        if self._found is None:
            self._found = self._hash_all(progress)
        return self._found

    def _hash_all(self, progress: ProgressCallback) -> list[_File]:
        root, paths = _match(self.pattern)
        if not paths:
            raise UserError(
                f"corpus: no file matches files:{self.pattern}",
                f"It was looked up from {Path.cwd()}; {_why_none(self.pattern)}",
            )
        known = self._known = KnownHashes(root, self.pattern)
        files = []
        for number, path in enumerate(paths):
            progress("hashing files", number, len(paths))
            files.append(_File(path.relative_to(root).as_posix(), path, known.of(path)))
        progress("hashing files", len(paths), len(paths))
        known.save()
        return files

    def _text(self, file: _File) -> str:
        """The file's text, without a byte order mark and with one character a line end."""
        try:
            with open_file(file.path) as handle:
                content = handle.read()
        except OSError as error:
            raise UserError(f"corpus: cannot read {file.path}: {error.strerror or error}") from error
        if sha256(content) != file.sha256:
            self._known.forget()
            raise changed(file.path)
        try:
            return content.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise UserError(
                f"corpus: {file.path} is not UTF-8 text (byte {error.start}: {error.reason})",
                f"Convert it (for instance: {conversion(file.path, content)}) or choose another glob.",
            ) from error


def _match(pattern: str) -> tuple[Path, list[Path]]:
    """The folder before the pattern's first wildcard, and the files that match, sorted by their name below it.

    As in a shell, a wildcard does not match names that begin with a dot. What is there by the very name that is given
    is meant, whatever signs are in it.
    """
    parts = Path(pattern).expanduser().absolute().parts
    wild = next(
        (i for i, part in enumerate(parts) if set(part) & {*_WILDCARDS} and not Path(*parts[: i + 1]).exists()), None
    )
    if wild is None:
        path = Path(*parts)
        return path.parent, [path] if path.is_file() else []
    root, rest = Path(*parts[:wild]), "/".join(parts[wild:])
    try:
        paths = [path for path in root.glob(rest) if path.is_file()]
    except (ValueError, NotImplementedError, OSError) as error:
        raise UserError(f"corpus: files:{pattern} cannot be looked up: {error}") from error
    if not any(part.startswith(".") for part in parts[wild:]):
        paths = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(root).parts)]
    return root, sorted(set(paths), key=lambda path: path.relative_to(root).as_posix())


def _why_none(pattern: str) -> str:
    """What may be wrong with a pattern that nothing matches."""
    if (path := Path(pattern).expanduser()).is_dir():
        return f"it is a folder: say which files in it, as in files:{pattern.rstrip('/')}/**/*.txt"
    if path.exists():
        return "what is there is no ordinary file"
    if "[" in pattern:
        return "[...] stands for one of the signs in it: write [[] for a bracket that is part of a name"
    if "**" in pattern:
        return "** stands for any folders, but for none behind a symbolic link: name what the link leads to"
    return "** stands for any folders, as in files:texts/**/*.txt"


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
