"""`files:GLOB`: any local text, one document a file."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from comt_cli.data.storage import ProgressCallback, hash_files, no_progress
from comt_cli.data.text.settings import Corpus, Document, Place, Stream, TextSettings
from comt_cli.errors import UserError
from comt_cli.files import canonical_json, conversion, open_file, sha256


class LocalFiles(Corpus):
    """The files that a glob matches, sorted by name, found once per object."""

    pattern = "files:.+"
    said = "files:GLOB, text of your own"
    is_own_text = True

    def __init__(self, data: TextSettings) -> None:
        """The glob is as a shell reads it: `~`, `*`, `?`, `[...]`, and `**` for any folders; relative to where we
        run."""
        super().__init__(data)
        self.glob = data.corpus.removeprefix("files:")

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """The hash of every file's name and content; where the folder lies does not count. Raises `UserError`."""
        root, paths = self._matched
        digests = hash_files(paths, progress)
        listing = [[path.relative_to(root).as_posix(), digest] for path, digest in zip(paths, digests, strict=True)]
        return {"corpus": "files", "sha256": sha256(canonical_json(listing))}

    def streams(self) -> Sequence[Stream]:
        return [Stream(None, self.documents, len(self._matched[1]))]

    def documents(self, start: Place = (0, 0)) -> Iterator[Document]:
        """The text of each file from `start` on, without a byte order mark and with one character a line end; the
        number within a file is always 0. Empty files are left out. Raises `UserError` where a file cannot be read."""
        for number, path in enumerate(self._matched[1]):
            if (number, 0) >= start and (text := _text(path)).strip():
                yield Document(text, (number, 0))

    @cached_property
    def _matched(self) -> tuple[Path, list[Path]]:
        root, paths = _match(self.glob)
        if not paths:
            hint = f"It was looked up from {Path.cwd()}. Name files, not folders: ** stands for any folders, as in "
            hint += "files:texts/**/*.txt; use [[] for a bracket that is part of a name."
            raise UserError(f"corpus: no file matches files:{self.glob}", hint)
        return root, paths


def _text(path: Path) -> str:
    try:
        with open_file(path) as handle:
            content = handle.read()
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise UserError(f"corpus: cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        hint = f"Convert it (for instance: {conversion(path, content)}) or choose another glob."
        raise UserError(f"corpus: {path} is not UTF-8 text (byte {error.start}: {error.reason})", hint) from error


def _match(pattern: str) -> tuple[Path, list[Path]]:
    """The folder before the pattern's first wildcard, and the files that match, sorted by name; a file of the very name
    is meant."""
    parts = Path(pattern).expanduser().absolute().parts
    wild = [i for i, part in enumerate(parts) if glob.has_magic(part) and not Path(*parts[: i + 1]).exists()]
    if not wild:
        path = Path(*parts)
        return path.parent, [path] if path.is_file() else []
    root, rest = Path(*parts[: wild[0]]), "/".join(parts[wild[0] :])
    # Unlike `Path.glob`, as a shell does: a wildcard does not match names that begin with a dot.
    names = {Path(name).as_posix() for name in glob.glob(rest, root_dir=root, recursive=True)}  # noqa: PTH207
    return root, [root / name for name in sorted(names) if (root / name).is_file()]
