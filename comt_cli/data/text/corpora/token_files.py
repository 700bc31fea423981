"""`tokens:GLOB`: files of token ids that other tools made. They are memory-mapped where they are, never copied.

All are little-endian. nanoGPT (`data/*/prepare.py`): ids alone. llm.c and modded-nanogpt (`dev/data/data_common.py`):
256 int32 (a magic number, a version, the number of ids), then ids. Chunks of litgpt, which litdata writes
(`streaming/writer.py`): uint32 n, n + 1 uint32, then ids, whose type is in `index.json`.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from comt_cli.data.prepare import FileRecord
from comt_cli.data.published import read_object
from comt_cli.data.storage import ProgressCallback, hash_files, no_progress
from comt_cli.data.text.corpora.local_files import matching_files
from comt_cli.data.text.settings import SPLITS, Corpus, Part, SplitName, SplitPart, Stream
from comt_cli.data.tokenizer import Tokenizer
from comt_cli.errors import UserError
from comt_cli.files import open_file, write_json

HEADERS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""llm.c's magic numbers, with the version that is read and its type."""
HEADER_BYTES = 1024
CHUNK = re.compile(r"chunk-\d+-\d+\.(\w+\.)?bin")
CHUNK_TYPES = {
    **{f"no_header_tensor:{i}": name for i, name in ((11, "uint8"), (16, "int32"), (18, "int64"), (20, "uint16"))},
    **{f"no_header_numpy:{i}": name for i, name in ((2, "int32"), (3, "int64"), (5, "uint16"), (6, "uint32"))},
}
"""litdata's names of types (`constants.py`)."""
_DECISIVE = ("data_format", "compression", "ipc_compression", "encryption")
VALIDATION = re.compile(r"(?<![a-z])val(id(ation)?)?(?![a-z])", re.IGNORECASE)
TEST = re.compile(r"(?<![a-z])test(ing)?(?![a-z])", re.IGNORECASE)
RECORD = "shards.json"
_BLOCK = 1 << 20  # ids in memory at a time
FEW_IDS = 64  # fewer do not tell whether their type is right


class Shard(NamedTuple):
    """`tokens` ids of a file from its id `first` on; the file has ids of `dtype` from byte `begin` on."""

    path: Path
    dtype: str
    begin: int
    first: int
    tokens: int

    def ids(self) -> Any:
        """The ids, memory-mapped."""
        import numpy as np

        dtype = np.dtype(self.dtype).newbyteorder("<")
        return np.memmap(self.path, dtype, "r", self.begin + self.first * dtype.itemsize, (self.tokens,))


