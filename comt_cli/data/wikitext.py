"""`wikitext-103`: articles of Wikipedia (Merity et al. 2017), divided by their authors, from the hub or a folder.

Both hold lines, of which one with a single = on either side begins an article. A document here is an article: its lines
without the empty ones and the spaces around them. The hub's files are at a pinned commit; a folder has wiki.train.raw
and wiki.valid.raw. Training lies in two files on the hub: an article that is cut by their boundary counts as two.

The corpus was not downloaded where this was written: the reader is tested on files of the same form.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from comt_cli.data.hub import HubCorpus, HubSource, RemoteFiles, open_on_hub
from comt_cli.data.local_files import KnownHashes
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.files import open_file

NAME = "wikitext-103"
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
SOURCES = tuple(
    HubSource("Salesforce/wikitext", REVISION, f"wikitext-103-raw-v1/{split}-*.parquet", split)
    for split in ("validation", "train")
)
IN_FOLDER = {"train": "wiki.train.raw", "validation": "wiki.valid.raw"}

TITLE = re.compile(r"= [^=].*[^=] =|= [^=] =")
"""A line that begins an article; those of its sections have more signs."""


def articles(lines: Iterable[str]) -> Iterator[str]:
    """The articles that lines make, in order. A line like a title begins one behind an empty line alone: there are such
    in formulas."""
    article: list[str] = []
    is_behind_empty = True
    for each in lines:
        line = each.strip()
        if is_behind_empty and article and TITLE.fullmatch(line):
            yield "\n".join(article)
            article = []
        if line:
            article.append(line)
        is_behind_empty = not line
    if article:
        yield "\n".join(article)


class Articles:
    """Files of lines, read as articles."""

    def __init__(self, files: RemoteFiles) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def texts(self, file: int) -> Iterator[str]:
        """The articles of one file in order."""
        yield from articles(self._files.texts(file))


class WikiText(HubCorpus):
    """The corpus on the hub, read to its end."""

    endless = False
    validation_tokens: int | None = None
    instead = (
        "Without network, say in the recipe where its files are, data.folder=/some/folder (--set is not for the runs "
        "that others start from), or use corpus: python-docs or corpus: files:GLOB."
    )

    def __init__(self, open_source: Callable[[HubSource], RemoteFiles] = open_on_hub) -> None:
        """`open_source` gives the files of a source, whose texts are lines."""
        super().__init__(NAME, SOURCES, lambda source: Articles(open_source(source)))


class _LinesOfFile:
    """A text file as one file of lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        return 1

    def texts(self, file: int) -> Iterator[str]:
        with io.TextIOWrapper(open_file(self._path), encoding="utf-8-sig") as lines:
            yield from lines


class WikiTextFolder(WikiText):
    """The corpus in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()
        super().__init__(lambda source: _LinesOfFile(self._folder / IN_FOLDER[str(source.split)]))

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """The hashes of the files; where the folder lies does not count. Raises `UserError` where one is missing."""
        known = KnownHashes(self._folder.absolute(), NAME)
        hint = f"A folder of {NAME} holds {' and '.join(IN_FOLDER.values())}, as its raw archive has them."
        hashes = {}
        for split, name in IN_FOLDER.items():
            progress(f"hashing {name}", 0, None)
            hashes[split] = known.of(self._folder / name, "folder", hint)
        known.save()
        return {"corpus": NAME, "sha256": hashes}


def wikitext(folder: str | None) -> WikiText:
    """The corpus, from a folder where one is named."""
    return WikiText() if folder is None else WikiTextFolder(folder)
