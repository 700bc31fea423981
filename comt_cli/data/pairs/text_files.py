"""`pairs:SRC,TGT` and the published corpora in a folder: pairs of text files, UTF-8, line i of one beside line i of the
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
from typing import Any, Literal

from comt_cli.data.local_files import KnownHashes
from comt_cli.data.pairs.corpus import PairTexts, TextPair, both_sides, is_blank, split_of_source
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.sentencepiece_tokenizer import LONG_LINES_CUT, TRAINING_CHARACTERS
from comt_cli.data.storage import ProgressCallback, changed, make_folder, no_progress
from comt_cli.errors import StorageError, UserError
from comt_cli.files import cache_folder, canonical_json, conversion, open_file, sha256, write_text

PUBLISHED: dict[str, tuple[str, str, str]] = {
    "iwslt15-en-vi": ("train", "tst2012", "tst2013"),
    "wmt14-en-de": ("train", "newstest2013", "newstest2014"),
    "wmt14-en-fr": ("train", "newstest2013", "newstest2014"),
}
"""The files of each published corpus in a folder, without their language: training, validation, test."""

FileSplit = Literal["train", "validation", "test"]
FilePair = tuple[Path, Path]

_BLOCK_BYTES = 1 << 20


def names_in_folder(data: PairData) -> list[str]:
    """The files that a folder of a published corpus must have."""
    return [f"{stem}.{language}" for stem in PUBLISHED[data.corpus] for language in (data.source, data.target)]


class TextFiles:
    """Two files, or two of each split."""

    total: int | None = None

    def __init__(self, data: PairData) -> None:
        self._data = data
        self._files: dict[FileSplit, FilePair] = {}
        if data.folder is not None:
            folder = Path(data.folder).expanduser()
            stems = PUBLISHED[data.corpus]
            splits: tuple[FileSplit, ...] = ("train", "validation", "test")
            for split, stem in zip(splits, stems, strict=True):
                self._files[split] = (folder / f"{stem}.{data.source}", folder / f"{stem}.{data.target}")
        else:
            self._files["train"] = _two(data.corpus.removeprefix("pairs:"))
            if data.validation_files is not None:
                self._files["validation"] = _two(data.validation_files)
            if data.test_files is not None:
                self._files["test"] = _two(data.test_files)

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """The hash of every file's name and content, the shares, and of one's own text how it is read, which was once
        another way; where the files lie does not count. Files of which no call has seen that they can be used are read
        for it.

        Raises:
            UserError: as `check`.
        """
        if not all(path.is_file() for paths in self._files.values() for path in paths):
            self.check(progress)
        hashes = {split: [self._hash(path, progress) for path in paths] for split, paths in self._files.items()}
        checked = cache_folder() / "file-hashes" / f"{sha256(canonical_json(hashes))[:16]}.checked"
        if not checked.exists():
            self.check(progress)
            with contextlib.suppress(StorageError):  # a cache that may only be read costs time, nothing else
                make_folder(checked.parent)
                write_text(checked, "")
        own = [] if self._data.folder is not None else ["unseen sides empty", LONG_LINES_CUT]
        return ["pairs", hashes, self._data.validation_fraction, self._data.test_fraction, *own]

    def check(self, progress: ProgressCallback = no_progress) -> None:
        """Look at every file, without splitting it into lines.

        Raises:
            UserError: with every file that is missing, empty, not UTF-8, or has more lines than its other.
        """
        problems: list[UserError] = []
        self._seen: dict[Path, str] = {}
        for paths in self._files.values():
            counts = []
            for path in paths:
                progress(f"looking at {path.name}", 0, None)
                try:
                    count, self._seen[path] = _count(path)
                    counts.append(count)
                except UserError as error:
                    problems.append(error)
                except FileNotFoundError:
                    problems.append(self._missing(path))
                except OSError as error:
                    problems.append(UserError(f"corpus: cannot read {path}: {error.strerror or error}"))
            if len(set(counts)) == 2:
                problems.append(_unequal(*paths, *counts))
        if len(problems) == 1:
            raise problems[0]
        if problems:
            listing = "\n".join(f"  {problem.message}" for problem in problems)
            hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
            raise UserError(f"{len(problems)} problems with the files of pairs\n{listing}", "\n  ".join(hints))

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """The texts of validation and test; pairs with an empty side are left out.

        Raises:
            UserError: as `check`, or a file is not the one whose hash is known.
        """
        self.check(progress)
        for path, digest in self._seen.items():
            if self._hash(path, progress)[1] != digest:
                self._known(path).forget()
                raise changed(path)
        found: dict[str, tuple[list[str], list[str]]] = {"validation": ([], []), "test": ([], [])}
        for split, paths in self._files.items():
            for number, (source, target) in enumerate(self._pairs(paths)):
                if number % 100_000 == 0:
                    progress(f"reading {paths[0].name} and {paths[1].name}", number, None)
                place = split if split != "train" else split_of_source(source, self._data)
                if place != "train" and source and target:
                    found[place][0].append(source)
                    found[place][1].append(target)
        return {split: PairTexts(*texts) for split, texts in found.items()}

    def train(self, start: tuple[int, int] = (0, 0)) -> Iterator[TextPair]:
        """The training lines from number `start[1]` on, counted from 0."""
        pairs = self._pairs(self._files["train"])
        for number, (source, target) in enumerate(islice(pairs, start[1], None), start[1]):
            if split_of_source(source, self._data) == "train":
                yield TextPair(source, target, (0, number))

    def vocabulary_texts(self) -> Iterator[str]:
        """Every training pair, or every n-th of a corpus that is larger than a vocabulary is trained on."""
        size = sum(path.stat().st_size for path in self._files["train"])
        return both_sides(islice(self.train(), 0, None, max(1, size // TRAINING_CHARACTERS)))

    def _pairs(self, paths: FilePair) -> Iterator[tuple[str, str]]:
        """Pairs of lines. A side of which nothing can be seen is empty; the published corpora stay as they are."""
        pairs = zip(*(_lines(path) for path in paths), strict=True)
        if self._data.folder is not None:
            return pairs
        return (("" if is_blank(one) else one, "" if is_blank(other) else other) for one, other in pairs)

    def _known(self, path: Path) -> KnownHashes:
        return KnownHashes(path.parent.absolute(), f"pairs:{path.name}")

    def _hash(self, path: Path, progress: ProgressCallback) -> list[str]:
        """The file's name and its hash, which is remembered while the file does not change."""
        known = self._known(path)
        progress(f"hashing {path.name}", 0, None)
        digest = known.of(path)
        known.save()
        return [path.name, digest]

    def _missing(self, path: Path) -> UserError:
        if self._data.folder is None:
            return UserError(f"corpus: there is no file {path}", f"It was looked up from {Path.cwd()}")
        return UserError(
            f"folder: {self._data.corpus} needs the file {path}, which is not there",
            f"The folder must have {', '.join(names_in_folder(self._data))}: text, one sentence a line.",
        )


def _two(files: str) -> FilePair:
    source, _, target = files.partition(",")
    return Path(source).expanduser(), Path(target).expanduser()


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
        raise UserError(f"corpus: {path} is empty", "Both files must have one sentence a line.")
    return lines + (not last.endswith(b"\n")), digest.hexdigest()


def _unequal(source: Path, target: Path, sources: int, targets: int) -> UserError:
    longer = source if sources > targets else target
    return UserError(
        f"corpus: {source} has {sources:,} lines and {target} has {targets:,}: "
        f"line {min(sources, targets) + 1:,} of {longer.name} has no counterpart",
        "Line i of one file must be the translation of line i of the other; leave a line empty to skip it.",
    )
