"""`mscoco`: Karpathy's `dataset_coco.json` in a folder, and beside it, in `features`, a file of regions for each image.

The file of an image is `features/<cocoid>.npy`, [regions, numbers], or `.npz` with an array `feat`: what extractors of
bottom-up features write. The splits are Karpathy's, `restval` being part of training.

Words to learn are Karpathy's `tokens` or, by the vocabulary's rule `nltk-ge5`, the tokens of `treebank.py` of the raw
captions. References are the raw captions: scores have a tokeniser of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from comt_cli.data.captions.corpus import CAPTION_SPLITS, CaptionedImages, CaptionSplitName
from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.captions.treebank import treebank_tokens
from comt_cli.data.storage import ProgressCallback, first_line, hash_file, no_progress, state_of
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, canonical_json, read_json, sha256

CAPTIONS, FEATURES = "dataset_coco.json", "features"
SPLITS: Mapping[str, CaptionSplitName] = {
    "train": "train",
    "restval": "train",
    "val": "validation",
    "test": "test",
}
_NAMED = 3  # images without features that are named


def mscoco_folder(data: CaptionData) -> Path:
    """Where captions and features are: `data.folder`, else a folder in the cache."""
    return Path(data.folder).expanduser() if data.folder else cache_folder() / "captions" / "mscoco"


class MSCOCO:
    """The corpus."""

    def __init__(self, data: CaptionData) -> None:
        self._data, self._folder = data, mscoco_folder(data)

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """The name alone: what is in the folder is part of the content."""
        return ["mscoco"]

    def stamp(self) -> str | None:
        """Names and states (`state_of`) of the captions and of every file of features: a folder that was copied, or
        prepared when size and time were its files' state, is read once more. Raises `OSError`."""
        files = [self._folder / CAPTIONS, *sorted((self._folder / FEATURES).iterdir())]
        seen = [[file.name, *state_of(file.stat())] for file in files]
        return sha256(canonical_json(seen))[:16]

    def write(self, folder: Path, progress: ProgressCallback) -> dict[CaptionSplitName, CaptionedImages]:
        """The captions of every split and its files, all of which are read and hashed; nothing is put into `folder`."""
        from comt_cli.data.captions.vocabulary import words_of

        images = self._images()
        files = self._files([image for image, _ in images])
        found = {split: self._captions([image for image, of in images if of == split]) for split in CAPTION_SPLITS}
        for split, each in found.items():
            if not each.references:
                raise UserError(f"{self._folder / CAPTIONS}: no image is in the {split} split")
        words_of(self._data, found)  # a wrong number of words is told before hours of reading
        features: dict[CaptionSplitName, list[Any]] = {split: [] for split in CAPTION_SPLITS}
        for number, ((_, split), file) in enumerate(zip(images, files, strict=True)):
            progress("reading features of images", number, len(images))
            features[split].append(self._checked(file))
        return {split: replace(each, features=features[split]) for split, each in found.items()}

    def _captions(self, images: Iterable[Mapping[str, Any]]) -> CaptionedImages:
        sentences = [image["sentences"] for image in images]
        return CaptionedImages(
            references=[[sentence["raw"] for sentence in each] for each in sentences],
            learned=[[" ".join(self._tokens(sentence)) for sentence in each] for each in sentences],
        )

    def _tokens(self, sentence: Mapping[str, Any]) -> Iterable[str]:
        return treebank_tokens(sentence["raw"]) if self._data.vocabulary_rule == "nltk-ge5" else sentence["tokens"]

    def _images(self) -> list[tuple[dict[str, Any], CaptionSplitName]]:
        """Every image of the JSON with its split; what is used of it is there, and of the right type."""
        path = self._folder / CAPTIONS
        hint = f"Put Karpathy's {CAPTIONS} there, and say where it is with data.folder."
        try:
            images = read_json(path, largest=1 << 32)["images"]
        except FileNotFoundError as error:
            raise UserError(f"there is no {path}", hint) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read: {first_line(error)}", hint) from error
        if not isinstance(images, list):
            raise UserError(f"{path}: its `images` are no list", hint)
        for number, image in enumerate(images):
            if wrong := next(_wrong(image), None):
                raise UserError(f"{path}: image {number + 1}: {wrong}", hint)
        return [(image, SPLITS[image["split"]]) for image in images]

    def _files(self, images: Iterable[Mapping[str, Any]]) -> list[Path]:
        """The file of each image's features."""
        folder = self._folder / FEATURES
        try:
            there = {file.name for file in folder.iterdir()}
        except OSError as error:
            raise UserError(
                f"{folder}: {error.strerror or error}", "A folder with a file of features for each image belongs there."
            ) from error
        names = [f"{image['cocoid']}.npy" for image in images]
        names = [name if name in there else name.replace(".npy", ".npz") for name in names]
        if missing := [name.removesuffix(".npz") for name in names if name not in there]:
            raise UserError(
                f"{folder}: {len(missing):,} of {len(names):,} images have no features; the first are "
                f"{', '.join(missing[:_NAMED])}",
                "The features of an image are a file <cocoid>.npy or <cocoid>.npz.",
            )
        return [folder / name for name in names]

    def _checked(self, file: Path) -> tuple[str, int, str]:
        from comt_cli.data.captions.regions import read_features  # with NumPy, which a plan does without

        assert self._data.regions is not None
        assert self._data.features is not None
        return file.name, len(read_features(file, self._data.regions, self._data.features)), hash_file(file)


def _wrong(image: Any) -> Iterator[str]:
    """What of an image's entry is not as it should be."""
    if not isinstance(image, dict):
        yield "it is no object"
        return
    if image.get("split") not in [*SPLITS]:  # which may be of any type
        yield f"its split is {image.get('split')!r}, none of {', '.join(SPLITS)}"
    if not isinstance(image.get("cocoid"), int):
        yield "it has no number `cocoid`"
    sentences = image.get("sentences")
    if not isinstance(sentences, list) or not sentences:
        yield "it has no `sentences`"
        return
    for sentence in sentences:
        if not isinstance(sentence, dict) or not isinstance(sentence.get("raw"), str):
            yield "a sentence has no `raw` text"
        elif not isinstance(tokens := sentence.get("tokens"), list) or not all(
            isinstance(each, str) for each in tokens
        ):
            yield "a sentence has no list of `tokens`"
