"""`wikitext-103`: articles of Wikipedia (Merity et al. 2017), divided by their authors, from the hub or a folder.

Both hold lines, of which one with a single = on either side begins an article. A document here is an article: its lines
without the empty ones and the spaces around them. The hub's files are at a pinned commit; a folder has wiki.train.raw
and wiki.valid.raw. Training lies in two files on the hub: an article that is cut by their boundary counts as two.

The corpus was not downloaded where this was written: the reader is tested on files of the same form.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from comt_cli.data.hub import RowFiles
from comt_cli.data.known_hashes import KnownHashes
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.corpora.hub_text import HubSource, HubText, open_source
from comt_cli.files import open_file

if TYPE_CHECKING:
    from comt_cli.data.text.settings import TextSettings

REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
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


class _Articles:
    """Files of lines, read as articles."""

    def __init__(self, files: RowFiles) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def rows(self, file: int) -> Iterator[dict[str, Any]]:
        for article in articles(row["text"] for row in self._files.rows(file)):
            yield {"text": article}


class _LinesOfFile:
    """A text file as one file of lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        return 1

    def rows(self, file: int) -> Iterator[dict[str, Any]]:
        with io.TextIOWrapper(open_file(self._path), encoding="utf-8-sig") as lines:
            for line in lines:
                yield {"text": line}


class WikiText(HubText):
    """The corpus, read to its end, from the hub or from `folder`."""

    names = ("wikitext-103",)
    keys: ClassVar[Mapping[str, Any]] = {"folder": None}
    endless = False
    validation_tokens: int | None = None
    instead = (
        "Without network, say in the recipe where its files are, data.folder=/some/folder (--set is not for the runs "
        "that others start from), or use corpus: python-docs or corpus: files:GLOB."
    )
    sources = tuple(
        HubSource("Salesforce/wikitext", REVISION, f"wikitext-103-raw-v1/{split}-*.parquet", split)
        for split in ("validation", "train")
    )

    def __init__(self, open_source: Callable[[HubSource], RowFiles] = open_source, folder: str | None = None) -> None:
        """`open_source` gives the files of a source, whose texts are lines."""
        super().__init__(open_source)
        self._folder = None if folder is None else Path(folder).expanduser()

    @classmethod
    def of(cls, data: TextSettings) -> Self:
        return cls(folder=data.folder)

    def files(self, source: HubSource) -> RowFiles:
        if self._folder is None:
            return _Articles(self.open(source))
        return _Articles(_LinesOfFile(self._folder / IN_FOLDER[str(source.split)]))

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """What is asked of the hub, or the hashes of the files; where the folder lies does not count. Raises
        `UserError` where one is missing."""
        if self._folder is None:
            return super().identity(progress)
        known = KnownHashes(self._folder.absolute(), self.names[0])
        hint = f"A folder of {self.names[0]} holds {' and '.join(IN_FOLDER.values())}, as its raw archive has them."
        hashes = {}
        for split, name in IN_FOLDER.items():
            progress(f"hashing {name}", 0, None)
            hashes[split] = known.of(self._folder / name, "folder", hint)
        known.save()
        return {"corpus": self.names[0], "sha256": hashes}
