"""Parallel text in files. `pairs:SRC,TGT`: two text files, UTF-8, line i of one beside line i of the other; and
`iwslt15-en-vi`, `wmt14-en-de`, `wmt14-en-fr`, from the Hugging Face hub, or such files in a folder.

`pairs:` divides its lines by the hash of the source text, or has files of their own for validation and test. A folder
has the files by the names under which they are published, `train.en`, `tst2012.en` and so on.

On the hub a row holds a `translation`, both texts by language; a vocabulary is trained on rows of all files in turn,
since each file of WMT14 is of another kind. The revisions are branches, so two preparations may differ under one
fingerprint; the hash of the content, in the manifest and every checkpoint, distinguishes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from comt_cli.data import hub
from comt_cli.data.pairs.settings import SHARES, PairCorpus, PairData, PairTexts, TextPair, is_blank, split_of_source
from comt_cli.data.storage import ProgressCallback, hash_files, no_progress
from comt_cli.data.tokenizer import LONG_LINES_CUT, TRAINING_CHARACTERS
from comt_cli.errors import UserError
from comt_cli.files import conversion, open_file

FileSplit = Literal["train", "validation", "test"]
FilePair = tuple[Path, Path]


class TextFiles(PairCorpus):
    """Two files whose pairs are divided by the hash of the source, or two files of each split."""

    pattern = r"pairs:[^,]+,[^,]+"
    said = "your own pairs:SOURCES,TARGETS"
    is_own_text = True
    keys: ClassVar[Mapping[str, Any]] = {**SHARES, "validation_files": None, "test_files": None}

    def __init__(self, data: PairData, files: Mapping[FileSplit, FilePair]) -> None:
        super().__init__(data)
        self._files, self._key = files, "corpus" if data.folder is None else "folder"

    @classmethod
    def of(cls, data: PairData) -> PairCorpus:
        named: dict[FileSplit, str | None] = {"train": data.corpus.removeprefix("pairs:")}
        named |= {"validation": data.validation_files, "test": data.test_files}
        given = {split: files.split(",", 1) for split, files in named.items() if files is not None}
        return cls(data, {split: (Path(a).expanduser(), Path(b).expanduser()) for split, (a, b) in given.items()})

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """Hashes of the files, wherever they lie, the shares, and of the user's own text how it is read. Raises
        `UserError`."""
        hashes = {
            split: [[path.name, digest] for path, digest in zip(two, self._hashes(two, progress), strict=True)]
            for split, two in self._files.items()
        }
        own = [] if self.data.folder is not None else ["unseen sides empty", LONG_LINES_CUT]
        return ["pairs", hashes, self.data.validation_fraction, self.data.test_fraction, *own]

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """The texts of validation and test without pairs with an empty side. Raises `UserError` where files do not
        fit."""
        found: dict[str, list[tuple[str, str]]] = {"validation": [], "test": []}
        for split, paths in self._files.items():
            progress(f"reading {paths[0].name} and {paths[1].name}", 0, None)
            for source, target in self._pairs(paths):
                place = split if split != "train" else split_of_source(source, self.data)
                if place != "train" and source and target:
                    found[place].append((source, target))
        return {split: PairTexts.of(pairs) for split, pairs in found.items()}

    def train(self) -> Iterator[TextPair]:
        return self.trained_on(self._pairs(self._files["train"]))

    def vocabulary_texts(self) -> Iterator[str]:
        """Every training pair, or every n-th of a corpus that is larger than a vocabulary is trained on."""
        size = sum(path.stat().st_size for path in self._files["train"])
        chosen = islice(self.train(), 0, None, max(1, size // TRAINING_CHARACTERS))
        return (text for pair in chosen for text in pair[:2])

    def _hashes(self, paths: FilePair, progress: ProgressCallback) -> list[str]:
        names = ", ".join(path.name for two in self._files.values() for path in two)
        return hash_files(paths, progress, self._key, f"The files are {names}.")

    def _pairs(self, paths: FilePair) -> Iterator[tuple[str, str]]:
        """Pairs of lines. A side of which nothing can be seen is empty; the published corpora stay as they are."""
        is_own = self.data.folder is None
        for number, two in enumerate(zip_longest(*map(_lines, paths)), 1):
            if None in two:
                longer, shorter = paths[::-1] if two[0] is None else paths
                hint = "Line i of one file of a pair is the translation of line i of the other."
                raise UserError(f"{self._key}: line {number:,} of {longer} has no counterpart in {shorter}", hint)
            source, target = ("" if is_own and is_blank(line) else line for line in two)
            yield source, target


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file without surrounding spaces and byte order mark."""
    with open_file(path) as handle:
        for number, line in enumerate(handle, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                hint = f"Convert it, for instance: {conversion(path, line if number == 1 else b'')}"
                raise UserError(f"corpus: {path} is not UTF-8 text (line {number}: {error.reason})", hint) from error


# ---- published


class Published(NamedTuple):
    """Languages of a corpus, which may be read in either direction; its repository, revision and files on the hub; and
    its files in a folder, without their language: training, validation, test."""

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


class PublishedPairs(PairCorpus):
    """A corpus of the hub. Nothing is fetched before its texts are read."""

    names = tuple(PUBLISHED)
    keys: ClassVar[Mapping[str, Any]] = {"folder": None}

    def __init__(self, data: PairData) -> None:
        super().__init__(data)
        self._where = PUBLISHED[data.corpus]

    @classmethod
    def of(cls, data: PairData) -> PairCorpus:
        if data.folder is None:
            return cls(data)
        folder, files = Path(data.folder).expanduser(), dict[FileSplit, FilePair]()
        splits: tuple[FileSplit, ...] = ("train", "validation", "test")
        for split, stem in zip(splits, PUBLISHED[data.corpus].stems, strict=True):
            files[split] = (folder / f"{stem}.{data.source}", folder / f"{stem}.{data.target}")
        return TextFiles(data, files)

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

    def train(self) -> Iterator[TextPair]:
        return self._read("train")

    def vocabulary_texts(self) -> Iterator[str]:
        """A pair of every file in turn, until the reader has enough."""
        with self._files("train") as files:
            for several in zip_longest(*(rows() for rows in files)):
                for row in several:
                    if row is not None:
                        yield from self._texts(row)

    def _read(self, split: str) -> Iterator[TextPair]:
        with self._files(split) as files:
            for place, row in hub.from_place(files):
                yield TextPair(*self._texts(row), place)

    @contextlib.contextmanager
    def _files(self, split: str) -> Iterator[hub.RowFiles]:
        names = (f"{stem}.{each}" for stem in self._where.stems for each in (self.data.source, self.data.target))
        instead = (
            f"Without network, put {', '.join(names)} (text, one sentence a line) into a "
            "folder and name it: --set data.folder=/some/folder; or use corpus: almanac."
        )
        with hub.reachable(self.data.corpus, self._where.repository, instead):
            pattern = self._where.pattern.format(split=split)
            yield hub.open_files(self._where.repository, self._where.revision, pattern)

    def _texts(self, row: hub.Row) -> tuple[str, str]:
        texts = row["translation"]
        return texts[self.data.source].strip(), texts[self.data.target].strip()
