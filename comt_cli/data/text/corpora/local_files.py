"""`files:GLOB`: local text files, one document per file."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from comt_cli.data.storage import ProgressCallback, hash_files, no_progress
from comt_cli.data.text.settings import Corpus, Document, Place, Stream
from comt_cli.errors import UserError
from comt_cli.files import canonical_json, read_text, sha256


class LocalFiles(Corpus):
    """The files that match a glob, as in a shell with `**` for any folders, sorted by name and found once."""

    pattern = "files:.+"
    said = "files:GLOB, text of your own"
    is_own_text = True

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """The hash of all files' names and contents, independent of their folder. Raises `UserError`."""
        root, paths = self._matched
        digests = hash_files(paths, progress)
        listing = [[path.relative_to(root).as_posix(), digest] for path, digest in zip(paths, digests, strict=True)]
        return {"corpus": "files", "sha256": sha256(canonical_json(listing))}

    def streams(self) -> Sequence[Stream]:
        return [Stream(None, self.documents)]

    def documents(self, start: Place = (0, 0)) -> Iterator[Document]:
        """The text of each file from `start` on, without byte order mark, with one character per line end; the number
        within a file is always 0. Empty files are left out. Raises `UserError` if a file cannot be read."""
        for number, path in enumerate(self._matched[1][start[0] :], start[0]):
            try:
                text = read_text(path).replace("\r\n", "\n")
            except (OSError, ValueError) as error:
                raise UserError(f"corpus: cannot read {path}: {error}", "Texts are in UTF-8.") from error
            if text.strip():
                yield Document(text, (number, 0))

    @cached_property
    def _matched(self) -> tuple[Path, list[Path]]:
        root, paths = _match(self.data.corpus.removeprefix("files:"))
        if not paths:
            hint = f"Paths are relative to {Path.cwd()}. Match files, not folders: ** stands for any folders, as in "
            hint += "files:texts/**/*.txt; write [[] for a bracket in a name."
            raise UserError(f"corpus: no file matches {self.data.corpus}", hint)
        return root, paths


def _match(pattern: str) -> tuple[Path, list[Path]]:
    """The folder before the first wildcard, and the matching files by name; an existing name has priority."""
    parts = Path(pattern).expanduser().absolute().parts
    wild = [i for i, part in enumerate(parts) if glob.has_magic(part) and not Path(*parts[: i + 1]).exists()]
    if not wild:
        path = Path(*parts)
        return path.parent, [path] if path.is_file() else []
    root, rest = Path(*parts[: wild[0]]), "/".join(parts[wild[0] :])
    # Unlike `Path.glob`, and as in a shell: wildcards do not match names that begin with a dot.
    names = {Path(name).as_posix() for name in glob.glob(rest, root_dir=root, recursive=True)}  # noqa: PTH207
    return root, [root / name for name in sorted(names) if (root / name).is_file()]
