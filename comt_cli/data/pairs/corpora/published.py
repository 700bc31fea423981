"""Parallel text in files. `pairs:SRC,TGT`: two UTF-8 text files, where line i of one is the translation of line i of
the other. `iwslt15-en-vi`, `wmt14-en-de`, `wmt14-en-fr`: from the Hugging Face hub, or such files in a folder.

`pairs:` divides its lines by the hash of the source text, or has separate files for validation and test. A folder has
the files under their published names, `train.en`, `tst2012.en` and so on.

From the hub, a vocabulary is trained on rows of all files in turn, because the files of WMT14 differ in kind. The
revisions are branches, so two preparations may differ under one fingerprint; the content hash shows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from comt_cli.data import hub
from comt_cli.data.pairs.settings import SHARES, Pair, PairCorpus, PairData, PairTexts, is_blank, split_of_source
from comt_cli.data.storage import ProgressCallback, hash_files, no_progress
from comt_cli.data.tokenizer import LONG_LINES_CUT, TRAINING_CHARACTERS
from comt_cli.errors import UserError
from comt_cli.files import open_file


class Published(NamedTuple):
    """Languages of a corpus, in either direction; its repository, revision and files on the hub; and its files in a
    folder for training, validation and test, without their language."""

    languages: tuple[str, str]
    repository: str
    revision: str
    pattern: str
    stems: tuple[str, str, str]


_IWSLT = ("IWSLT/mt_eng_vietnamese", "refs/convert/parquet", "iwslt2015-en-vi/{split}/*.parquet")
_NEWS = ("train", "newstest2013", "newstest2014")
PUBLISHED = {
    "iwslt15-en-vi": Published(("en", "vi"), *_IWSLT, ("train", "tst2012", "tst2013")),
    "wmt14-en-de": Published(("en", "de"), "wmt/wmt14", "main", "de-en/{split}-*.parquet", _NEWS),
    "wmt14-en-fr": Published(("en", "fr"), "wmt/wmt14", "main", "fr-en/{split}-*.parquet", _NEWS),
}


class TextFiles(PairCorpus):
    """Two files whose pairs are divided by the hash of the source, or two files for each split."""

    pattern = r"pairs:[^,]+,[^,]+"
    said = "your own pairs:SOURCES,TARGETS"
    is_own_text = True
    keys: ClassVar[Mapping[str, Any]] = {**SHARES, "validation_files": None, "test_files": None}

    def __init__(self, data: PairData) -> None:
        super().__init__(data)
        self._key = "corpus" if data.folder is None else "folder"
        given = (data.corpus.removeprefix("pairs:"), data.validation_files, data.test_files)
        files = [[] if two is None else two.split(",", 1) for two in given]
        if data.folder is not None:
            stems, languages = PUBLISHED[data.corpus].stems, (data.source, data.target)
            files = [[f"{data.folder}/{stem}.{language}" for language in languages] for stem in stems]
        named = zip(("train", "validation", "test"), files, strict=True)
        self._files = {split: [Path(file).expanduser() for file in two] for split, two in named if two}

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """Hashes of the files, the shares, and for the user's own text the version of its reading."""
        paths = [path for two in self._files.values() for path in two]
        digests = dict(zip(paths, hash_files(paths, progress, self._key), strict=True))
        hashes = {split: [[path.name, digests[path]] for path in two] for split, two in self._files.items()}
        own = [] if self.data.folder is not None else ["unseen sides empty", LONG_LINES_CUT]
        return ["pairs", hashes, self.data.validation_fraction, self.data.test_fraction, *own]

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """The texts of validation and test, without pairs with an empty side."""
        found: dict[str, list[Pair]] = {"validation": [], "test": []}
        for split, paths in self._files.items():
            progress(f"reading {paths[0].name} and {paths[1].name}", 0, None)
            for source, target in self._pairs(paths):
                place = split if split != "train" else split_of_source(source, self.data)
                if place != "train" and source and target:
                    found[place].append((source, target))
        return {split: PairTexts.of(pairs) for split, pairs in found.items()}

    def train(self) -> Iterator[Pair]:
        return self.trained_on(self._pairs(self._files["train"]))

    def vocabulary_texts(self) -> Iterator[str]:
        """All training pairs, or every n-th of a corpus larger than a vocabulary's training text."""
        size = sum(path.stat().st_size for path in self._files["train"])
        return chain.from_iterable(islice(self.train(), 0, None, max(1, size // TRAINING_CHARACTERS)))

    def _pairs(self, paths: Sequence[Path]) -> Iterator[Pair]:
        """Pairs of lines. Blank lines of own files become empty; the published corpora are not changed."""
        is_own = self.data.folder is None
        for number, two in enumerate(zip_longest(*map(_lines, paths)), 1):
            if None in two:
                longer, shorter = reversed(paths) if two[0] is None else paths
                hint = "Line i of one file of a pair is the translation of line i of the other."
                raise UserError(f"{self._key}: line {number:,} of {longer} has no counterpart in {shorter}", hint)
            source, target = ("" if is_own and is_blank(line) else line for line in two)
            yield source, target


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file, without surrounding spaces and byte order mark."""
    with open_file(path) as handle:
        for number, line in enumerate(handle, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise UserError(f"corpus: {path} is not UTF-8 text (line {number}: {error.reason})") from error


class PublishedPairs(PairCorpus):
    """A corpus of the hub, fetched when its texts are read."""

    names = tuple(PUBLISHED)
    keys: ClassVar[Mapping[str, Any]] = {"folder": None}

    def __init__(self, data: PairData) -> None:
        super().__init__(data)
        self._where = PUBLISHED[data.corpus]

    @classmethod
    def of(cls, data: PairData) -> PairCorpus:
        return cls(data) if data.folder is None else TextFiles(data)

    @classmethod
    def contradictions(cls, data: PairData) -> Iterator[str]:
        one, other = PUBLISHED[data.corpus].languages
        if {data.source, data.target} != {one, other}:
            yield f"target: {data.corpus} has {one} and {other}, not {data.source} and {data.target}"

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        return ["hub", self._where.repository, self._where.revision, self._where.pattern]

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        found = {}
        for split in ("validation", "test"):
            progress(f"reading the {split} split of {self.data.corpus}", 0, None)
            found[split] = PairTexts.of([pair for pair in self._read(split) if all(pair)])
        return found

    def train(self) -> Iterator[Pair]:
        return self._read("train")

    def vocabulary_texts(self) -> Iterator[str]:
        """One pair of every file in turn."""
        with self._files("train") as files:
            for several in zip_longest(*(rows() for rows in files)):
                for row in several:
                    if row is not None:
                        yield from self._texts(row)

    def _read(self, split: str) -> Iterator[Pair]:
        with self._files(split) as files:
            for _, row in hub.from_place(files):
                yield self._texts(row)

    @contextlib.contextmanager
    def _files(self, split: str) -> Iterator[hub.RowFiles]:
        names = (f"{stem}.{each}" for stem in self._where.stems for each in (self.data.source, self.data.target))
        instead = (
            f"Without network, put {', '.join(names)} (text, one sentence per line) into a folder and name it by "
            "--set data.folder=/some/folder; or use corpus: almanac."
        )
        with hub.reachable(self.data.corpus, self._where.repository, instead):
            pattern = self._where.pattern.format(split=split)
            yield hub.open_files(self._where.repository, self._where.revision, pattern)

    def _texts(self, row: hub.Row) -> Pair:
        texts = row["translation"]
        return texts[self.data.source].strip(), texts[self.data.target].strip()
