"""`iwslt15-en-vi`, `wmt14-en-de`, `wmt14-en-fr`: from the Hugging Face hub, or text files in a folder.

On the hub a row holds a `translation`, both texts by language. Training reads file after file from its beginning and
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.data.hub import RowFiles, from_place, open_files, reachable
from comt_cli.data.pairs.corpora.text_files import FileSplit, TextFiles
from comt_cli.data.pairs.corpus import PairCorpus, PairTexts, TextPair
from comt_cli.data.storage import ProgressCallback, no_progress

if TYPE_CHECKING:
    from comt_cli.data.pairs.settings import PairData


@dataclass(frozen=True)
class Published:
    """Where a corpus is: its languages, which may be read in either direction; repository, revision and files on the
    hub; and its files in a folder, without their language: training, validation, test."""

    languages: tuple[str, str]
    repository: str
    revision: str
    pattern: str
    stems: tuple[str, str, str]

    def names(self, data: PairData) -> list[str]:
        """The files that a folder must have."""
        return [f"{stem}.{language}" for stem in self.stems for language in (data.source, data.target)]


_NEWS = ("train", "newstest2013", "newstest2014")
PUBLISHED = {
    "iwslt15-en-vi": Published(
        languages=("en", "vi"),
        repository="IWSLT/mt_eng_vietnamese",
        revision="refs/convert/parquet",
        pattern="iwslt2015-en-vi/{split}/*.parquet",
        stems=("train", "tst2012", "tst2013"),
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
        """On the hub, or in the folder that is named."""
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
        """What is asked of the hub; known without network."""
        return ["hub", self._where.repository, self._where.revision, self._where.pattern]

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """All pairs of the hub's validation and test splits, but those with an empty side."""
        found = {}
        for split in ("validation", "test"):
            progress(f"reading the {split} split of {self.data.corpus}", 0, None)
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
            for several in itertools.zip_longest(*(files.rows(file) for file in range(len(files)))):
                for row in several:
                    if row is not None:
                        yield from self._texts(row)

    def _read(self, split: str, start: tuple[int, int] = (0, 0)) -> Iterator[TextPair]:
        with self._reachable():
            for place, row in from_place(self._files(split), start):
                yield TextPair(*self._texts(row), place)

    def _files(self, split: str) -> RowFiles:
        return self._open(self._where.repository, self._where.revision, self._where.pattern.format(split=split))

    def _texts(self, row: dict[str, Any]) -> tuple[str, str]:
        texts = row["translation"]
        return texts[self.data.source].strip(), texts[self.data.target].strip()

    def _reachable(self) -> contextlib.AbstractContextManager[None]:
        instead = (
            f"Without network, put {', '.join(self._where.names(self.data))} (text, one sentence a line) into a "
            "folder and name it: --set data.folder=/some/folder; or use corpus: almanac."
        )
        return reachable(self.data.corpus, self._where.repository, instead)
