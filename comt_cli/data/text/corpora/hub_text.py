"""Text of the Hugging Face hub, whose files are read in a seeded order: `c4`, `openwebtext`, and `wikitext-103`, which
may also be in a folder.

C4 and WikiText are read at a pinned commit, OpenWebText is not: preparations at different times may differ under one
fingerprint. The hash of the tokens, in every manifest and checkpoint, distinguishes them.
"""

from __future__ import annotations

import functools
import io
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from comt_cli.data import hub
from comt_cli.data.storage import ProgressCallback, hash_files, no_progress
from comt_cli.data.text.settings import Corpus, Document, Place, SplitName, Stream
from comt_cli.files import open_file

FILE_ORDER_SEED = 42


class HubSource(NamedTuple):
    """One split on the hub: repository, revision, and pattern of its files."""

    repository: str
    revision: str
    files: str
    split: SplitName | None


class HubText(Corpus):
    """A corpus of the hub whose rows have a `text`, fetched when its streams are read."""

    sources: ClassVar[Sequence[HubSource]]  # validation first: it is small, and tokenizer training skips it
    endless = True
    validation_tokens: int | None = 12_000_000  # the papers evaluate on 10 million
    instead = "Without network, use corpus: python-docs or corpus: files:GLOB."

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        return {
            "corpus": self.names[0],
            "sources": [list(source) for source in self.sources],
            "file_order_seed": FILE_ORDER_SEED,
            "validation_tokens": self.validation_tokens,
        }

    def streams(self) -> Sequence[Stream]:
        return [Stream(source.split, functools.partial(self._documents, source)) for source in self.sources]

    def files(self, source: HubSource) -> hub.RowFiles:
        return hub.open_files(*source[:3])

    def _documents(self, source: HubSource, start: Place) -> Iterator[Document]:
        with hub.reachable(self.names[0], source.repository, self.instead):
            files = [*self.files(source)]
            random.Random(FILE_ORDER_SEED).shuffle(files)
            for place, row in hub.from_place(files, start):
                if row["text"].strip():
                    yield Document(row["text"], place)


class C4(HubText):
    """The English part of C4 (Raffel et al. 2020)."""

    names = ("c4",)
    keys: ClassVar[Mapping[str, Any]] = {}
    sources = tuple(
        HubSource("allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2", f"en/c4-{split}.*.json.gz", split)
        for split in ("validation", "train")
    )


class OpenWebText(HubText):
    """OpenWebText (Gokaslan & Cohen 2019) in the hub's conversion, because `datasets` runs no loading scripts."""

    names = ("openwebtext",)
    sources = (HubSource("Skylion007/openwebtext", "refs/convert/parquet", "plain_text/*train*/*.parquet", None),)


# ---- WikiText

REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
IN_FOLDER = {"train": "wiki.train.raw", "validation": "wiki.valid.raw"}

TITLE = re.compile(r"= [^=].*[^=] =|= [^=] =")  # of an article; section titles have more signs


def articles(lines: Iterable[str]) -> Iterator[str]:
    """The articles in lines, in order. Titles follow an empty line, because formulas have similar lines."""
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


def _as_articles(rows: Callable[[], Iterable[hub.Row]]) -> Iterator[hub.Row]:
    return ({"text": article} for article in articles(row["text"] for row in rows()))


def _lines(path: Path) -> Iterator[hub.Row]:
    with io.TextIOWrapper(open_file(path), encoding="utf-8-sig") as lines:
        yield from ({"text": line} for line in lines)


class WikiText(HubText):
    """WikiText-103 (Merity et al. 2017), read to its end. A document is an article, without empty lines."""

    names = ("wikitext-103",)
    keys: ClassVar[Mapping[str, Any]] = {"folder": None}
    endless = False
    validation_tokens: int | None = None
    instead = (
        "Without network, give the folder of its files in the recipe, data.folder=/some/folder (--set does not "
        "apply to runs from which others start), or use corpus: python-docs or corpus: files:GLOB."
    )
    sources = tuple(
        HubSource("Salesforce/wikitext", REVISION, f"wikitext-103-raw-v1/{split}-*.parquet", split)
        for split in ("validation", "train")
    )

    def _in_folder(self, folder: str) -> dict[str, Path]:
        return {split: Path(folder).expanduser() / name for split, name in IN_FOLDER.items()}

    def files(self, source: HubSource) -> hub.RowFiles:
        own = self.data.folder and [functools.partial(_lines, self._in_folder(self.data.folder)[str(source.split)])]
        return [functools.partial(_as_articles, rows) for rows in own or super().files(source)]

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """The request to the hub, or hashes of the files. Raises `UserError` if one is missing."""
        if not self.data.folder:
            return super().identity(progress)
        hashes = hash_files([*self._in_folder(self.data.folder).values()], progress, "folder")
        return {"corpus": self.names[0], "sha256": dict(zip(IN_FOLDER, hashes, strict=True))}
