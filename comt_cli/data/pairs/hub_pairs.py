"""`iwslt15-en-vi`, `wmt14-en-de`, `wmt14-en-fr`: streamed from the Hugging Face hub, as parquet files.

A file's rows hold a `translation`, both texts by language. Training reads file after file from its beginning and
resumes within one; a vocabulary is trained on rows of all files in turn, since each file of WMT14 is of another kind.
Validation and test are the hub's: tst2012 and tst2013, newstest2013 and newstest2014 (all 3,003 sentences, sacreBLEU's
`wmt14/full`). The revisions are branches, so two preparations at different times may differ under one fingerprint; the
hash of the content, in the manifest and every checkpoint, distinguishes them.

Not one of the three was downloaded where this was written: the repositories' listings were seen, and the reader is
tested on parquet files of the same form.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from comt_cli.data.hub import open_files, reachable
from comt_cli.data.pairs.corpus import PairTexts, TextPair
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.pairs.text_files import names_in_folder
from comt_cli.data.storage import ProgressCallback, no_progress

REPOSITORIES: dict[str, tuple[str, str, str]] = {
    "iwslt15-en-vi": ("IWSLT/mt_eng_vietnamese", "refs/convert/parquet", "iwslt2015-en-vi/{split}/*.parquet"),
    "wmt14-en-de": ("wmt/wmt14", "main", "de-en/{split}-*.parquet"),
    "wmt14-en-fr": ("wmt/wmt14", "main", "fr-en/{split}-*.parquet"),
}
"""Repository, revision and files of each corpus."""


class ParquetFiles(Protocol):
    """The files of one split."""

    def __len__(self) -> int:
        """How many files there are."""
        ...

    def rows(self, file: int) -> Iterator[dict[str, Any]]:
        """The rows of one file in order."""
        ...


class HubPairs:
    """A corpus of the hub. Nothing is fetched before its texts are read."""

    total: int | None = None

    def __init__(self, data: PairData, open_split: Callable[[str, str, str], ParquetFiles] = open_files) -> None:
        """`open_split` gives the files of (repository, revision, pattern); it may raise anything without network."""
        self._data = data
        self._repository, self._revision, self._pattern = REPOSITORIES[data.corpus]
        self._open = open_split

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """What is asked of the hub; known without network."""
        return ["hub", self._repository, self._revision, self._pattern]

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """All pairs of the hub's validation and test splits, but those with an empty side."""
        found = {}
        for split in ("validation", "test"):
            progress(f"reading the {split} split of {self._data.corpus}", 0, None)
            pairs = [(pair.source, pair.target) for pair in self._read(split) if pair.source and pair.target]
            found[split] = PairTexts([source for source, _ in pairs], [target for _, target in pairs])
        return found

    def train(self, start: tuple[int, int] = (0, 0)) -> Iterator[TextPair]:
        """The training pairs from `start` on; earlier files are not opened."""
        return self._read("train", start)

    def vocabulary_texts(self) -> Iterator[str]:
        """A pair of every file in turn, until the reader has enough."""
        with self._reachable():
            files = self._files("train")
            streams = [files.rows(file) for file in range(len(files))]
            for several in itertools.zip_longest(*streams):
                for row in several:
                    if row is not None:
                        yield from self._texts(row)

    def _read(self, split: str, start: tuple[int, int] = (0, 0)) -> Iterator[TextPair]:
        with self._reachable():
            files = self._files(split)
            for file in range(start[0], len(files)):
                skipped = start[1] if file == start[0] else 0
                for number, row in enumerate(itertools.islice(files.rows(file), skipped, None), skipped):
                    yield TextPair(*self._texts(row), (file, number))

    def _files(self, split: str) -> ParquetFiles:
        return self._open(self._repository, self._revision, self._pattern.format(split=split))

    def _texts(self, row: dict[str, Any]) -> tuple[str, str]:
        texts = row["translation"]
        return texts[self._data.source].strip(), texts[self._data.target].strip()

    def _reachable(self) -> contextlib.AbstractContextManager[None]:
        instead = (
            f"Without network, put {', '.join(names_in_folder(self._data))} (text, one sentence a line) into a folder "
            "and name it: --set data.folder=/some/folder; or use corpus: almanac."
        )
        return reachable(self._data.corpus, self._repository, instead)
