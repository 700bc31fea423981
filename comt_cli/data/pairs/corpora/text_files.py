"""`pairs:SRC,TGT`, and published corpora in a folder: pairs of text files, UTF-8, line i of one beside line i of the
other.

`pairs:` divides its lines by the hash of the source text, so that equal sources are in one split; or validation and
test are files of their own (`validation_files: SRC,TGT`), which are taken as they are. A folder has the files by the
names under which they are published, `train.en`, `tst2012.en` and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, ClassVar, Literal

from comt_cli.data.pairs.settings import (
    SHARES,
    DividedPairs,
    PairCorpus,
    PairData,
    PairTexts,
    both_sides,
    is_blank,
    split_of_source,
)
from comt_cli.data.storage import (
    ProgressCallback,
    changed,
    forget_hashes,
    hash_file,
    known_hashes,
    no_progress,
)
from comt_cli.data.tokenizer import LONG_LINES_CUT, TRAINING_CHARACTERS
from comt_cli.errors import UserError
from comt_cli.files import conversion, open_file

FileSplit = Literal["train", "validation", "test"]
FilePair = tuple[Path, Path]


class TextFiles(DividedPairs):
    """Two files, or two of each split."""

    pattern = r"pairs:[^,]+,[^,]+"
    said = "your own pairs:SOURCES,TARGETS"
    is_own_text = True
    keys: ClassVar[Mapping[str, Any]] = {**SHARES, "validation_files": None, "test_files": None}

    def __init__(self, data: PairData, files: Mapping[FileSplit, FilePair]) -> None:
        super().__init__(data)
        self._files = files

    @classmethod
    def of(cls, data: PairData) -> PairCorpus:
        named: dict[FileSplit, str | None] = {
            "train": data.corpus.removeprefix("pairs:"),
            "validation": data.validation_files,
            "test": data.test_files,
        }
        return cls(data, {split: _two(files) for split, files in named.items() if files is not None})

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """The hash of every file's name and content, the shares, and of one's own text how it is read, which was once
        another way; where the files lie does not count. Raises `UserError` where one cannot be read."""
        hashes = {
            split: [[path.name, self._hash(path, progress)] for path in two] for split, two in self._files.items()
        }
        own = [] if self.data.folder is not None else ["unseen sides empty", LONG_LINES_CUT]
        return ["pairs", hashes, self.data.validation_fraction, self.data.test_fraction, *own]

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """The texts of validation and test without pairs with an empty side. Raises `UserError` where a file is not
        UTF-8, has more lines than its other, or is not the one whose hash is known."""
        found: dict[str, list[tuple[str, str]]] = {"validation": [], "test": []}
        for split, paths in self._files.items():
            for path in paths:
                if hash_file(path) != self._hash(path, progress):
                    forget_hashes(*_noted(path))
                    raise changed(path)
            for number, (source, target) in enumerate(self._pairs(paths)):
                if number % 100_000 == 0:
                    progress(f"reading {paths[0].name} and {paths[1].name}", number, None)
                place = split if split != "train" else split_of_source(source, self.data)
                if place != "train" and source and target:
                    found[place].append((source, target))
        return {split: PairTexts.of(pairs) for split, pairs in found.items()}

    def all_pairs(self) -> Iterator[tuple[str, str]]:
        return self._pairs(self._files["train"])

    def vocabulary_texts(self) -> Iterator[str]:
        """Every training pair, or every n-th of a corpus that is larger than a vocabulary is trained on."""
        size = sum(path.stat().st_size for path in self._files["train"])
        return both_sides(islice(self.train(), 0, None, max(1, size // TRAINING_CHARACTERS)))

    def _pairs(self, paths: FilePair) -> Iterator[tuple[str, str]]:
        """Pairs of lines. A side of which nothing can be seen is empty; the published corpora stay as they are."""
        is_own = self.data.folder is None
        for number, two in enumerate(zip_longest(*map(_lines, paths)), 1):
            if None in two:
                longer, shorter = (paths[place] for place in ((1, 0) if two[0] is None else (0, 1)))
                raise UserError(
                    f"{self._key}: line {number:,} of {longer} has no counterpart in {shorter}",
                    "Line i of one file of a pair is the translation of line i of the other.",
                )
            source, target = ("" if is_own and is_blank(line) else line for line in two)
            yield source, target

    @property
    def _key(self) -> str:
        return "corpus" if self.data.folder is None else "folder"

    def _hash(self, path: Path, progress: ProgressCallback) -> str:
        names = ", ".join(path.name for paths in self._files.values() for path in paths)
        return known_hashes(*_noted(path), [path], progress, self._key, f"The files are {names}.")[0]


def _two(files: str) -> FilePair:
    source, _, target = files.partition(",")
    return Path(source).expanduser(), Path(target).expanduser()


def _noted(path: Path) -> tuple[Path, str]:
    return path.parent.absolute(), f"pairs:{path.name}"


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file without surrounding spaces and byte order mark."""
    with open_file(path) as handle:
        for number, line in enumerate(handle, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"corpus: {path} is not UTF-8 text (line {number}: {error.reason})",
                    f"Convert it, for instance: {conversion(path, line if number == 1 else b'')}",
                ) from error
