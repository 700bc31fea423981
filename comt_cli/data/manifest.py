"""What a prepared folder holds, written down: the parts, their files and hashes; and the check that it is still so."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from comt_cli import __version__ as comt_version
from comt_cli.data.corpus import SplitName
from comt_cli.data.storage import ProgressCallback, first_line, hash_file, no_progress, state_of
from comt_cli.errors import StorageError, UserError
from comt_cli.files import canonical_json, if_damaged, read_json, sha256, write_json

MANIFEST = "manifest.json"
STAMP = "verified.json"
TOKENIZER = "tokenizer.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Record):
    """A file as it was written."""

    name: str
    bytes: NonNegativeInt
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """As it is. Raises `OSError`."""
        return cls(name=path.name, bytes=path.stat().st_size, sha256=hash_file(path))


class SplitPart(_Record):
    """What one part holds of one split: `tokens` ids, of `documents` texts, standing for `bytes` of UTF-8."""

    tokens: NonNegativeInt
    documents: NonNegativeInt
    bytes: NonNegativeInt
    files: tuple[FileRecord, ...]


class Part(_Record):
    """The documents between two places of the corpus: at most one shard of each split.

    `after` is the place (stream, file, number in the file) where reading resumes after this part.
    """

    number: NonNegativeInt
    after: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt]
    train: SplitPart
    validation: SplitPart

    def of(self, split: SplitName) -> SplitPart:
        """The part's train or validation split."""
        return self.train if split == "train" else self.validation

    def files(self) -> tuple[FileRecord, ...]:
        """All files of the part."""
        return self.train.files + self.validation.files


class PreparedFolder(_Record):
    """The record of a prepared folder. It is written last: its presence means that the folder is complete."""

    fingerprint: str

    @staticmethod
    def made_with(*packages: str) -> dict[str, str]:
        """The versions of comt, Python and these packages."""
        own = {"comt": comt_version, "python": platform.python_version()}
        return own | {package: metadata.version(package) for package in packages}

    def write(self, folder: Path) -> None:
        """Write the manifest with its own hash, so that a damaged one is recognised. Raises `StorageError`."""
        content = self.model_dump(mode="json")
        write_json(folder / MANIFEST, {"sha256": sha256(canonical_json(content)), "manifest": content})

    @classmethod
    def read(cls, folder: Path, fingerprint: str) -> Self:
        """Read the manifest of `folder`, which must be that of `fingerprint`. Raises `UserError` naming the file."""
        path = folder / MANIFEST
        try:
            stored = read_json(path)
            content = stored["manifest"]
            if stored["sha256"] != sha256(canonical_json(content)):
                raise ValueError("its content is not what was written (the hash differs)")
            manifest = cls.model_validate(content)
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise damaged(path, first_line(error)) from error
        if manifest.fingerprint != fingerprint:
            raise damaged(path, f"it belongs to other data ({manifest.fingerprint}, expected {fingerprint})")
        return manifest


class Manifest(PreparedFolder):
    """Everything about a prepared corpus."""

    format: int
    settings: dict[str, Any]
    corpus: dict[str, Any]
    versions: dict[str, str]
    dtype: str
    vocabulary_size: int
    tokenizer: FileRecord
    parts: tuple[Part, ...]

    def files(self) -> list[FileRecord]:
        """All files that the folder must hold."""
        return [self.tokenizer, *(file for part in self.parts for file in part.files())]

    def content_hash(self) -> str:
        """16 hexadecimal digits over all tokens and the tokenizer: the content that was read, independent of names."""
        return content_hash(self.files())


def content_hash(files: Sequence[FileRecord]) -> str:
    """16 hexadecimal digits over the content of files, independent of their names."""
    return sha256(canonical_json([file.sha256 for file in files]))[:16]


def damaged(path: Path, reason: str) -> UserError:
    """The error for a file of a prepared folder that cannot be trusted."""
    delete = f"Delete the folder {path.parent} and run the same command again: the data is prepared anew."
    return UserError(f"prepared data is damaged: {path}: {reason}", if_damaged(delete, sys.exception()))


def verify(folder: Path, files: Sequence[FileRecord], progress: ProgressCallback = no_progress) -> None:
    """Check that every file is the one that was written.

    Sizes are always compared. Hashes are computed when this machine has not seen these files pass before (and
    none has changed, see `state_of`); a small stamp in the folder remembers that, so opening stays quick.

    Raises:
        UserError: a file is missing or differs; the message names it and says what to do.
    """
    state = [_state(folder, file) for file in files]
    stamp = {"machine": platform.node(), "files": [[file.name, file.sha256] for file in files], "state": state}
    if _read_stamp(folder) == stamp:
        return
    for number, file in enumerate(files):
        progress("verifying files of prepared data", number, len(files))
        _check_hash(folder, file)
    progress("verifying files of prepared data", len(files), len(files))
    with contextlib.suppress(StorageError):  # a shared cache that we may only read: the check is made again next time
        write_json(folder / STAMP, stamp)


def is_whole(folder: Path, files: tuple[FileRecord, ...]) -> bool:
    """Whether every file is there with the recorded content."""
    try:
        for file in files:
            _state(folder, file)
            _check_hash(folder, file)
    except UserError:
        return False
    return True


def _state(folder: Path, file: FileRecord) -> list[int]:
    """`state_of` a file that must be there with the recorded size."""
    try:
        status = (folder / file.name).stat()
    except OSError as error:
        raise damaged(folder / file.name, error.strerror or str(error)) from error
    if status.st_size != file.bytes:
        raise damaged(folder / file.name, f"it has {status.st_size} bytes instead of {file.bytes}")
    return state_of(status)


def _check_hash(folder: Path, file: FileRecord) -> None:
    path = folder / file.name
    try:
        digest = hash_file(path)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from error
    if digest != file.sha256:
        raise damaged(path, "its content is not what was written (the hash differs)")


def _read_stamp(folder: Path) -> Any:
    try:
        return read_json(folder / STAMP)
    except (OSError, ValueError):  # absent or damaged: the files are checked again
        return None