class TokenFiles(Corpus):
    """The files that match a glob, by name. With `validation_fraction` the validation split is that share of all
    tokens, at the end; without it, it is the files with `val` as a word of their names below the first wildcard."""

    pattern = "tokens:.+"
    said = "tokens:GLOB, token ids of other tools"
    keys: ClassVar[Mapping[str, Any]] = {"validation_fraction": None, "dtype": None}

    @classmethod
    def contradictions(cls, data: Any) -> Iterator[str]:
        if data.extras:
            yield "corpus: tokens:GLOB has no text, and is for train-lm alone"
        elif data.tokenizer == "sentencepiece":
            yield "tokenizer: sentencepiece is trained on text; name the tokenizer that made the files of tokens:GLOB"
        if getattr(data, "rows", None) == "pad":
            yield "rows: pad needs documents, which tokens:GLOB has not; use pack"

    def streams(self) -> Sequence[Stream]:
        """None: there is no text."""
        return []

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """The splits as parts of files, with the hashes of the files. Raises `UserError`."""
        shards = [(name, shard) for name in SPLITS for shard in self.splits[name]]
        paths = list(dict.fromkeys(shard.path for _, shard in shards))  # a file may be in both splits
        digests = dict(zip(paths, hash_files(paths, progress), strict=True))
        return {"corpus": "tokens", "parts": [[name, *shard[1:], digests[shard.path]] for name, shard in shards]}

    @cached_property
    def splits(self) -> dict[SplitName, list[Shard]]:
        """The shards of each split. Raises `UserError` naming the file that cannot be read."""
        _, root, paths = matching_files(self.data.corpus, self.data.corpus.removeprefix("tokens:"))
        if test := next((path for path in paths if TEST.search(path.relative_to(root).as_posix())), None):
            said = f"corpus: {self.data.corpus} matches {test}, a test split by its name, which is for no training"
            raise UserError(said, "Match the files of training and validation alone.")
        index = functools.cache(_index)
        every = [self._shard(path, index) for path in paths]
        if (share := self.data.validation_fraction) is not None:
            tokens = sum(shard.tokens for shard in every)
            train, validation = cut(every, tokens - round(share * tokens))
        else:
            held = {path for path in paths if VALIDATION.search(path.relative_to(root).as_posix())}
            train, validation = ([s for s in every if (s.path in held) is is_held] for is_held in (False, True))
            if not train or not validation:
                said = f"corpus: {'all' if validation else 'no'} files of {self.data.corpus} have val in their names"
                hint = "It marks the validation split. Match both, or set data.validation_fraction, a share at the end."
                raise UserError(said, hint)
        most = self.data.max_train_tokens
        return {"train": train if most is None else cut(train, most)[0], "validation": validation}

    def arrays(self, split: SplitName) -> list[Any]:
        """The ids of a split, memory-mapped."""
        return [shard.ids() for shard in self.splits[split]]

    def record(self, folder: Path, tokenizer: Tokenizer, progress: ProgressCallback) -> Part:
        """Check all ids, and write the hashes of the files into `folder`. The text of the validation split is decoded
        to count its bytes. Raises `UserError` naming the file and the position of an id that is not the tokenizer's."""
        every = [shard for name in SPLITS for shard in self.splits[name]]
        for number, shard in enumerate(every):
            progress("checking files of tokens", number, len(every))
            self._check(shard, tokenizer.vocabulary_size)
        write_json(folder / RECORD, self.identity())
        train, validation = (sum(shard.tokens for shard in self.splits[name]) for name in SPLITS)
        text_bytes = bytes_of(self.arrays("validation"), tokenizer, progress)
        if validation and not text_bytes:
            raise UserError("corpus: the validation split has no text", "Check data.tokenizer and data.dtype.")
        first = SplitPart(tokens=train, documents=0, bytes=0, files=(FileRecord.of(folder / RECORD),))
        second = SplitPart(tokens=validation, documents=0, bytes=text_bytes, files=())
        return Part(number=0, after=(0, 0, 0), train=first, validation=second)

    def _check(self, shard: Shard, vocabulary: int) -> None:
        ids, hint = shard.ids(), "Name the tokenizer that made the files in data.tokenizer, and check data.dtype."
        # Read as a smaller type, an id has the bits above it, here as an id of its own.
        if len(ids) >= FEW_IDS and ids[1:_BLOCK:2].max() <= (vocabulary - 1) >> 8 * ids.itemsize:
            raise UserError(f"corpus: {shard.path}: every second id is nearly 0: they are no {shard.dtype}", hint)
        for start in range(0, len(ids), _BLOCK):
            block = ids[start : start + _BLOCK]
            if block.max() >= vocabulary or block.min() < 0:
                at = int(((block < 0) | (block >= vocabulary)).argmax())
                said = f"corpus: {shard.path}: id {shard.first + start + at:,} (from 0) is {block[at]}"
                said += f", but the tokenizer {self.data.tokenizer} has ids from 0 to {vocabulary - 1}"
                raise UserError(said, hint)

    def _shard(self, path: Path, index: Callable[[Path], dict[str, Any]]) -> Shard:
        """A whole file; `index` is `_index`. Raises `UserError`."""
        try:
            with open_file(path) as handle:
                head, size = handle.read(HEADER_BYTES), os.fstat(handle.fileno()).st_size
            is_chunk = CHUNK.fullmatch(path.name)
            dtype, begin, stated = _chunk(path, index) if is_chunk else _header(head, self.data.dtype)
            if self.data.dtype not in (None, dtype):
                raise ValueError(f"its ids are {dtype}, not data.dtype {self.data.dtype}; leave the key out")
            tokens, left = divmod(size - begin, int(dtype.removeprefix("u")[3:]) // 8)
            if left or tokens <= 0 or stated not in (None, tokens):
                wanted = "a number of" if stated is None else f"{stated:,}"
                raise ValueError(f"its ids have {max(0, size - begin):,} bytes, which are not {wanted} {dtype}")
        except (OSError, ValueError) as error:
            raise UserError(f"corpus: cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
        return Shard(path, dtype, begin, 0, tokens)


def _header(head: bytes, dtype: str | None) -> tuple[str, int, int | None]:
    """The type of a file's ids, the byte where they begin, and their number if it is stated. Raises `ValueError`."""
    if head.startswith((b"\x93NUMPY", b"LITPKDS")):
        raise ValueError("it has a header of NumPy or of litgpt's former PackedDataset; write the ids alone")
    magic, version, stated = struct.unpack("<3i", head[:12].ljust(12, b"\0"))
    if magic in HEADERS and version == HEADERS[magic][0]:
        return HEADERS[magic][1], HEADER_BYTES, stated
    if magic in HEADERS:
        raise ValueError(f"its header has version {version}; comt reads version {HEADERS[magic][0]}")
    if dtype is None:
        raise ValueError("it does not state the type of its ids; set data.dtype: nanoGPT's files have uint16")
    return dtype, 0, None


def _index(path: Path) -> dict[str, Any]:
    """An `index.json` of litdata, with its chunks by name."""
    found = read_object(path)
    return found | {"chunks": {each["filename"]: each for each in found["chunks"]}}


def _chunk(path: Path, index: Callable[[Path], dict[str, Any]]) -> tuple[str, int, int | None]:
    """As `_header`, of a chunk of litdata. Raises `ValueError`, and `UserError` if its index cannot be read."""
    try:
        found = index(path.with_name("index.json"))
        chunk = found["chunks"][path.name]
        config = {key: each for key, each in found["config"].items() if key in _DECISIVE and each}
        kind, begin = ":".join(config["data_format"]), 4 * (chunk["chunk_size"] + 2)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its index.json does not describe it: {type(error).__name__}: {error}") from None
    if len(config) > 1 or kind not in CHUNK_TYPES or chunk["dim"] is None:
        raise ValueError(f"comt reads unpacked chunks of TokensLoader, of integers; its index.json has {config}")
    return CHUNK_TYPES[kind], begin, chunk["dim"]


def cut(shards: Sequence[Shard], tokens: int) -> tuple[list[Shard], list[Shard]]:
    """The first `tokens` tokens, and the others."""
    first, rest = list[Shard](), list[Shard]()
    for shard in shards:
        here = max(0, min(shard.tokens, tokens))
        tokens -= here
        first += [shard._replace(tokens=here)] if here else []
        rest += [shard._replace(first=shard.first + here, tokens=shard.tokens - here)] if here < shard.tokens else []
    return first, rest


def bytes_of(arrays: Sequence[Any], tokenizer: Tokenizer, progress: ProgressCallback = no_progress) -> int:
    """The bytes of the text of `arrays`, decoded document by document, since a character may have several tokens;
    documents of more than `_BLOCK` tokens in parts."""
    import numpy as np

    text_bytes, rest = 0, np.empty(0, dtype=np.int64)
    blocks = (array[start : start + _BLOCK] for array in arrays for start in range(0, len(array), _BLOCK))
    for number, block in enumerate(blocks):
        progress("counting the bytes of the validation text (millions of tokens)", number, None)
        ids = np.concatenate([rest, block])
        *documents, rest = np.split(ids, np.flatnonzero(ids == tokenizer.special.end) + 1)
        if len(rest) >= _BLOCK:
            documents, rest = [*documents, rest], rest[:0]
        text_bytes += sum(len(tokenizer.decode(each.tolist()).encode()) for each in documents)
    return text_bytes + len(tokenizer.decode(rest.tolist()).encode())
