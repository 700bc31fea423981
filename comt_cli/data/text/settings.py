"""Text corpora, their settings, and the identity of their tokens. Importing it imports no NumPy."""

from __future__ import annotations

import hashlib
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

from pydantic import Field, NonNegativeInt

from comt_cli.data.prepare import MANIFEST, FileRecord, Manifest, Prepared, Record
from comt_cli.data.published import T5_SHA256, content_hash
from comt_cli.data.settings import DataSection, Named, name_of
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.tokenizer import LONG_LINES_CUT, TRAINER, TRAINING_CHARACTERS, VOCABULARY_VERSION, Extra
from comt_cli.data.tokenizer_files import FORMS, file_tokenizer
from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.settings import MAX_LENGTH, Tokens, Vocabulary, WholeNumber, matching

FORMAT = 4  # version, as tests/contract/test_cache_versions.py says

FIXED_VOCABULARY = {"t5": 32000, "bytes": 258}
"""Sizes of vocabularies that are not trained; texts never contain T5's sentinels (32000 to 32099)."""

SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, SplitName] = ("train", "validation")

VALIDATION_SHARE = 0.05  # of the documents, held out by default where a corpus has no validation split

REVISION, IN_BLOCKS = "revision", "in_blocks"  # keys of `splits.source_of` in a manifest's `corpus`
SHARED = "The corpus has few documents, and each is cut into blocks: the splits share documents"

PART_BYTES = 128 * 1024 * 1024
"""The size of parts limits the loss by a kill, and the number of open files (160 for the largest corpus)."""

Place = tuple[int, int]


class Document(NamedTuple):
    """One text and its position in its stream: (file, number within the file), both counted from 0. `split`: of a piece
    of a document that several splits share; None for whole documents."""

    text: str
    place: Place
    split: SplitName | None = None


class Stream(NamedTuple):
    """Documents in a fixed order, readable from any position, all of one `split` (None: by their own, else by their
    hash). `in_blocks`: of documents that are cut (`splits.streams_of`)."""

    split: SplitName | None
    documents: Callable[[Place], Iterator[Document]]
    in_blocks: bool = False


class Corpus(Named):
    """A source of text. `is_own_text`: long lines are cut before a vocabulary is trained, and few documents into
    blocks. `endless`: reading stops when the train split has its tokens. The validation split has at most
    `validation_tokens` (None: no limit). Equal identities give equal documents in equal order, of a data set of the hub
    if its `revision` is equal too."""

    package = "comt_cli.data.text.corpora"
    keys: ClassVar[Mapping[str, Any]] = {"validation_fraction": VALIDATION_SHARE}
    data: TextSettings
    is_own_text: ClassVar[bool] = False
    endless: bool = False
    validation_tokens: int | None = None

    @classmethod
    def contradictions(cls, data: TextSettings) -> Iterator[str]:
        if cls.endless and data.max_train_tokens is None:
            yield "max_train_tokens: is missing; give the number of tokens of this corpus to prepare"

    @abstractmethod
    def streams(self) -> Sequence[Stream]:
        """The streams to read, in order."""

    @property
    def revision(self) -> str | None:
        """The commit that is read, if the identity does not state it; finding it may need the network."""
        return None


def split_of(text: str, validation_fraction: float) -> SplitName:
    """The split of a document by the hash of its text: equal documents are always in the same split."""
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
    return "validation" if place < validation_fraction else "train"


_OF_WEIGHTS = "weights:"
"""The prefix of published weights whose tokenizer is used. `start` in a recipe means the run's start."""
TokenizerName = Annotated[
    str,
    matching(
        f"{_OF_WEIGHTS}.+|{FORMS}",
        "weights:WEIGHTS (published ones), nor hf:NAME, nor a path, which has a / or ends in .json or .model",
        ("sentencepiece", "t5", "bytes", "start"),
    ),
]


