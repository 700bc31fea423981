"""Texts of the running Python's standard library: extracted once per Python and kept in the cache folder.

What is installed beside the library is left out: two machines with one Python have the same library, but other
packages.
"""

from __future__ import annotations

import functools
import os
import platform
import sysconfig
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from comt_cli.data.storage import ProgressCallback, file_lock, no_progress, state_of
from comt_cli.data.text.corpus import Corpus, Document, SplitName, Stream
from comt_cli.files import cache_folder, canonical_json, read_json, sha256, write_json

MINIMUM_CHARACTERS = 40
# Tests and other programs, what is installed beside the library, and the encodings with their 100 equal docstrings.
_SKIPPED = """
    __pycache__ dist-packages encodings ensurepip idlelib lib-dynload lib2to3 pydoc_data site-packages test tests
    turtledemo
"""
SKIPPED_FOLDERS = frozenset(_SKIPPED.split())


class LibraryTexts(Corpus):
    """A corpus of them and, as there is only one, its stream."""

    split: SplitName | None = None

    version: ClassVar[int]
    """Part of the name of the extracted texts in the cache: raise it when the same Python may give other texts
    (tests/contract/test_cache_versions.py asks for it)."""

    @abstractmethod
    def extract(self, progress: ProgressCallback) -> tuple[str, ...]:
        """The documents, read from the running Python, in a fixed order. Raises `UserError` where it has none."""

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """The hash of all documents; extracts them (a few seconds) when this Python's are not in the cache."""
        return {"corpus": self.names[0], "sha256": _content_hash(self._documents(progress))}

    def streams(self) -> Sequence[Stream]:
        """Itself."""
        return [self]

    @property
    def total(self) -> int | None:
        """How many documents there are."""
        return len(self._documents(no_progress))

    def documents(self, start: tuple[int, int] = (0, 0)) -> Iterator[Document]:
        """All documents from `start` on; the file number is always 0."""
        texts = self._documents(no_progress)
        for number in range(start[1] if start[0] == 0 else len(texts), len(texts)):
            yield Document(texts[number], (0, number))

    def _documents(self, progress: ProgressCallback) -> tuple[str, ...]:
        path = self._cache_path()
        found = _read(path)
        if found is None:
            with file_lock(path.with_suffix(".lock"), progress):
                found = _read(path)
                if found is None:
                    texts = self.extract(progress)
                    write_json(path, {"sha256": _content_hash(texts), "documents": texts})
                    found = texts
        return found

    def _cache_path(self) -> Path:
        """One file per Python version and installation: distributions patch and split the library."""
        place = sha256(sysconfig.get_path("stdlib"))[:8]
        name = f"{platform.python_implementation()}-{platform.python_version()}-{place}-v{self.version}.json"
        return cache_folder() / self.names[0] / name


def source_files(root: Path) -> list[Path]:
    """The library's own modules, sorted by their path below `root`."""
    found = []
    for folder, below, names in os.walk(root):
        below[:] = sorted(set(below) - SKIPPED_FOLDERS)
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _read(path: Path) -> tuple[str, ...] | None:
    """The documents in the cache; None when they are absent or damaged, since extracting them again repairs both."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _read_version(path, *state_of(status))


@functools.lru_cache(maxsize=2)
def _read_version(path: Path, *state: int) -> tuple[str, ...] | None:  # noqa: ARG001 - the cache's key
    try:
        stored = read_json(path)
        texts = tuple(stored["documents"])
        return texts if stored["sha256"] == _content_hash(texts) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _content_hash(texts: Sequence[str]) -> str:
    return sha256(canonical_json(list(texts)))
