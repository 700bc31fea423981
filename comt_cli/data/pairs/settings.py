"""The settings of parallel text: the corpus, its languages, its splits, the vocabulary, and the buckets of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from comt_cli.data.pairs.almanac_carriers import AlmanacLanguage
from comt_cli.recipe.settings import MAX_LENGTH, Count, Section, Vocabulary, WholeNumber, matching

HUB_PAIRS: dict[str, tuple[str, str]] = {
    "iwslt15-en-vi": ("en", "vi"),
    "wmt14-en-de": ("en", "de"),
    "wmt14-en-fr": ("en", "fr"),
}
"""The published corpora and their languages, which may be read in either direction."""

_NAMES = ("almanac", *HUB_PAIRS)
_OWN = r"pairs:[^,]+,[^,]+|gettext:[^,]+(,[^,]+)*"
BYTE_VOCABULARY = 259
"""Padding, end, 256 bytes, begin."""

LARGEST_ALMANAC = 10**7
"""Training pairs of `almanac`, which are held in memory while they are prepared."""

Share = Annotated[float, Field(gt=0, lt=1)]
Language = Annotated[
    str, matching(r"[a-z]{2,3}([_-][A-Za-z]{2,4})*", "is no code of a language, such as en, vi or zh_CN")
]
TwoFiles = Annotated[str, matching(r"[^,]+,[^,]+", "is not two files with a comma between, SOURCES,TARGETS")]


class PairData(Section):
    """What the model translates: the corpus, its languages, the vocabulary of both, and how pairs come in buckets.

    Lengths count tokens with the token that closes a text. A bucket holds at most `batch_tokens` padded tokens of
    sources, and as many of targets; training pairs with more than `max_length` tokens on a side are left out.
    """

    corpus: Annotated[str, matching(_OWN, "your own: pairs:SOURCES,TARGETS or gettext:FILE,...", _NAMES)] = "almanac"
    source: Language = "en"
    target: Language = "de"
    difficulty: Literal["easy", "full"] | None = None
    pairs: Annotated[WholeNumber, Field(ge=1, le=LARGEST_ALMANAC)] | None = None
    validation_pairs: Count | None = None
    test_pairs: Count | None = None
    validation_fraction: Share | None = None
    test_fraction: Share | None = None
    validation_files: TwoFiles | None = None
    test_files: TwoFiles | None = None
    folder: str | None = None
    tokenizer: Literal["sentencepiece", "bytes"] = "sentencepiece"
    vocabulary_size: Vocabulary | None = None
    max_length: Annotated[WholeNumber, Field(ge=2, le=MAX_LENGTH)] = 256
    batch_tokens: Annotated[WholeNumber, Field(ge=2, le=MAX_LENGTH)] = 4096

    _almanac: ClassVar[dict[str, Any]] = {
        "difficulty": "full",
        "pairs": 20_000,
        "validation_pairs": 500,
        "test_pairs": 1000,
    }
    _shares: ClassVar[dict[str, float]] = {"validation_fraction": 0.02, "test_fraction": 0.02}

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_say_it(cls, given: Any) -> Any:
        """A value that is implied is stored in one way, so that saying it does not make another run."""
        if not isinstance(given, dict):
            return given
        said = dict(given)
        corpus = str(said.get("corpus", "almanac"))
        defaults: dict[str, Any] = {}
        if corpus == "almanac":
            defaults = cls._almanac
        elif corpus.startswith(("pairs:", "gettext:")):
            own = {key for key in cls._shares if said.get(key.replace("fraction", "files")) is not None}
            defaults = {key: share for key, share in cls._shares.items() if key not in own}
        if said.get("tokenizer") == "bytes":
            defaults = defaults | {"vocabulary_size": BYTE_VOCABULARY}
        return said | {key: value for key, value in defaults.items() if said.get(key) is None}

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        if wrong := list(self._contradictions()):
            raise ValueError(*wrong)  # all at once: `validate` makes a problem of each
        return self

    def _contradictions(self) -> Iterator[str]:
        yield from self._languages()
        yield from self._splits()
        if self.tokenizer == "sentencepiece" and self.vocabulary_size is None:
            yield "vocabulary_size: a SentencePiece vocabulary is trained to a size; say which, for instance 2000"
        if self.tokenizer == "bytes" and self.vocabulary_size != BYTE_VOCABULARY:
            yield f"vocabulary_size: the tokenizer bytes has {BYTE_VOCABULARY} tokens; leave the key out"
        if self.batch_tokens < self.max_length:
            yield (
                f"batch_tokens: a bucket of {self.batch_tokens} tokens has no room for a sentence of max_length "
                f"{self.max_length}; use at least {self.max_length}, or a smaller max_length"
            )

    def _languages(self) -> Iterator[str]:
        if self.source == self.target:
            yield f"target: source and target are both {self.source}"
        elif self.corpus == "almanac":
            known = get_args(AlmanacLanguage)
            for key, language in (("source", self.source), ("target", self.target)):
                if language not in known:
                    yield f"{key}: almanac is in {', '.join(known)}; {language} is none of them"
        elif self.corpus.startswith("gettext:") and self.source != "en":
            yield "source: catalogues of gettext are translations of English; use source: en"
        elif self.corpus in HUB_PAIRS and {self.source, self.target} != set(HUB_PAIRS[self.corpus]):
            one, other = HUB_PAIRS[self.corpus]
            yield f"target: {self.corpus} is in {one} and {other}, not in {self.source} and {self.target}"

    def _splits(self) -> Iterator[str]:
        """Keys that say something about another corpus than the one that is named."""
        is_pairs, is_gettext = self.corpus.startswith("pairs:"), self.corpus.startswith("gettext:")
        fits = {
            **dict.fromkeys(self._almanac, ("almanac", self.corpus == "almanac")),
            **dict.fromkeys(self._shares, ("pairs:SRC,TGT and gettext:PACKAGE", is_pairs or is_gettext)),
            **dict.fromkeys(("validation_files", "test_files"), ("pairs:SRC,TGT", is_pairs)),
            "folder": (" and ".join((", ".join([*HUB_PAIRS][:-1]), [*HUB_PAIRS][-1])), self.corpus in HUB_PAIRS),
        }
        for key, (where, fitting) in fits.items():
            if getattr(self, key) is not None and not fitting:
                yield f"{key}: this is a key of {where}; leave it out of corpus {self.corpus.partition(':')[0]}"
        for split in ("validation", "test"):
            if getattr(self, f"{split}_files") is not None and getattr(self, f"{split}_fraction") is not None:
                yield f"{split}_fraction: {split}_files has the whole split; leave one of both out"
        if (self.validation_fraction or 0) + (self.test_fraction or 0) >= 1:
            yield "validation_fraction: with test_fraction it leaves nothing to train on"
