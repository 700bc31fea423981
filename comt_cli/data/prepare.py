"""Data in the cache folder: prepared once from settings, recorded in a manifest, and verified whenever it is opened.

Each kind of data is a folder next to this file. Its `settings.py` has its settings, the base class of its corpora and
the class `Kind`, which identifies the data; its `dataset.py` writes and opens it. Fingerprints do not need NumPy.
"""

from __future__ import annotations

import importlib
import platform
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from comt_cli import __version__ as comt_version
from comt_cli.data.settings import DataSection
from comt_cli.data.storage import ProgressCallback, file_lock, first_line, hash_file, hash_files, no_progress
from comt_cli.data.tokenizer import Tokenizer, load_tokenizer
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, canonical_json, if_damaged, make_folder, read_json, sha256, write_json
from comt_cli.recipe.settings import Section

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"


class Record(BaseModel):
    """Part of a manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(Record):
    """A file as it was written."""

    name: str
    bytes: NonNegativeInt
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        return cls(name=path.name, bytes=path.stat().st_size, sha256=hash_file(path))


class Manifest(Record):
    """The record of a prepared folder, written last: a folder with a manifest is complete."""

    fingerprint: str
    settings: dict[str, Any]
    versions: dict[str, str]
    files: tuple[FileRecord, ...]

    @property
    def note(self) -> str | None:
        """What to tell beside all results on this data."""
        return None

    def all_files(self) -> Sequence[FileRecord]:
        """All files that the folder must have."""
        return self.files

    def content_hash(self) -> str:
        """16 hexadecimal digits over the content of all files, independent of their names."""
        return sha256(canonical_json([file.sha256 for file in self.all_files()]))[:16]

    def write(self, folder: Path) -> None:
        """Write the manifest with its hash, so that damage is detected. Raises `StorageError`."""
        content = self.model_dump(mode="json")
        write_json(folder / MANIFEST, {"sha256": sha256(canonical_json(content)), "manifest": content})

    @classmethod
    def read(cls, folder: Path, fingerprint: str) -> Self:
        """Read the manifest of `folder`, which must have this `fingerprint`. Raises `UserError` naming the file."""
        path = folder / MANIFEST
        try:
            stored = read_json(path)
            content = stored["manifest"]
            if stored["sha256"] != sha256(canonical_json(content)):
                raise ValueError("its content has changed (the hash differs)")
            manifest = cls.model_validate(content)
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise damaged(path, first_line(error)) from error
        if manifest.fingerprint != fingerprint:
            raise damaged(path, f"it belongs to other data ({manifest.fingerprint}, expected {fingerprint})")
        return manifest


D = TypeVar("D", bound=DataSection)
C = TypeVar("C")
S = TypeVar("S")


class Prepared(ABC, Generic[D, C]):
    """Data of one kind: the settings `data`, and their corpus.

    `dataset.py` of the kind has `write`, which writes the files of a fingerprint into a folder, possibly after those of
    a killed preparation, and returns their manifest; and `opened`, which opens them.

    `cache` is the folder in the cache with one folder per fingerprint; `keys` are settings that are part of the
    identity.
    """

    cache: ClassVar[str]
    manifest: ClassVar[type[Manifest]]
    keys: ClassVar[tuple[str, ...]] = ()

    def __init__(self, data: D, corpus: C | None = None) -> None:
        self.data = data
        self.corpus: C = data.make_corpus() if corpus is None else corpus

    @abstractmethod
    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        """Everything besides `keys` that decides the data, as JSON. Needs no network; raises `UserError`."""

    def fingerprint(self, progress: ProgressCallback = no_progress) -> str:
        """16 hexadecimal digits over the identity: the content of local files, or the request to the hub."""
        own = {key: getattr(self.data, key) for key in self.keys}
        return sha256(canonical_json({**self.identity(progress), **own}))[:16]

    def folder(self, name: str) -> Path:
        return cache_folder() / self.cache / name

    def is_current(self, folder: Path, name: str) -> bool:
        """Whether the folder is complete. Raises `UserError` if it is damaged."""
        return (folder / MANIFEST).exists()

    def known(self, name: str) -> Manifest | None:
        """The record of the prepared data with this fingerprint; None if there is none, or it cannot be read."""
        folder = self.folder(name)
        try:
            return self.manifest.read(folder, name) if self.is_current(folder, name) else None
        except UserError:
            return None

    def known_content(self, name: str) -> str | None:
        """The content hash of that data."""
        known = self.known(name)
        return None if known is None else known.content_hash()

    def prepare(self, progress: ProgressCallback = no_progress) -> Any:
        """The data, prepared now unless it was before, by one process at a time. Raises `UserError` if a source is
        missing or prepared files are damaged; `StorageError` if files cannot be written."""
        name = self.fingerprint(progress)
        folder = self.folder(name)
        if not self.is_current(folder, name):
            with file_lock(folder.with_name(f"{folder.name}.lock"), progress):
                if not self.is_current(folder, name):  # another process may have prepared it meanwhile
                    self._make(folder, name, progress)
        manifest = self.manifest.read(folder, name)
        verify(folder, manifest.all_files(), progress)
        return self.dataset_module.opened(self, folder, manifest)

    @property
    def dataset_module(self) -> Any:
        return importlib.import_module(f"{type(self).__module__.rpartition('.')[0]}.dataset")

    def record(self, name: str, folder: Path, files: Sequence[str], **own: Any) -> Manifest:
        """The manifest of fingerprint `name` with the `files` of `folder`."""
        own["files"] = tuple(FileRecord.of(folder / file) for file in files)
        packages = {package: metadata.version(package) for package in ("numpy", "pillow", "sentencepiece")}
        versions = {"comt": comt_version, "python": platform.python_version(), **packages}
        return self.manifest(fingerprint=name, settings=self.data.model_dump(mode="json"), versions=versions, **own)

    def _make(self, folder: Path, name: str, progress: ProgressCallback) -> None:
        make_folder(folder)
        (folder / MANIFEST).unlink(missing_ok=True)  # of older files
        manifest: Manifest = self.dataset_module.write(self, folder, name, progress)
        if self.fingerprint(progress) != name:  # source files have changed meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            said = f"corpus: {getattr(self.data, 'corpus', name)} was changed while it was being read"
            raise UserError(said, "Run the same command again.")
        manifest.write(folder)
        kept = {MANIFEST, *(file.name for file in manifest.all_files())}
        for path in folder.iterdir():  # records of progress, and partial files
            if path.name not in kept and path.is_file():
                path.unlink(missing_ok=True)


def kind_of(data: Section) -> Prepared[Any, Any]:
    """The `Kind` of these settings."""
    return cast(Prepared[Any, Any], importlib.import_module(type(data).__module__).Kind(data))


def prepare(data: Section, progress: ProgressCallback | None = None) -> Any:
    """`Prepared.prepare` of these settings. Raises `UserError` and `StorageError`."""
    return kind_of(data).prepare(progress or no_progress)


class PreparedTokens(ABC, Generic[S]):
    """Prepared tokens of one fingerprint, opened."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.fingerprint = folder, manifest.fingerprint
        self.content_hash = manifest.content_hash()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.folder / TOKENIZER)

    @property
    def vocabulary_size(self) -> int:
        return self.tokenizer.vocabulary_size

    @abstractmethod
    def split(self, name: Any) -> S: ...

    @cached_property
    def train(self) -> S:
        return self.split("train")

    @cached_property
    def validation(self) -> S:
        return self.split("validation")

    @cached_property
    def test(self) -> S:
        return self.split("test")


def damaged(path: Path, reason: str) -> UserError:
    """The error for a damaged file of a prepared folder."""
    delete = f"Delete the folder {path.parent} and run the same command again, which prepares the data again."
    return UserError(f"prepared data is damaged: {path}: {reason}", if_damaged(delete, sys.exception()))


def verify(folder: Path, files: Sequence[FileRecord], progress: ProgressCallback = no_progress) -> None:
    """Check the hash of every file. Raises `UserError` naming the file."""
    try:
        found = hash_files([folder / file.name for file in files], progress)
    except UserError as error:
        raise damaged(folder / MANIFEST, error.message) from error
    for file, digest in zip(files, found, strict=True):
        if digest != file.sha256:
            raise damaged(folder / file.name, "its content has changed (the hash differs)")
