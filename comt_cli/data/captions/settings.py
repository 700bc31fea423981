"""The settings of captioned images: the set, its splits, the vocabulary, and the regions that a model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from comt_cli.data.captions.corpus import CaptionCorpus
from comt_cli.data.settings import DataSection
from comt_cli.recipe.settings import MAX_WIDTH, Vocabulary, WholeNumber

VocabularyRule = Literal["all", "karpathy-gt5", "nltk-ge5"]
"""Which words are in the vocabulary: all; those that occur more than 5 times in the captions of all splits, as
Karpathy's tokens (what most published captioners do); those that occur at least 5 times in training's, in NLTK-like
tokens of the raw captions."""

if TYPE_CHECKING:
    CorpusName = str
else:
    CorpusName = Literal[CaptionCorpus.all_names()]

LARGEST_SCENES = 10**6
"""Images of `scenes`, whose captions are held in memory."""

Images = Annotated[WholeNumber, Field(ge=1, le=LARGEST_SCENES)]


class CaptionData(DataSection):
    """What the model describes: the images, their captions, and the regions that each image is given as.

    `images`, `validation_images` and `test_images` are how many `scenes` has, `difficulty` of which kind. Of a training
    caption the first `max_length` words are kept. An image is at most `regions` vectors of `features` numbers.
    """

    kind = CaptionCorpus

    corpus: CorpusName = "scenes"
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
