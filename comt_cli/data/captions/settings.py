"""The settings of captioned images: the set, its splits, the vocabulary, and the regions that a model reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from comt_cli.data.captions.scene_words import WORDS
from comt_cli.recipe.settings import MAX_WIDTH, Section, Vocabulary, WholeNumber

VocabularyRule = Literal["all", "karpathy-gt5", "nltk-ge5"]
"""Which words are in the vocabulary: all; those that occur more than 5 times in the captions of all splits, as
Karpathy's tokens (what most published captioners do); those that occur at least 5 times in training's, in NLTK-like
tokens of the raw captions."""

SPECIAL_WORDS = 4
"""Padding, end, begin, unknown."""

VOCABULARY: dict[VocabularyRule, int] = {"karpathy-gt5": 9_490, "nltk-ge5": 9_567}
"""The words that MSCOCO is expected to have, special ones included: Karpathy's 9,487 count the unknown word alone. SAS
has 9,567, of another split and by a rule that is not said: where a folder has others, preparing it says how many."""

SCENE_PIXELS, SCENE_PATCH = 48, 8
"""The side of a scene's image, and of a patch of it that is a region."""

LARGEST_SCENES = 10**6
"""Images of `scenes`, whose captions are held in memory."""

Images = Annotated[WholeNumber, Field(ge=1, le=LARGEST_SCENES)]


class CaptionData(Section):
    """What the model describes: the images, their captions, and the regions that each image is given as.

    `images`, `validation_images` and `test_images` are how many `scenes` has, `difficulty` of which kind. Of a training
    caption the first `max_length` words are kept. An image is at most `regions` vectors of `features` numbers.
    """

    corpus: Literal["scenes", "mscoco"] = "scenes"
    folder: str | None = None
    difficulty: Literal["easy", "full"] | None = None
    images: Images | None = None
    validation_images: Images | None = None
    test_images: Images | None = None
    vocabulary_rule: VocabularyRule = "all"
    vocabulary_size: Vocabulary | None = None
    max_length: Annotated[WholeNumber, Field(ge=1, le=1000)] | None = None
    regions: Annotated[WholeNumber, Field(ge=1, le=1000)] | None = None
    features: Annotated[WholeNumber, Field(ge=1, le=MAX_WIDTH)] | None = None

    _drawn: ClassVar[dict[str, Any]] = {
        "difficulty": "full",
        "images": 20_000,
        "validation_images": 500,
        "test_images": 1000,
    }
    _scenes: ClassVar[dict[str, int]] = {
        "vocabulary_size": SPECIAL_WORDS + len(WORDS),
        "regions": (SCENE_PIXELS // SCENE_PATCH) ** 2,
        "features": 3 * SCENE_PATCH**2,
    }
    _mscoco: ClassVar[dict[str, Any]] = {"max_length": 16, "regions": 36, "features": 2048}

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_say_it(cls, given: Any) -> Any:
        """A value that is implied is stored in one way, so that saying it does not make another run."""
        if not isinstance(given, dict):
            return given
        if given.get("corpus", "scenes") == "scenes":
            defaults: dict[str, Any] = {**cls._drawn, **cls._scenes, "max_length": 40}
        else:
            size = VOCABULARY.get(given.get("vocabulary_rule", "all"))  # None, too, where there is no such rule
            defaults = {**cls._mscoco, "vocabulary_size": size}
        return given | {key: value for key, value in defaults.items() if given.get(key) is None}

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        if wrong := list(self._contradictions()):
            raise ValueError(*wrong)  # all at once: `validate` makes a problem of each
        return self

    def _contradictions(self) -> Iterator[str]:
        if self.corpus == "scenes":
            for key, value in self._scenes.items():
                if getattr(self, key) != value:
                    yield f"{key}: scenes has {value}; leave the key out"
            if self.folder is not None:
                yield "folder: scenes is drawn into the cache, and read from nowhere else; leave it out"
            if self.vocabulary_rule != "all":
                yield "vocabulary_rule: scenes has few words, and a model knows them all; use all"
            return
        for key in self._drawn:
            if getattr(self, key) is not None:
                yield f"{key}: this is a key of scenes; leave it out of corpus {self.corpus}"
        if self.vocabulary_size is None:
            yield "vocabulary_size: of all words of a folder the number is not known; say it, or use another rule"
        elif self.vocabulary_size <= SPECIAL_WORDS:
            yield f"vocabulary_size: {SPECIAL_WORDS} of the words are special ones; give more than that"
