"""`pairs:SRC,TGT`, and published corpora in a folder: pairs of text files, UTF-8, line i of one beside line i of the
other.

`pairs:` divides its lines by the hash of the source text, so that equal sources are in one split; or validation and
test are files of their own (`validation_files: SRC,TGT`), which are taken as they are. A folder has the files by the
names under which they are published, `train.en`, `tst2012.en` and so on.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from comt_cli.data.pairs.settings import (
    SHARES,
    PairCorpus,
    PairData,
    PairTexts,
    TextPair,
    both_sides,
    is_blank,
    split_of_source,
)
from comt_cli.data.storage import (
    ProgressCallback,
    changed,
    forget_hashes,
    known_hashes,
    make_folder,
    no_progress,
)
from comt_cli.data.vocabulary import LONG_LINES_CUT, TRAINING_CHARACTERS
from comt_cli.errors import StorageError, UserError
from comt_cli.files import cache_folder, canonical_json, conversion, open_file, sha256, write_text

FileSplit = Literal["train", "validation", "test"]
FilePair = tuple[Path, Path]

_BLOCK_BYTES = 1 << 20


class TextFiles(PairCorpus):
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
        another way; where the files lie does not count. Files of which no call has seen that they can be used are read
        for it.

        Raises:
            UserError: as `check`.
        """
        if not all(path.is_file() for paths in self._files.values() for path in paths):
            self.check(progress)
        hashes = {split: [[path.name, _hash(path, progress)] for path in paths] for split, paths in self._files.items()}
        checked = cache_folder() / "file-hashes" / f"{sha256(canonical_json(hashes))[:16]}.checked"
        if not checked.exists():
            self.check(progress)
            with contextlib.suppress(StorageError):  # a cache that may only be read costs time, nothing else
                make_folder(checked.parent)
                write_text(checked, "")
        own = [] if self.data.folder is not None else ["unseen sides empty", LONG_LINES_CUT]
        return ["pairs", hashes, self.data.validation_fraction, self.data.test_fraction, *own]

    def check(self, progress: ProgressCallback = no_progress) -> dict[Path, str]:
        """Look at every file, without splitting it into lines, and give its hash.

        Raises:
            UserError: with every file that is missing, empty, not UTF-8, or has more lines than its other.
        """
        problems: list[str] = []
        seen: dict[Path, str] = {}
        for paths in self._files.values():
            counts = []
            for path in paths:
                progress(f"looking at {path.name}", 0, None)
                try:
                    count, seen[path] = _count(path)
                    counts.append(count)
                except OSError as error:
                    problems.append(f"cannot read {path}: {error.strerror or error}")
                except UserError as error:
                    problems.append(str(error))
            if len(set(counts)) == 2:
                longer = paths[counts[0] < counts[1]].name
                sizes = " and ".join(f"{path} has {count:,} lines" for path, count in zip(paths, counts, strict=True))
                problems.append(f"{sizes}: line {min(counts) + 1:,} of {longer} has no counterpart")
        if problems:
            names = ", ".join(path.name for paths in self._files.values() for path in paths)
            raise UserError(
                f"{'corpus' if self.data.folder is None else 'folder'}: " + "\n  ".join(problems),
                f"{names} must be UTF-8 text; line i of one file of a pair is the translation of line i of the other.",
            )
        return seen

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """The texts of validation and test; pairs with an empty side are left out.

        Raises:
            UserError: as `check`, or a file is not the one whose hash is known.
        """
        for path, digest in self.check(progress).items():
            if _hash(path, progress) != digest:
                forget_hashes(*_noted(path))
                raise changed(path)
        found: dict[str, list[tuple[str, str]]] = {"validation": [], "test": []}
        for split, paths in self._files.items():
            for number, (source, target) in enumerate(self._pairs(paths)):
                if number % 100_000 == 0:
                    progress(f"reading {paths[0].name} and {paths[1].name}", number, None)
                place = split if split != "train" else split_of_source(source, self.data)
                if place != "train" and source and target:
                    found[place].append((source, target))
        return {split: PairTexts.of(pairs) for split, pairs in found.items()}

    def train(self, start: tuple[int, int] = (0, 0)) -> Iterator[TextPair]:
        pairs = self._pairs(self._files["train"])
        for number, (source, target) in enumerate(islice(pairs, start[1], None), start[1]):
            if split_of_source(source, self.data) == "train":
                yield TextPair(source, target, (0, number))

    def vocabulary_texts(self) -> Iterator[str]:
        """Every training pair, or every n-th of a corpus that is larger than a vocabulary is trained on."""
        size = sum(path.stat().st_size for path in self._files["train"])
        return both_sides(islice(self.train(), 0, None, max(1, size // TRAINING_CHARACTERS)))

    def _pairs(self, paths: FilePair) -> Iterator[tuple[str, str]]:
        """Pairs of lines. A side of which nothing can be seen is empty; the published corpora stay as they are."""
        pairs = zip(*(_lines(path) for path in paths), strict=True)
        if self.data.folder is not None:
            return pairs
        return (("" if is_blank(one) else one, "" if is_blank(other) else other) for one, other in pairs)


def _two(files: str) -> FilePair:
    source, _, target = files.partition(",")
    return Path(source).expanduser(), Path(target).expanduser()


def _noted(path: Path) -> tuple[Path, str]:
    return path.parent.absolute(), f"pairs:{path.name}"


def _hash(path: Path, progress: ProgressCallback) -> str:
    return known_hashes(*_noted(path), [path], progress)[0]


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file without surrounding spaces and byte order mark."""
    with open_file(path) as handle:
        for number, line in enumerate(handle, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path} is not UTF-8 text (line {number}: {error.reason})",
                    f"Convert it, for instance: {conversion(path, line if number == 1 else b'')}",
                ) from error


def _count(path: Path) -> tuple[int, str]:
    """How many lines a file has, and its SHA-256. Raises `OSError`, and `UserError` where there is none or the file is
    not UTF-8."""
    lines, block, last = 0, b"", b""
    decoder, digest = codecs.getincrementaldecoder("utf-8")(), hashlib.sha256()
    with open_file(path) as handle:
        try:
            while block := handle.read(_BLOCK_BYTES):
                lines, last = lines + block.count(b"\n"), block
                digest.update(block)
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            lines = sum(1 for _ in _lines(path))  # which names the line
    if not last:
        raise UserError(f"{path} is empty")
    return lines + (not last.endswith(b"\n")), digest.hexdigest()
