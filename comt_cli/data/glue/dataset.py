"""From settings to the examples of a task, once; what identifies them; and the data set, opened.

Importing it imports no NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt

from comt_cli.data.corpora import corpus_for
from comt_cli.data.glue.corpus import Example, GlueSource, GlueSplitName, divided
from comt_cli.data.glue.settings import OF_SCENES, OF_TEXT, GlueData
from comt_cli.data.identity import vocabulary_identity
from comt_cli.data.manifest import MANIFEST, TOKENIZER, FileRecord, PreparedFolder, content_hash, damaged, verify
from comt_cli.data.storage import ProgressCallback, file_lock, make_folder, no_progress, refuse_changed
from comt_cli.data.tokenizers import load_tokenizer
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, canonical_json, read_json, sha256, write_json

if TYPE_CHECKING:
    from comt_cli.data.glue.batches import GlueSplit

GLUE_FORMAT = 2
"""Raise it when the same settings may give other examples, sequences or files than before
(tests/contract/test_cache_versions.py asks for it)."""


class GlueManifest(PreparedFolder):
    """Everything about a folder of prepared examples; `source` is where they are from."""

    format: int
    settings: dict[str, Any]
    source: list[Any]
    versions: dict[str, str]
    examples: dict[GlueSplitName, NonNegativeInt]
    files: tuple[FileRecord, ...]


class GlueDataset:
    """The examples of a task, of one fingerprint.

    Attributes:
        folder: where the prepared files lie.
        fingerprint: the identity of examples and vocabulary.
        content_hash: 16 hexadecimal digits over them.
        tokenizer: that of the pre-training; padding is 0, and it has begin and separator.
        vocabulary_size: how many token ids there are.
        examples: the texts and labels of "train", "validation", "test" and, of mnli, "unseen", its mismatched set.
    """

    def __init__(self, data: GlueData, folder: Path, manifest: GlueManifest) -> None:
        self.folder, self.fingerprint = folder, manifest.fingerprint
        self.content_hash = content_hash(manifest.files)
        self.tokenizer = load_tokenizer(folder / TOKENIZER)
        self.vocabulary_size = self.tokenizer.vocabulary_size
        self._data = data
        self.examples: Mapping[str, Sequence[Example]] = {
            split: [Example(*each) for each in read_json(folder / _file_of(split), largest=1 << 32)]
            for split in manifest.examples
        }

    @cached_property
    def train(self) -> GlueSplit:
        """What is trained on."""
        return self._split("train")

    @cached_property
    def validation(self) -> GlueSplit:
        """The part of the training examples that is held out."""
        return self._split("validation")

    @cached_property
    def test(self) -> GlueSplit:
        """What is reported: of GLUE's own tasks their development set, since the test set's labels are secret."""
        return self._split("test")

    @cached_property
    def unseen(self) -> GlueSplit | None:
        """Texts of other kinds than those of training; only mnli has them."""
        return self._split("unseen") if "unseen" in self.examples else None

    def _split(self, split: GlueSplitName) -> GlueSplit:
        from comt_cli.data.glue.batches import GlueSplit

        data = self._data
        return GlueSplit(self.examples[split], self.tokenizer, data.classes, data.sequence_length)


def source_for(data: GlueData) -> GlueSource:
    """Where the examples of `data.task` are from."""
    if data.task in OF_SCENES:
        from comt_cli.data.glue.scene_tasks import SceneExamples

        return SceneExamples(data)
    if data.task in OF_TEXT:
        from comt_cli.data.glue.text_tasks import TextExamples

        return TextExamples(data)
    from comt_cli.data.glue.published import FolderExamples, HubExamples

    return HubExamples(data) if data.glue_folder is None else FolderExamples(data)


def fingerprint(data: GlueData, progress: ProgressCallback | None = None) -> str:
    """16 hexadecimal digits that identify the examples and the vocabulary that `data` describes. Raises `UserError`."""
    report = progress or no_progress
    content = {
        "format": GLUE_FORMAT,
        "task": data.task,
        "source": source_for(data).identity(report),
        "vocabulary": vocabulary_identity(data, corpus_for(data), report),
        **{key: getattr(data, key) for key in ("sequence_length", "held_out", "train_examples")},
    }
    return sha256(canonical_json(content))[:16]


def known_content(data: GlueData, fingerprint: str) -> str | None:  # noqa: ARG001 - other data needs its settings
    """The content hash of what is prepared under this fingerprint; None where nothing is, or it cannot be read."""
    try:
        return content_hash(GlueManifest.read(_folder(fingerprint), fingerprint).files)
    except UserError:
        return None


def prepare(data: GlueData, progress: ProgressCallback | None = None) -> GlueDataset:
    """The examples that `data` describes, made or read now unless they were before.

    The manifest is written last. Of two processes at once one works and the other waits; what was killed begins anew.

    Raises:
        UserError: the corpus, the folder or the network is not as needed, or prepared files are damaged.
        StorageError: the disk is full or refuses.
    """
    report = progress or no_progress
    name = fingerprint(data, report)
    folder = _folder(name)
    if not (folder / MANIFEST).exists():
        with file_lock(folder.with_name(f"{name}.lock"), report):
            if not (folder / MANIFEST).exists():  # another process may have made it while we waited
                _write(data, folder, name, report)
    manifest = GlueManifest.read(folder, name)
    verify(folder, manifest.files, report)
    try:
        return GlueDataset(data, folder, manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:  # removed or cut since the check
        raise damaged(folder / MANIFEST, str(error)) from error


def _folder(name: str) -> Path:
    """Where what has this fingerprint is prepared."""
    return cache_folder() / "glue" / name


def _file_of(split: GlueSplitName) -> str:
    return f"{split}.json"


def _write(data: GlueData, folder: Path, name: str, progress: ProgressCallback) -> None:
    from comt_cli.data.prepare import tokenizer_for  # with NumPy, which a plan does without

    source = source_for(data)
    splits = divided(source.read(progress), data)
    make_folder(folder)
    for leftover in folder.glob(".*.tmp"):  # of a preparation that was killed
        leftover.unlink(missing_ok=True)
    tokenizer_for(data, corpus_for(data), progress).save(folder / TOKENIZER)
    for split, examples in splits.items():
        write_json(folder / _file_of(split), examples)
    refuse_changed(folder, data.task, name, fingerprint(data, progress))
    paths = [folder / each for each in (TOKENIZER, *map(_file_of, splits))]
    GlueManifest(
        fingerprint=name,
        format=GLUE_FORMAT,
        settings=data.model_dump(mode="json", exclude={"glue_folder"}),
        source=source.identity(),
        versions=GlueManifest.made_with("numpy", "sentencepiece"),
        examples={split: len(examples) for split, examples in splits.items()},
        files=tuple(map(FileRecord.of, paths)),
    ).write(folder)
