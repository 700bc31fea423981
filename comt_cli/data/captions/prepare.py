"""From settings to captioned images, once. Importing it, and finding a fingerprint, imports no NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt

from comt_cli.data.captions.corpus import CaptionCorpus, CaptionSplitName
from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.prepared import TOKENIZER, FileRecord, Manifest, Prepared, versions
from comt_cli.data.storage import ProgressCallback
from comt_cli.files import sha256, write_json

if TYPE_CHECKING:
    from comt_cli.data.captions.dataset import CaptionDataset

CAPTION_FORMAT = 1
"""Raise it when the same settings may give other images, captions, words or files than before
(tests/contract/test_cache_versions.py asks for it)."""


class CaptionManifest(Manifest):
    """Everything about a folder of prepared captions; `stamp` is the corpus's."""

    format: int
    settings: dict[str, Any]
    corpus: list[Any]
    stamp: str | None
    versions: dict[str, str]
    images: dict[CaptionSplitName, NonNegativeInt]
    files: tuple[FileRecord, ...]


class Kind(Prepared[CaptionData, CaptionCorpus, CaptionManifest, "CaptionDataset"]):
    """Captioned images, rendered, or read from a user's folder, whose files have to be as they were."""

    cache = "captions"
    manifest = CaptionManifest

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        """Images, captions and words. No folder is read: what is in it is part of the content."""
        own = ("vocabulary_rule", "vocabulary_size", "max_length", "regions", "features")
        return {
            "format": CAPTION_FORMAT,
            "corpus": self.corpus.identity(progress),
            **{key: getattr(self.data, key) for key in own},
        }

    def folder(self, name: str) -> Path:
        """One of each fingerprint; of what is in a user's folder, one for each of these."""
        own = self.data.folder
        known = f"{name}-{sha256(str(Path(own).expanduser().absolute()))[:8]}" if own else name
        return super().folder(known)

    def is_current(self, folder: Path, name: str) -> bool:
        """Whether the folder is complete, and was read from files as they are now."""
        try:
            return super().is_current(folder, name) and (
                CaptionManifest.read(folder, name).stamp == self.corpus.stamp()
            )
        except OSError:  # the files are gone: writing says which
            return False

    def write(self, folder: Path, name: str, progress: ProgressCallback) -> CaptionManifest:
        images = self.corpus.write(folder, progress)
        stamp = self.corpus.stamp()
        self.corpus.tokenizer(images).save(folder / TOKENIZER)
        for split, each in images.items():
            write_json(folder / f"{split}.json", each.to_json())
        own = [TOKENIZER, *(f"{split}.json" for split in images), *(f"{split}.pixels" for split in images)]
        return CaptionManifest(
            fingerprint=name,
            format=CAPTION_FORMAT,
            settings=self.data.model_dump(mode="json", exclude={"folder"}),
            corpus=self.corpus.identity(),
            stamp=stamp,
            versions=versions("matplotlib", "numpy", "pillow"),
            images={split: len(each.references) for split, each in images.items()},
            # Features of a user's folder have no pixels.
            files=tuple(FileRecord.of(folder / each) for each in own if (folder / each).exists()),
        )

    def open(self, folder: Path, manifest: CaptionManifest) -> CaptionDataset:
        from comt_cli.data.captions.dataset import CaptionDataset

        return CaptionDataset(self.data, self.corpus, folder, manifest)
