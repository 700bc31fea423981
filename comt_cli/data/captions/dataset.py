"""From settings to captioned images, once; what identifies them; and the data set, opened. Importing it imports no
NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt

from comt_cli.data.captions.corpus import CAPTION_SPLITS, CaptionCorpus, CaptionedImages, CaptionSplitName
from comt_cli.data.captions.scene_words import Scene
from comt_cli.data.captions.settings import SCENE_PIXELS, CaptionData
from comt_cli.data.manifest import MANIFEST, TOKENIZER, FileRecord, PreparedFolder, content_hash, damaged, verify
from comt_cli.data.storage import ProgressCallback, file_lock, make_folder, no_progress
from comt_cli.data.tokenizers import load_tokenizer
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, canonical_json, read_json, sha256, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from comt_cli.data.captions.batches import CaptionSplit, RegionSource

CAPTION_FORMAT = 1
"""Raise it when the same settings may give other images, captions, words or files than before
(tests/contract/test_cache_versions.py asks for it)."""


@dataclass(frozen=True)
class CaptionTexts:
    """The texts of a split: `references[i]` are the captions of image i, five as a rule."""

    references: Sequence[Sequence[str]]


class CaptionManifest(PreparedFolder):
    """Everything about a folder of prepared captions; `stamp` is the corpus's."""

    format: int
    settings: dict[str, Any]
    corpus: list[Any]
    stamp: str | None
    versions: dict[str, str]
    images: dict[CaptionSplitName, NonNegativeInt]
    files: tuple[FileRecord, ...]


class CaptionDataset:
    """Captioned images of one fingerprint.

    Attributes:
        folder: where the prepared files lie.
        fingerprint: the identity of images, captions and words.
        content_hash: 16 hexadecimal digits over them.
        tokenizer: from captions to words; padding is 0, and it has begin and unknown.
        vocabulary_size: how many words there are, the special ones included.
        regions, features: the most regions of an image, and the numbers of one.
    """

    def __init__(self, data: CaptionData, folder: Path, manifest: CaptionManifest) -> None:
        assert data.regions is not None
        assert data.features is not None
        assert data.max_length is not None
        self.folder, self.fingerprint = folder, manifest.fingerprint
        self.content_hash = content_hash(manifest.files)
        self.tokenizer = load_tokenizer(folder / TOKENIZER)
        self.vocabulary_size = self.tokenizer.vocabulary_size
        self.regions, self.features = data.regions, data.features
        self._data, self._max_length = data, data.max_length
        self._images = {
            split: CaptionedImages.from_json(read_json(folder / _text_file(split), largest=1 << 32))
            for split in CAPTION_SPLITS
        }

    @property
    def texts(self) -> Mapping[str, CaptionTexts]:
        """The captions of "train", "validation" and "test"."""
        return {split: CaptionTexts(images.references) for split, images in self._images.items()}

    @property
    def scenes(self) -> Mapping[str, Sequence[Scene]] | None:
        """What is in each image of these splits; None where nobody knows (mscoco)."""
        found = [(split, images.scenes) for split, images in self._images.items() if images.scenes is not None]
        return dict(found) or None

    @cached_property
    def train(self) -> CaptionSplit:
        """Every image as often as it has captions, of which the first `max_length` words are kept."""
        return self._split("train")

    @cached_property
    def validation(self) -> CaptionSplit:
        """Every image once, with its first caption."""
        return self._split("validation")

    @cached_property
    def test(self) -> CaptionSplit:
        """Every image once, with its first caption."""
        return self._split("test")

    def image(self, split: str, number: int) -> NDArray[np.uint8] | None:
        """The pixels, uint8 [H, W, 3], of an image; None where there are features alone (mscoco)."""
        import numpy as np

        from comt_cli.data.captions.regions import PatchRegions

        source = {"train": self.train, "validation": self.validation, "test": self.test}[split].source
        return np.array(source.pixels[number]) if isinstance(source, PatchRegions) else None

    def _split(self, split: CaptionSplitName) -> CaptionSplit:
        import numpy as np

        from comt_cli.data.captions.batches import CaptionSplit
        from comt_cli.data.pair_batches import TokenLists

        captions = [
            (image, text)
            for image, texts in enumerate(self._images[split].words)
            for text in (texts if split == "train" else texts[:1])
        ]
        encoded = self.tokenizer.encode_batch([text for _, text in captions])
        kept = TokenLists.of([ids[: self._max_length] for ids in encoded] if split == "train" else encoded)
        numbers = np.array([image for image, _ in captions], dtype=np.int64)
        return CaptionSplit(self._source(split), kept, numbers, self.tokenizer.special)

    def _source(self, split: CaptionSplitName) -> RegionSource:
        import numpy as np

        from comt_cli.data.captions.mscoco import FEATURES, mscoco_folder
        from comt_cli.data.captions.regions import FeatureFiles, PatchRegions
        from comt_cli.data.captions.scene_render import pixel_file

        images = self._images[split]
        if images.features is None:
            shape = (len(images.references), SCENE_PIXELS, SCENE_PIXELS, 3)
            # Copy on write: torch wants memory that may be written, and nothing here does.
            return PatchRegions(np.memmap(self.folder / pixel_file(split), dtype=np.uint8, mode="c", shape=shape))
        folder = mscoco_folder(self._data) / FEATURES
        counts = np.array([count for _, count, _ in images.features], dtype=np.int64)
        return FeatureFiles([folder / name for name, _, _ in images.features], counts, self.features)