class TextSettings(DataSection):
    """The corpus and its tokenizer, which has the special tokens `extras` besides padding, end and unknown."""

    kind = Corpus
    later: ClassVar[frozenset[str]] = frozenset({"folder", "dtype"})
    extras: ClassVar[tuple[Extra, ...]] = ()

    corpus: Annotated[str, name_of(Corpus)] = "python-docs"
    tokenizer: TokenizerName = "sentencepiece"
    vocabulary: Vocabulary | None = None
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_train_tokens: Tokens | None = None
    folder: str | None = None
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = None

    @classmethod
    def with_implied(cls, given: dict[str, Any]) -> dict[str, Any]:
        is_implied = given.get("vocabulary") == cls._fixed(str(given.get("tokenizer")))
        return given | {"vocabulary": None} if is_implied else given

    def contradictions(self) -> Iterator[str]:
        fixed = self._fixed(self.tokenizer)
        if fixed is None and self.vocabulary is None:
            size = "for instance 2048" if self.tokenizer_file is None else "or that of the model's embedding"
            yield f"vocabulary: is missing; give the size of the tokenizer {self.tokenizer}, {size}"
        if fixed is not None and self.vocabulary not in (None, fixed):
            yield f"vocabulary: the tokenizer {self.tokenizer} has {fixed} tokens; leave the key out"
        yield from super().contradictions()

    @classmethod
    def _fixed(cls, tokenizer: str) -> int | None:
        size = FIXED_VOCABULARY.get(tokenizer)
        return size if size is None else size + len(cls.extras)

    @property
    def weights(self) -> str | None:
        """The published weights whose tokenizer is used; None for other tokenizers."""
        return self.tokenizer.removeprefix(_OF_WEIGHTS) if self.tokenizer.startswith(_OF_WEIGHTS) else None

    @property
    def tokenizer_file(self) -> str | None:
        """The folder, file or repository of the hub that has the tokenizer; None for other tokenizers."""
        is_file = self.weights is None and re.fullmatch(FORMS, self.tokenizer) is not None
        return self.tokenizer if is_file else None

    def stored(self, *without: str) -> dict[str, Any]:
        """Without the names of published weights, of files of tokenizers and tokens, and of data sets of the hub, which
        can have several: the data's content covers them."""
        tokenizer = "weights" if self.weights is not None else "file" if self.tokenizer_file else self.tokenizer
        kind = self.corpus.partition(":")[0]
        corpus = kind if kind in ("tokens", "hf") else self.corpus
        return super().stored(*without) | {"tokenizer": tokenizer, "corpus": corpus}

    @property
    def vocabulary_size(self) -> int:
        """The number of token ids, special ones included: the model's embedding rows."""
        return self._fixed(self.tokenizer) or self.vocabulary or 0


class DataSettings(TextSettings):
    """Data of language models: the corpus, its tokenizer, and the layout of rows."""

    rows: Literal["pad", "pack"] = "pack"
    sequence_length: Annotated[WholeNumber, Field(ge=2, le=MAX_LENGTH)] = 256

    @property
    def text(self) -> Self:
        """The settings that decide the prepared data."""
        return self


class MaskedData(DataSettings):
    """Data of masked language models, which predict `mask_share` of the tokens after the begin token."""

    extras: ClassVar[tuple[Extra, ...]] = ("begin", "mask", "separator")

    tokenizer: Literal["sentencepiece", "bytes"] = "sentencepiece"
    sequence_length: Annotated[WholeNumber, Field(ge=3, le=MAX_LENGTH)] = 128
    mask_share: Annotated[float, Field(gt=0, lt=1)] = 0.15

    @property
    def text(self) -> Self:
        return self.model_copy(update={"sequence_length": self.sequence_length - 1})

    @property
    def masked(self) -> int:
        return predicted(self.sequence_length - 1, self.mask_share)


def predicted(words: int, share: float) -> int:
    """The number of predicted tokens of a sequence: the share rounded to the nearest whole number, at least 1."""
    return max(1, math.floor(words * share + 0.5))


