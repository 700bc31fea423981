"""`iwslt15-en-vi`, `wmt14-en-de`, `wmt14-en-fr`: from the Hugging Face hub, or text files in a folder.

On the hub a row holds a `translation`, both texts by language. Training reads file after file from its beginning and
resumes within one; a vocabulary is trained on rows of all files in turn, since each file of WMT14 is of another kind.
Validation and test are the hub's: tst2012 and tst2013, newstest2013 and newstest2014 (all 3,003 sentences, sacreBLEU's
`wmt14/full`). The revisions are branches, so two preparations at different times may differ under one fingerprint; the
hash of the content, in the manifest and every checkpoint, distinguishes them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from comt_cli.data.hub import Row, RowFiles, from_place, open_files, reachable
from comt_cli.data.pairs.corpora.text_files import FileSplit, TextFiles
from comt_cli.data.pairs.settings import PairCorpus, PairData, PairTexts, TextPair
from comt_cli.data.storage import ProgressCallback, no_progress


class Published(NamedTuple):
    """Where a corpus is: its languages, which may be read in either direction; repository, revision and files on the
    hub; and its files in a folder, without their language: training, validation, test."""

    languages: tuple[str, str]
    repository: str
    revision: str
    pattern: str
    stems: tuple[str, str, str]


_IWSLT = ("train", "tst2012", "tst2013")
_NEWS = ("train", "newstest2013", "newstest2014")
_CONVERTED = "refs/convert/parquet"
PUBLISHED = {
    "iwslt15-en-vi": Published(
        ("en", "vi"), "IWSLT/mt_eng_vietnamese", _CONVERTED, "iwslt2015-en-vi/{split}/*.parquet", _IWSLT
    ),
    "wmt14-en-de": Published(("en", "de"), "wmt/wmt14", "main", "de-en/{split}-*.parquet", _NEWS),
    "wmt14-en-fr": Published(("en", "fr"), "wmt/wmt14", "main", "fr-en/{split}-*.parquet", _NEWS),
}


class PublishedPairs(PairCorpus):
    """A corpus of the hub. Nothing is fetched before its texts are read."""

    names = tuple(PUBLISHED)
    keys: ClassVar[Mapping[str, Any]] = {"folder": None}

    def __init__(self, data: PairData, open_split: Callable[[str, str, str], RowFiles] = open_files) -> None:
        """`open_split` gives the files of (repository, revision, pattern); it may raise anything without network."""
        super().__init__(data)
        self._open, self._where = open_split, PUBLISHED[data.corpus]

    @classmethod
    def of(cls, data: PairData) -> PairCorpus:
        if data.folder is None:
            return cls(data)
        folder = Path(data.folder).expanduser()
        splits: tuple[FileSplit, ...] = ("train", "validation", "test")
        stems = zip(splits, PUBLISHED[data.corpus].stems, strict=True)
        return TextFiles(
            data, {split: (folder / f"{stem}.{data.source}", folder / f"{stem}.{data.target}") for split, stem in stems}
        )

    @classmethod
    def contradictions(cls, data: PairData) -> Iterator[str]:
        one, other = PUBLISHED[data.corpus].languages
        if {data.source, data.target} != {one, other}:
            yield f"target: {data.corpus} is in {one} and {other}, not in {data.source} and {data.target}"

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        return ["hub", self._where.repository, self._where.revision, self._where.pattern]

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        found = {}
        for split in ("validation", "test"):
            progress(f"reading the {split} split of {self.data.corpus}", 0, None)
            found[split] = PairTexts.of([pair[:2] for pair in self._read(split) if pair.source and pair.target])
        return found

    def train(self, start: tuple[int, int] = (0, 0)) -> Iterator[TextPair]:
        return self._read("train", start)

    def vocabulary_texts(self) -> Iterator[str]:
        """A pair of every file in turn, until the reader has enough."""
        with self._reachable():
            for several in itertools.zip_longest(*(rows() for rows in self._files("train"))):
                for row in several:
                    if row is not None:
                        yield from self._texts(row)

    def _read(self, split: str, start: tuple[int, int] = (0, 0)) -> Iterator[TextPair]:
        with self._reachable():
            for place, row in from_place(self._files(split), start):
                yield TextPair(*self._texts(row), place)

    def _files(self, split: str) -> RowFiles:
        return self._open(self._where.repository, self._where.revision, self._where.pattern.format(split=split))

    def _texts(self, row: Row) -> tuple[str, str]:
        texts = row["translation"]
        return texts[self.data.source].strip(), texts[self.data.target].strip()

    def _reachable(self) -> contextlib.AbstractContextManager[None]:
        names = (f"{stem}.{each}" for stem in self._where.stems for each in (self.data.source, self.data.target))
        instead = (
            f"Without network, put {', '.join(names)} (text, one sentence a line) into a "
            "folder and name it: --set data.folder=/some/folder; or use corpus: almanac."
        )
        return reachable(self.data.corpus, self._where.repository, instead)