def corpus_for(data: CaptionData) -> CaptionCorpus:
    """The corpus that `data.corpus` names."""
    if data.corpus == "mscoco":
        from comt_cli.data.captions.mscoco import MSCOCO

        return MSCOCO(data)
    from comt_cli.data.captions.scene_render import Scenes

    return Scenes(data)


def fingerprint(data: CaptionData, progress: ProgressCallback | None = None) -> str:
    """16 hexadecimal digits that identify the images, captions and words that `data` describes. No folder is read: what
    is in it is part of the content."""
    own = ("vocabulary_rule", "vocabulary_size", "max_length", "regions", "features")
    content = {
        "format": CAPTION_FORMAT,
        "corpus": corpus_for(data).identity(progress or no_progress),
        **{key: getattr(data, key) for key in own},
    }
    return sha256(canonical_json(content))[:16]


def known_content(data: CaptionData, fingerprint: str) -> str | None:
    """The content hash of what is prepared under this fingerprint; None where nothing is, it cannot be read, or files
    in the folder that it was read from have changed since."""
    try:
        manifest = CaptionManifest.read(_folder(data, fingerprint), fingerprint)
        return content_hash(manifest.files) if manifest.stamp == corpus_for(data).stamp() else None
    except (UserError, OSError):
        return None


def prepare(data: CaptionData, progress: ProgressCallback | None = None) -> CaptionDataset:
    """The images that `data` describes: rendered, or read from their folder, now unless they were before.

    The manifest is written last. Of two processes at once one works and the other waits; what was killed begins anew.

    Raises:
        UserError: the folder is not as needed, or prepared files are damaged.
        StorageError: the disk is full or refuses.
    """
    report, corpus = progress or no_progress, corpus_for(data)
    name = fingerprint(data, report)
    folder = _folder(data, name)
    if not _is_current(folder, name, corpus):
        with file_lock(folder.with_name(f"{folder.name}.lock"), report):
            if not _is_current(folder, name, corpus):  # another process may have made it while we waited
                _write(data, corpus, folder, name, report)
    manifest = CaptionManifest.read(folder, name)
    verify(folder, manifest.files, report)
    try:
        return CaptionDataset(data, folder, manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:  # removed or cut since the check
        raise damaged(folder / MANIFEST, str(error)) from error


def _is_current(folder: Path, name: str, corpus: CaptionCorpus) -> bool:
    """Whether the folder is complete, and was read from files as they are now. Raises `UserError` where it is
    damaged."""
    if not (folder / MANIFEST).exists():
        return False
    try:
        return CaptionManifest.read(folder, name).stamp == corpus.stamp()
    except OSError:  # the files are gone: writing says which
        return False


def _folder(data: CaptionData, name: str) -> Path:
    """Where the images of this fingerprint are prepared: of what is in a user's folder, one for each of these."""
    known = f"{name}-{sha256(str(Path(data.folder).expanduser().absolute()))[:8]}" if data.folder else name
    return cache_folder() / "captions" / known


def _text_file(split: CaptionSplitName) -> str:
    return f"{split}.json"


def _write(data: CaptionData, corpus: CaptionCorpus, folder: Path, name: str, progress: ProgressCallback) -> None:
    from comt_cli.data.captions.scene_render import pixel_file
    from comt_cli.data.captions.vocabulary import words_of

    make_folder(folder)
    for leftover in [folder / MANIFEST, *folder.glob(".*.tmp")]:  # of older files, or of a preparation that was killed
        leftover.unlink(missing_ok=True)
    images = corpus.write(folder, progress)
    stamp = corpus.stamp()
    words_of(data, images).save(folder / TOKENIZER)
    for split, each in images.items():
        write_json(folder / _text_file(split), each.to_json())
    own = [TOKENIZER, *map(_text_file, images), *map(pixel_file, images)]
    paths = [folder / each for each in own if (folder / each).exists()]  # features have no pixels
    CaptionManifest(
        fingerprint=name,
        format=CAPTION_FORMAT,
        settings=data.model_dump(mode="json", exclude={"folder"}),
        corpus=corpus.identity(),
        stamp=stamp,
        versions=CaptionManifest.made_with("matplotlib", "numpy", "pillow"),
        images={split: len(each.references) for split, each in images.items()},
        files=tuple(map(FileRecord.of, paths)),
    ).write(folder)
