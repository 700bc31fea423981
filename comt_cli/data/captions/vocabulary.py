"""The words of a vocabulary, by a named rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from comt_cli.data.captions.corpus import CaptionedImages, CaptionSplitName
from comt_cli.data.captions.scene_words import WORDS
from comt_cli.data.captions.settings import SPECIAL_WORDS, CaptionData
from comt_cli.data.word_tokenizer import WordTokenizer
from comt_cli.errors import UserError


def words_of(data: CaptionData, images: Mapping[CaptionSplitName, CaptionedImages]) -> WordTokenizer:
    """The tokenizer of the words that the rule of `data` chooses, the most frequent first (of `scenes`, by alphabet).
    Raises `UserError` where they are not as many as `vocabulary_size` says."""
    if data.corpus == "scenes":
        return WordTokenizer(WORDS)
    least = {"all": 1, "karpathy-gt5": 6, "nltk-ge5": 5}[data.vocabulary_rule]
    read = images.values() if data.vocabulary_rule == "karpathy-gt5" else [images["train"]]
    counts = Counter(word for each in read for texts in each.words for text in texts for word in text.split())
    words = sorted((word for word, count in counts.items() if count >= least), key=lambda word: (-counts[word], word))
    if len(words) + SPECIAL_WORDS != data.vocabulary_size:
        raise UserError(
            f"vocabulary_size: by the rule {data.vocabulary_rule} these captions have {len(words):,} words, with "
            f"{SPECIAL_WORDS} special ones {len(words) + SPECIAL_WORDS:,}, not {data.vocabulary_size:,}",
            f"Say vocabulary_size: {len(words) + SPECIAL_WORDS} under data in the recipe's setup (of MSCOCO "
            "recipes/setups/sas-captions.yaml), for runs that others start from too, which --set does not reach.",
        )
    return WordTokenizer(words)
