"""What a prepared folder of text holds: its parts, and the record that is written last."""

from __future__ import annotations

from typing import Any

from pydantic import NonNegativeInt

from comt_cli.data.prepared import FileRecord, Manifest, Record
from comt_cli.data.text.corpus import SplitName


class SplitPart(Record):
    """What one part holds of one split: `tokens` ids, of `documents` texts, standing for `bytes` of UTF-8."""

    tokens: NonNegativeInt
    documents: NonNegativeInt
    bytes: NonNegativeInt
    files: tuple[FileRecord, ...]


class Part(Record):
    """The documents between two places of the corpus: at most one shard of each split.

    `after` is the place (stream, file, number in the file) where reading resumes after this part.
    """

    number: NonNegativeInt
    after: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt]
    train: SplitPart
    validation: SplitPart

    def of(self, split: SplitName) -> SplitPart:
        """The part's train or validation split."""
        return self.train if split == "train" else self.validation

    def files(self) -> tuple[FileRecord, ...]:
        """All files of the part."""
        return self.train.files + self.validation.files


class TextManifest(Manifest):
    """Everything about a prepared corpus."""

    format: int
    settings: dict[str, Any]
    corpus: dict[str, Any]
    versions: dict[str, str]
    dtype: str
    vocabulary_size: int
    tokenizer: FileRecord
    parts: tuple[Part, ...]

    def all_files(self) -> list[FileRecord]:
        return [self.tokenizer, *(file for part in self.parts for file in part.files())]
