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
        """The documents from `start` on: rows as they are, texts without byte order mark and with one character per
        line end. Empty ones are left out. Raises `UserError` if a file cannot be read."""
        _, paths, column = self._matched
        for number, path in enumerate(paths[start[0] :], start[0]):
            try:
                if column is not None:
                    with open_file(path) as file:
                        first = start[1] if number == start[0] else 0
                        for row, text in read_column(file, str(path), column, first):
                            yield Document(text, (number, row))
                elif (text := read_text(path).replace("\r\n", "\n")).strip():
                    yield Document(text, (number, 0))
            except (OSError, ValueError) as error:
                hint = "It may be damaged or cut off. Texts, CSV and JSON lines are in UTF-8."
                raise UserError(f"corpus: cannot read {path}: {first_line(error)}", hint) from error

    @cached_property
    def _matched(self) -> tuple[Path, list[Path], str | None]:
        """The files' folder, the files by name, and the column that is read (None: they are texts)."""
        asked = self.data.corpus.removeprefix("files:")
        pattern, root, paths = matching_files(self.data.corpus, asked, asked.rpartition("#")[0])
        column = asked[len(pattern) + 1 :] or None
        kinds = {format_of(path.name): path.name for path in reversed(paths)}
        if len(kinds) > 1:
            named = ", ".join(sorted(f"{name} ({(kind or '.text')[1:]})" for kind, name in kinds.items()))
            hint = "Match files of one kind by their ending, for instance files:data/**/*.parquet."
            raise UserError(f"corpus: {self.data.corpus} matches files of several kinds: {named}", hint)
        if None in kinds and column is not None:
            said = f"corpus: {self.data.corpus} names the column {column!r}, but {paths[0].name} is a text"
            raise UserError(said, "Only files of rows have columns: .parquet, .arrow, .jsonl and .csv.")
        return root, paths, None if None in kinds else column or COLUMN


def matching_files(corpus: str, *patterns: str) -> tuple[str, Path, list[Path]]:
    """The first of the patterns that matches any files (names may have a number sign, too), the folder before its first
    wildcard, and the files by name. An existing name has priority over a wildcard. Raises `UserError`."""
    for pattern in patterns:
        parts = Path(pattern).expanduser().absolute().parts
        wild = [i for i, part in enumerate(parts) if glob.has_magic(part) and not Path(*parts[: i + 1]).exists()]
        first = wild[0] if wild else len(parts) - 1
        root, rest = Path(*parts[:first]), "/".join(parts[first:])
        # Unlike `Path.glob`, and as in a shell: wildcards do not match names that begin with a dot.
        names = glob.glob(rest, root_dir=root, recursive=True) if wild else [rest]  # noqa: PTH207
        found = [root / name for name in sorted({Path(name).as_posix() for name in names})]
        if paths := [path for path in found if path.is_file()]:
            return pattern, root, paths
    hint = f"Paths are relative to {Path.cwd()}. Match files, not folders: ** stands for any folders, as in "
    hint += "texts/**/*.txt; write [[] for a bracket in a name."
    raise UserError(f"corpus: no file matches {corpus}", hint)
