"""`almanac`: sentences of timetables, ledgers, weather reports, offices, kitchens and journeys in four languages.

    text := Clause "." | Clause joiner Clause "." | Label "."        with probabilities .40, .35, .25

71 carriers, written by hand in English, German, French and Vietnamese, have 1 to 3 slots each, in each language's own
order; the values in them are formatted by Babel from CLDR, that is by its translators. A translation must reorder (day
before month, "3 tuần trước" before what happened, the German verb's prefix last), write numbers and times the other way
(1,234.5 and 9:40 PM), know names that differ, form plurals, and copy digits. `easy` has no joined clauses, no number
above 99 but years, and no decimals in measures.

No text of validation, test or `unseen` is on the same side of an earlier split. `unseen` is a second test set, of
combinations that training does not have: in `full` two clauses that are never joined there (one in ten of the ordered
pairs are kept apart), in both difficulties the years 2031 to 2040, where training ends with 2030.

Measured with CLDR 47 (Babel 2.18), 20,000 training pairs from English, 1,000 test pairs; BLEU is sacreBLEU's default:

    difficulty, to                      easy de  easy fr  easy vi  full de  full fr  full vi
    unique, of either side, %              99.5     99.5     99.5     99.9     99.9     99.9
    words of a source                      10.3     10.3     10.3     14.4     14.4     14.4
    words of a target, most                16       21       27       31       35       39
    words of a target                      10.2     11.0     11.9     14.4     15.5     16.4
    different words, thousands, target      4.4      4.6      5.1     11.4      8.9     14.2
    drawn test pairs in train, of 2,000    16       16       16        4        4        4
    BLEU of copying the source              3.6      5.4      4.4      2.6      3.1      3.1
    BLEU of the nearest training source    53.4     55.5     60.5     36.0     37.9     42.8
    the same on `unseen`                   50.0     52.5     57.9     22.0     24.0     25.2
    values of a test pair                   2.1      2.1      2.1      2.8      2.8      2.8

The nearest training sentence (`nearest.py`) was never the right translation. Of English and Vietnamese with 2,000 joint
pieces, easy: 20.8 tokens a source and 24.5 a target, at most 52 and 68, and 2.1 % of the cells of buckets of 2,048
tokens are padding; full with 4,000 pieces: 27.9 and 33.1, at most 59 and 76, 2.1 %. Making 20,000 pairs took 1.7 s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from comt_cli.data.draws import Draws, drawn
from comt_cli.data.pairs.almanac_carriers import LANGUAGES, AlmanacLanguage, Carrier, Slot, carriers
from comt_cli.data.pairs.almanac_values import ALMANAC_VERSION, Limits, draw, identity, show
from comt_cli.data.pairs.corpus import PairCorpus, PairTexts, TextPair
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.errors import UserError

if TYPE_CHECKING:
    from comt_cli.data.pairs.settings import PairData

AlmanacSplit = Literal["train", "validation", "test", "unseen"]

SEEN_YEARS, UNSEEN_YEARS = (1990, 2030), (2031, 2040)
JOINERS: tuple[Mapping[AlmanacLanguage, str], ...] = (
    {"en": ", but ", "de": ", aber ", "fr": ", mais ", "vi": ", nhưng "},
    {"en": ", and ", "de": ", und ", "fr": ", et ", "vi": ", và "},
    {"en": "; ", "de": "; ", "fr": " ; ", "vi": "; "},
)
_ALONE, _JOINED = 0.40, 0.35  # the shares of one clause and of two; the rest are labels
_KEPT_APART = 10  # one in so many ordered pairs of clauses is never joined but in the unseen test set
_NUMBERS = 40  # draws of a pair: up to 4 for its form, 5 for each of 6 values
_ATTEMPTS = 20  # so many pairs are drawn for one that is in no earlier split, at most
_WITH_YEAR = {"day", "date", "month", "quarter", "year", "period"}


@dataclass(frozen=True)
class AlmanacPair:
    """A sentence in two languages, and its values as the second one has them, in their order there."""

    source: str
    target: str
    slots: tuple[str, ...]


class Almanac(PairCorpus):
    """The corpus: pair i of a split is a pure function of (`ALMANAC_VERSION`, split, i), difficulty and languages."""

    names = ("almanac",)
    order = 0
    keys: ClassVar[Mapping[str, Any]] = {
        "difficulty": "full",
        "pairs": 20_000,
        "validation_pairs": 500,
        "test_pairs": 1000,
    }

    def __init__(self, data: PairData) -> None:
        super().__init__(data)
        assert data.pairs is not None
        assert data.validation_pairs is not None
        assert data.test_pairs is not None
        self._source, self._target = cast(AlmanacLanguage, data.source), cast(AlmanacLanguage, data.target)
        self._easy = data.difficulty == "easy"
        self._counts: dict[AlmanacSplit, int] = {
            "train": data.pairs,
            "validation": data.validation_pairs,
            "test": data.test_pairs,
            "unseen": data.test_pairs,
        }
        self.total = data.pairs

    @classmethod
    def contradictions(cls, data: PairData) -> Iterator[str]:
        for key, language in (("source", data.source), ("target", data.target)):
            if language not in LANGUAGES:
                yield f"{key}: almanac is in {', '.join(LANGUAGES)}; {language} is none of them"

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """Versions, carriers, difficulty and counts."""
        return [*identity(), "easy" if self._easy else "full", *self._counts.values()]

    def pairs(self, split: AlmanacSplit, start: int, count: int) -> Iterator[AlmanacPair]:
        """The pairs [start, start + count) of a split, of which there is no end."""
        limits = Limits(self._easy, UNSEEN_YEARS if split == "unseen" else SEEN_YEARS)
        for draws in islice(drawn(f"almanac {ALMANAC_VERSION} {split}", _NUMBERS, start), count):
            yield self._pair(split, draws, limits)

    def train(self, start: tuple[int, int] = (0, 0)) -> Iterator[TextPair]:
        """All training pairs from `start` on."""
        for number in range(start[1], len(self._train)):
            yield TextPair(*self._train[number], (0, number))

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """Validation, test and unseen pairs: the first ones whose texts are not on the same side of an earlier split.

        Raises:
            UserError: there are not as many different ones as were asked for.
        """
        sources, targets = ({pair[side] for pair in self._train} for side in (0, 1))
        found: dict[str, PairTexts] = {}
        splits: tuple[AlmanacSplit, ...] = ("validation", "test", "unseen")
        for split in splits:
            kept: list[AlmanacPair] = []
            for pair in self.pairs(split, 0, _ATTEMPTS * self._counts[split]):
                if len(kept) == self._counts[split]:
                    break
                if pair.source not in sources and pair.target not in targets:
                    kept.append(pair)
                    sources.add(pair.source)
                    targets.add(pair.target)
            if len(kept) < self._counts[split]:
                raise UserError(
                    f"corpus: almanac has {len(kept):,} {split} pairs that are in no earlier split, not "
                    f"{self._counts[split]:,}",
                    "Use fewer, or difficulty: full, which has more different sentences.",
                )
            found[split] = PairTexts(
                [pair.source for pair in kept], [pair.target for pair in kept], [pair.slots for pair in kept]
            )
        return found

    @cached_property
    def _train(self) -> Sequence[tuple[str, str]]:
        return [(pair.source, pair.target) for pair in self.pairs("train", 0, self._counts["train"])]

    def _pair(self, split: AlmanacSplit, draws: Draws, limits: Limits) -> AlmanacPair:
        chosen = self._form(split, draws)
        joiner = JOINERS[draws.below(len(JOINERS))] if len(chosen) > 1 else {}
        values = [{slot.key: draw(slot.type, draws, limits) for slot in carrier.slots} for carrier in chosen]
        source, _ = _written(chosen, values, joiner, self._source)
        return AlmanacPair(source, *_written(chosen, values, joiner, self._target))

    def _form(self, split: AlmanacSplit, draws: Draws) -> list[Carrier]:
        """One clause, two, or a label."""
        known = carriers()
        if split == "unseen":
            if self._easy:
                dated = [each for each in (*known.clauses, *known.labels) if _has_year(each)]
                return [dated[draws.below(len(dated))]]
            return [known.clauses[place] for place in _apart()[draws.below(len(_apart()))]]
        share = draws.share()
        if share >= _ALONE + _JOINED:
            return [known.labels[draws.below(len(known.labels))]]
        first = draws.below(len(known.clauses))
        if share < _ALONE or self._easy:
            return [known.clauses[first]]
        seconds = _seconds(first)
        return [known.clauses[place] for place in (first, seconds[draws.below(len(seconds))])]


def _written(
    chosen: Sequence[Carrier],
    values: Sequence[Mapping[str, Any]],
    joiner: Mapping[AlmanacLanguage, str],
    language: AlmanacLanguage,
) -> tuple[str, tuple[str, ...]]:
    """The sentence in a language, and its values in the order in which they occur there."""
    clauses, slots = [], []
    for carrier, held in zip(chosen, values, strict=True):
        parts = []
        for part in carrier.texts[language]:
            if isinstance(part, Slot):
                slots.append(show(part.type, held[part.key], language))
                parts.append(slots[-1])
            else:
                parts.append(part)
        clauses.append("".join(parts))
    text = joiner.get(language, "").join(clauses)
    return text[0].upper() + text[1:] + ".", tuple(slots)


def _has_year(carrier: Carrier) -> bool:
    return any(slot.type in _WITH_YEAR for slot in carrier.slots)


@cache
def _apart() -> list[tuple[int, int]]:
    """The ordered pairs of clauses, by number, that training never joins."""
    texts = [str(clause.texts["en"]) for clause in carriers().clauses]
    return [
        (first, second)
        for first in range(len(texts))
        for second in range(len(texts))
        if first != second
        and hashlib.sha256(f"{texts[first]}\n{texts[second]}".encode()).digest()[0] % _KEPT_APART == 0
    ]


@cache
def _seconds(first: int) -> list[int]:
    """The clauses that training may join to the clause `first`."""
    return [second for second in range(len(carriers().clauses)) if second != first and (first, second) not in _apart()]