class SplitPart(Record):
    """Content of one part in one split: `tokens` ids of `documents` texts with `bytes` bytes of UTF-8."""

    tokens: NonNegativeInt
    documents: NonNegativeInt
    bytes: NonNegativeInt
    files: tuple[FileRecord, ...]


class Part(Record):
    """Documents in at most one shard per split; reading resumes at `after`: (stream, file, number in the file)."""

    number: NonNegativeInt
    after: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt]
    train: SplitPart
    validation: SplitPart

    def of(self, split: SplitName) -> SplitPart:
        return cast(SplitPart, getattr(self, split))

    def files(self) -> tuple[FileRecord, ...]:
        return self.train.files + self.validation.files


class TextManifest(Manifest):
    """Record of a prepared corpus."""

    format: int
    corpus: dict[str, Any]
    dtype: str
    vocabulary_size: int
    tokenizer: FileRecord
    parts: tuple[Part, ...]
    files: tuple[FileRecord, ...] = Field((), exclude=True)  # stored in tokenizer and parts

    @property
    def note(self) -> str | None:
        return SHARED if IN_BLOCKS in self.corpus else None

    def all_files(self) -> list[FileRecord]:
        return [self.tokenizer, *(file for part in self.parts for file in part.files())]


def sentencepiece_identity(size: int | None, *marks: str) -> list[Any]:
    """Everything besides its training texts that decides a trained vocabulary."""
    made_by = [VOCABULARY_VERSION, metadata.version("sentencepiece")]
    return ["sentencepiece", size, TRAINER, TRAINING_CHARACTERS, *made_by, *marks]


def tokenizer_identity(data: TextSettings) -> list[Any]:
    """Everything besides its training texts that decides the tokenizer."""
    if data.tokenizer == "sentencepiece":
        own = [LONG_LINES_CUT] if Corpus.named(data.corpus).is_own_text else []
        return sentencepiece_identity(data.vocabulary_size, *own, *data.extras)
    if data.weights is not None:
        return ["weights", data.weights, data.vocabulary_size]  # the request; the content hash covers their content
    if data.tokenizer_file is not None:
        content = file_tokenizer(data.tokenizer_file, data.vocabulary_size).to_json()
        return ["file", sha256(canonical_json(content)), data.vocabulary_size]
    return ["t5", T5_SHA256] if data.tokenizer == "t5" else ["bytes", *data.extras]


def vocabulary_identity(data: TextSettings, corpus: Corpus, progress: ProgressCallback = no_progress) -> list[Any]:
    """Everything that decides the tokenizer, with its training texts."""
    return [corpus.identity(progress), data.validation_fraction, tokenizer_identity(data)]


class Kind(Prepared[DataSettings, Corpus]):
    """Text as rows of tokens, in shards of at most `part_bytes`. A killed preparation resumes after its last shard.
    Masked text is prepared like any other, and masked when it is read, with the settings `asked`."""

    cache = "corpora"
    manifest = TextManifest
    keys = ("rows", "sequence_length", "max_train_tokens", "validation_fraction")

    def __init__(self, data: DataSettings, corpus: Corpus | None = None, part_bytes: int = PART_BYTES) -> None:
        super().__init__(data.text, corpus)
        self.asked, self.part_bytes = data, part_bytes

    def folder(self, name: str) -> Path:
        """The folder depends on the content of the published weights' tokenizer, which fingerprints do not cover,
        because plans do not need the weights. Without the weights, prepared data is used if all of it was made with one
        tokenizer."""
        folder = super().folder(name)
        if self.data.weights is None:
            return folder
        if (content := content_hash(self.data.weights, tokenizer=True)) is not None:
            return folder.with_name(f"{name}-{content}")
        made = [each.parent for each in folder.parent.glob(f"{name}-*/{MANIFEST}")]
        return made[0] if len(made) == 1 else folder

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        corpus, tokenizer = self.corpus.identity(progress), tokenizer_identity(self.data)
        return {"format": FORMAT, "corpus": corpus, "tokenizer": tokenizer}
