"""From settings to the examples of a task, once. Importing it, and finding a fingerprint, imports no NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt

from comt_cli.data.glue.corpus import GlueSource, GlueSplitName, divided
from comt_cli.data.glue.settings import GlueData
from comt_cli.data.prepared import TOKENIZER, FileRecord, Manifest, Prepared, versions
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.corpus import corpus_for
from comt_cli.data.text.vocabulary import tokenizer_for, vocabulary_identity
from comt_cli.files import write_json

if TYPE_CHECKING:
    from comt_cli.data.glue.dataset import GlueDataset

GLUE_FORMAT = 2
"""Raise it when the same settings may give other examples, sequences or files than before
(tests/contract/test_cache_versions.py asks for it)."""


class GlueManifest(Manifest):
    """Everything about a folder of prepared examples; `source` is where they are from."""

    format: int
    settings: dict[str, Any]
    source: list[Any]
    versions: dict[str, str]
    examples: dict[GlueSplitName, NonNegativeInt]
    files: tuple[FileRecord, ...]


class Kind(Prepared[GlueData, GlueSource, GlueManifest, "GlueDataset"]):
    """The examples of a task, and the vocabulary of the pre-training that fine-tuning starts from."""

    cache = "glue"
    manifest = GlueManifest

    def named_corpus(self) -> GlueSource:
        """The source of the task's examples."""
        found: GlueSource = GlueSource.named(self.data.task).of(self.data)
        return found

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        """Examples and vocabulary."""
        data = self.data
        return {
            "format": GLUE_FORMAT,
            "task": data.task,
            "source": self.corpus.identity(progress),
            "vocabulary": vocabulary_identity(data, corpus_for(data), progress),
            **{key: getattr(data, key) for key in ("sequence_length", "held_out", "train_examples")},
        }

    def write(self, folder: Path, name: str, progress: ProgressCallback) -> GlueManifest:
        splits = divided(self.corpus.read(progress), self.data)
        tokenizer_for(self.data, corpus_for(self.data), progress).save(folder / TOKENIZER)
        for split, examples in splits.items():
            write_json(folder / f"{split}.json", examples)
        return GlueManifest(
            fingerprint=name,
            format=GLUE_FORMAT,
            settings=self.data.model_dump(mode="json", exclude={"glue_folder"}),
            source=self.corpus.identity(),
            versions=versions("numpy", "sentencepiece"),
            examples={split: len(examples) for split, examples in splits.items()},
            files=tuple(FileRecord.of(folder / each) for each in (TOKENIZER, *(f"{split}.json" for split in splits))),
        )

    def open(self, folder: Path, manifest: GlueManifest) -> GlueDataset:
        from comt_cli.data.glue.dataset import GlueDataset

        return GlueDataset(self.data, folder, manifest)
