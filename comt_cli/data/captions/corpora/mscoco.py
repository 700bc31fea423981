"""`mscoco`: Karpathy's `dataset_coco.json` in a folder, with his splits (`restval` belongs to training), and
`features/<cocoid>.npy`, [regions, numbers], or `.npz` with an array `feat`, as extractors of bottom-up features write.
References are the raw captions. Words are Karpathy's `tokens`, or those of `words.py` with the rule `nltk-ge5`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from comt_cli.data.captions.dataset import FeatureFiles, read_features
from comt_cli.data.captions.settings import CaptionCorpus, CaptionData, CaptionedImages, CaptionSplitName
from comt_cli.data.captions.words import treebank_tokens
from comt_cli.data.storage import ProgressCallback, first_line, hash_file, no_progress, stamp_of
from comt_cli.data.tokenizer import SPECIAL_WORDS, WordTokenizer
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, read_json

CAPTIONS, FEATURES = "dataset_coco.json", "features"
SPLITS: Mapping[str, CaptionSplitName] = {"train": "train", "restval": "train", "val": "validation", "test": "test"}
_PARTS = tuple(dict.fromkeys(SPLITS.values()))
VOCABULARY = {"karpathy-gt5": 9_490, "nltk-ge5": 9_567}
"""The expected vocabulary sizes of MSCOCO with all special words; Karpathy's 9,487 include only the unknown word."""


class _Sentence(BaseModel):
    raw: str
    tokens: list[str]


class _Image(BaseModel):
    split: Literal["train", "restval", "val", "test"]
    cocoid: int
    sentences: Annotated[list[_Sentence], Field(min_length=1)]


class MSCOCO(CaptionCorpus):
    """Captions and features of MSCOCO."""

    names = ("mscoco",)

    def __init__(self, data: CaptionData) -> None:
        super().__init__(data)
        self._folder = Path(data.folder).expanduser() if data.folder else cache_folder() / "captions" / "mscoco"

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The published sizes of features, and the expected number of words for a rule."""
        size = VOCABULARY.get(given.get("vocabulary_rule", "all"))  # None for other rules
        return {"max_length": 16, "regions": 36, "features": 2048, "vocabulary_size": size}

    @classmethod
    def contradictions(cls, data: CaptionData) -> Iterator[str]:
        if data.vocabulary_size is None:
            yield "vocabulary_size: rule all needs the number of words of the folder; set it, or use another rule"
        elif data.vocabulary_size <= SPECIAL_WORDS:
            yield f"vocabulary_size: should be above {SPECIAL_WORDS}, the number of special words"

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        return ["mscoco"]

    def stamp(self) -> str | None:
        return stamp_of([self._folder / CAPTIONS, *sorted((self._folder / FEATURES).iterdir())])

    def write(self, folder: Path, progress: ProgressCallback) -> dict[CaptionSplitName, CaptionedImages]:
        """The captions of every split and its files, all of which are read and hashed; writes nothing to `folder`."""
        images = self._images()
        files = self._files(images)
        found = {split: self._captions([each for each in images if SPLITS[each.split] == split]) for split in _PARTS}
        for split, each in found.items():
            if not each.references:
                raise UserError(f"{self._folder / CAPTIONS}: no image is in the {split} split")
        self.tokenizer(found)  # report a wrong number of words before hours of reading
        features: dict[CaptionSplitName, list[Any]] = {split: [] for split in _PARTS}
        for number, (image, file) in enumerate(zip(images, files, strict=True)):
            progress("reading features of images", number, len(images))
            regions = read_features(file, self.data.regions or 0, self.data.features or 0)
            features[SPLITS[image.split]].append((file.name, len(regions), hash_file(file)))
        return {split: replace(each, features=features[split]) for split, each in found.items()}

    def tokenizer(self, images: Mapping[CaptionSplitName, CaptionedImages]) -> WordTokenizer:
        least = {"all": 1, "karpathy-gt5": 6, "nltk-ge5": 5}[self.data.vocabulary_rule]
        read = images.values() if self.data.vocabulary_rule == "karpathy-gt5" else [images["train"]]
        counts = Counter(word for each in read for texts in each.words for text in texts for word in text.split())
        chosen = (word for word, count in counts.items() if count >= least)
        words = sorted(chosen, key=lambda word: (-counts[word], word))
        size = len(words) + SPECIAL_WORDS
        if size != self.data.vocabulary_size:
            raise UserError(
                f"vocabulary_size: by the rule {self.data.vocabulary_rule} these captions have {len(words):,} words, "
                f"with {SPECIAL_WORDS} special ones {size:,}, not {self.data.vocabulary_size:,}",
                f"Set vocabulary_size: {size} under data in the recipe's setup (for MSCOCO "
                "recipes/setups/sas-captions.yaml); --set would not apply to runs from which others start.",
            )
        return WordTokenizer(words)

    def regions(self, split: CaptionSplitName, images: CaptionedImages, folder: Path) -> FeatureFiles:
        files = images.features or ()
        counts = np.array([count for _, count, _ in files], dtype=np.int64)
        return FeatureFiles([self._folder / FEATURES / name for name, _, _ in files], counts, self.data.features or 0)

    def _captions(self, images: Iterable[_Image]) -> CaptionedImages:
        of_raw = self.data.vocabulary_rule == "nltk-ge5"
        sentences = [image.sentences for image in images]
        references = [[each.raw for each in several] for several in sentences]
        tokens = [[treebank_tokens(each.raw) if of_raw else each.tokens for each in several] for several in sentences]
        return CaptionedImages(references, learned=[[" ".join(each) for each in several] for several in tokens])

    def _images(self) -> list[_Image]:
        path = self._folder / CAPTIONS
        hint = f"Put Karpathy's {CAPTIONS} into the folder data.folder."
        try:
            return TypeAdapter(list[_Image]).validate_python(read_json(path)["images"], strict=True)
        except ValidationError as error:
            wrong = error.errors()[0]
            number, *keys = wrong["loc"] or (None,)
            where = ": ".join(["images" if number is None else f"image {int(number) + 1}", *map(str, keys)])
            raise UserError(f"{path}: {where}: {wrong['msg']}", hint) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read: {first_line(error)}", hint) from error

    def _files(self, images: Iterable[_Image]) -> list[Path]:
        folder = self._folder / FEATURES
        try:
            there = {file.name for file in folder.iterdir()}
        except OSError as error:
            hint = "This folder should have one file of features per image."
            raise UserError(f"{folder}: {error.strerror or error}", hint) from error
        names = [f"{image.cocoid}.npy" for image in images]
        names = [name if name in there else name.replace(".npy", ".npz") for name in names]
        if missing := [name.removesuffix(".npz") for name in names if name not in there]:
            said = f"{len(missing):,} of {len(names):,} images have no features; the first are {', '.join(missing[:3])}"
            raise UserError(f"{folder}: {said}", "Each image needs a file <cocoid>.npy or <cocoid>.npz.")
        return [folder / name for name in names]
