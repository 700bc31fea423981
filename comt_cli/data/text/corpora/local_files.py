"""`files:GLOB[#COLUMN]`: local files of one kind: texts, one document per file, or files of rows, one per row."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from comt_cli.data.storage import ProgressCallback, first_line, hash_files, no_progress
from comt_cli.data.text.columns import COLUMN, format_of, read_column
from comt_cli.data.text.settings import Corpus, Document, Place, Stream
from comt_cli.errors import UserError
from comt_cli.files import canonical_json, open_file, read_text, sha256


class LocalFiles(Corpus):
    """The files that match a glob, as in a shell with `**` for any folders, sorted by name and found once. Parquet,
    Arrow, JSON lines and CSV (`columns.format_of`) have rows; all other files are texts."""

    pattern = "files:.+"
    said = "files:GLOB[#COLUMN], text of your own"
    is_own_text = True

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """The hash of all files' names and contents, independent of their folder, and the column. Raises
        `UserError`."""
        root, paths, column = self._matched
        digests = hash_files(paths, progress)
        listing = [[path.relative_to(root).as_posix(), digest] for path, digest in zip(paths, digests, strict=True)]
        own = {} if column is None else {"column": column}
        return {"corpus": "files", "sha256": sha256(canonical_json(listing)), **own}

    def streams(self) -> Sequence[Stream]:
        return [Stream(None, self.documents)]

    def documents(self, start: Place = (0, 0)) -> Iterator[Document]:
        """The documents from `start` on. Empty ones are left out. Raises `UserError` if a file cannot be read."""
        _, paths, column = self._matched
        for number, path in enumerate(paths[start[0] :], start[0]):
            try:
                for row, text in _texts(path, column, start[1] if number == start[0] else 0):
                    if text.strip():
                        yield Document(text, (number, row))
            except (OSError, ValueError) as error:
                said = f"corpus: cannot read {path}: {first_line(error)}"
                raise UserError(said, "Texts are in UTF-8.") from error

    @cached_property
    def _matched(self) -> tuple[Path, list[Path], str | None]:
        """The files' folder, the files by name, and the column that is read (None: they are texts)."""
        asked = self.data.corpus.removeprefix("files:")
        column: str | None = None
        root, paths = _match(asked)
        if not paths and "#" in asked:  # names may have a number sign
            pattern, _, column = asked.rpartition("#")
            root, paths = _match(pattern)
        if not paths:
            hint = f"Paths are relative to {Path.cwd()}. Match files, not folders: ** stands for any folders, as in "
            hint += "files:texts/**/*.txt; write [[] for a bracket in a name."
            raise UserError(f"corpus: no file matches {self.data.corpus}", hint)
        kinds = {format_of(path.name): path.name for path in reversed(paths)}
        if len(kinds) > 1:
            named = ", ".join(sorted(f"{name} ({(kind or '.text')[1:]})" for kind, name in kinds.items()))
            hint = "Match files of one kind by their ending, for instance files:data/**/*.parquet."
            raise UserError(f"corpus: {self.data.corpus} matches files of several kinds: {named}", hint)
        if None not in kinds:
            return root, paths, column or COLUMN
        if column is not None:
            said = f"corpus: {self.data.corpus} names the column {column!r}, but {paths[0].name} is a text"
            raise UserError(said, "Only files of rows have columns: .parquet, .arrow, .jsonl and .csv.")
        return root, paths, None


def _texts(path: Path, column: str | None, first: int) -> Iterator[tuple[int, str]]:
    """The texts of a file from number `first` on, with their numbers: one text, without byte order mark and with one
    character per line end, or those of its rows as they are."""
    if column is None:
        yield 0, read_text(path).replace("\r\n", "\n")
        return
    with open_file(path) as file:
        yield from read_column(file, str(path), column, first)


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
