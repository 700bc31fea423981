"""`almanac`: sentences of timetables, ledgers, weather reports, offices, kitchens and journeys in four languages.

    text := Clause "." | Clause joiner Clause "." | Label "."        with probabilities .40, .35, .25

71 carriers, written by hand in English, German, French and Vietnamese, have 1 to 3 slots each, in each language's own
order. Babel formats the values in the slots from CLDR, whose translators wrote the names. A translation must reorder
(day before month, "3 tuần trước" before the event, the German verb's prefix last), convert numbers and times (1,234.5
and 9:40 PM), know names that differ, form plurals, and copy digits. `easy` has no joined clauses, no number above 99
except years, and no decimals in measures.

No text is on the same side of an earlier split. `unseen` is a second test set with combinations that training does not
have: in `full` two clauses that are never joined there, in both difficulties years after training's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice, permutations
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from comt_cli.data.draws import Draws, drawn, unseen
from comt_cli.data.pairs import almanac_values
from comt_cli.data.pairs.almanac_values import LANGUAGES, Limits, babel, draw, show
from comt_cli.data.pairs.settings import Pair, PairCorpus, PairData, PairTexts
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.files import sha256

ALMANAC_VERSION = 1  # version, as tests/contract/test_cache_versions.py says

SEEN_YEARS, UNSEEN_YEARS = (1990, 2030), (2031, 2040)
JOINERS: tuple[Mapping[str, str], ...] = (
    {"en": ", but ", "de": ", aber ", "fr": ", mais ", "vi": ", nhưng "},
    {"en": ", and ", "de": ", und ", "fr": ", et ", "vi": ", và "},
    {"en": "; ", "de": "; ", "fr": " ; ", "vi": "; "},
)
_ALONE, _JOINED = 0.40, 0.35  # the shares of one clause and of two; the rest are labels
_KEPT_APART = 10  # one of 10 ordered pairs of clauses is joined only in the unseen test set
_NUMBERS = 40  # draws of a pair: up to 4 for its form, 5 for each of 6 values
_ATTEMPTS = 20  # pairs drawn, at most, for one that is in no earlier split
_WITH_YEAR = {"day", "date", "month", "quarter", "year", "period"}
_CARRIERS = Path(almanac_values.__file__).with_name("almanac_carriers.txt")
_SLOT = re.compile(r"\{([a-z]+(?:\.\d)?)\}")


class Slot(NamedTuple):
    """A slot for a value. `key` identifies it within the sentence: its type, or `type.2`."""

    key: str

    @property
    def type(self) -> str:
        return self.key.partition(".")[0]


@dataclass(frozen=True, eq=False)
class Carrier:
    """A sentence in every language; a text is a sequence of strings and slots."""

    texts: Mapping[str, tuple[str | Slot, ...]]

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(part for part in self.texts["en"] if isinstance(part, Slot))


class Carriers(NamedTuple):
    """All carriers: `clauses` may be joined in pairs, `labels` stand alone; `source` is the text of the file."""

    clauses: tuple[Carrier, ...]
    labels: tuple[Carrier, ...]
    source: str


@cache
def carriers() -> Carriers:
    """The carriers of `almanac_carriers.txt`. Raises `ValueError` if the file has another format."""
    lines = [line for line in _CARRIERS.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    divide = lines.index("[labels]")
    return Carriers(_read(lines[1:divide]), _read(lines[divide + 1 :]), "\n".join(lines))


def _read(lines: list[str]) -> tuple[Carrier, ...]:
    """One carrier per four lines; `re.split` puts the slots' keys at the odd indices of a line."""
    found = []
    for start in range(0, len(lines), len(LANGUAGES)):
        several = [_SLOT.split(line) for line in lines[start : start + len(LANGUAGES)]]
        if len({tuple(sorted(parts[1::2])) for parts in several}) != 1:
            raise ValueError(f"the languages have different slots: {lines[start]}")
        texts = [
            tuple(Slot(part) if place % 2 else part for place, part in enumerate(each) if part) for each in several
        ]
        found.append(Carrier(dict(zip(LANGUAGES, texts, strict=True))))
    return tuple(found)


class AlmanacPair(NamedTuple):
    """A sentence in two languages, and its values as formatted in the second one, in their order there."""

    source: str
    target: str
    slots: tuple[str, ...]


class Almanac(PairCorpus):
    """Pair i of a split is a pure function of (`ALMANAC_VERSION`, split, i), difficulty and languages."""

    names = ("almanac",)
    order = 0
    sizes: ClassVar[Mapping[str, int]] = {"pairs": 20_000, "validation_pairs": 500, "test_pairs": 1000}
    keys: ClassVar[Mapping[str, Any]] = {"difficulty": "full", **sizes}

    def __init__(self, data: PairData) -> None:
        super().__init__(data)
        self._easy = data.difficulty == "easy"
        train, validation, test = data.pairs or 0, data.validation_pairs or 0, data.test_pairs or 0
        self._counts = {"train": train, "validation": validation, "test": test, "unseen": test}

    @classmethod
    def contradictions(cls, data: PairData) -> Iterator[str]:
        for key, language in (("source", data.source), ("target", data.target)):
            if language not in LANGUAGES:
                yield f"{key}: almanac has no {language}; use one of {', '.join(LANGUAGES)}"

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """Versions of this code and of CLDR, carriers, difficulty and counts. Raises `UserError` without Babel."""
        made_by = ["almanac", ALMANAC_VERSION, str(babel("core").get_cldr_version()), sha256(carriers().source)]
        return [*made_by, "easy" if self._easy else "full", *self._counts.values()]

    def pairs(self, split: str, start: int, count: int) -> Iterator[AlmanacPair]:
        """The pairs [start, start + count) of an infinite split."""
        limits = Limits(self._easy, UNSEEN_YEARS if split == "unseen" else SEEN_YEARS)
        for draws in islice(drawn(f"almanac {ALMANAC_VERSION} {split}", _NUMBERS, start), count):
            chosen = self._form(split, draws)
            joiner = draws.one_of(JOINERS) if len(chosen) > 1 else {}
            values = [{slot.key: draw(slot.type, draws, limits) for slot in carrier.slots} for carrier in chosen]
            source, _ = _written(chosen, values, joiner, self.data.source)
            yield AlmanacPair(source, *_written(chosen, values, joiner, self.data.target))

    def train(self) -> Iterator[Pair]:
        return iter(self._train)

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        """Validation, test and unseen pairs, with no text on the same side of an earlier split. Raises `UserError` if
        there are not enough different ones."""
        seen = {text for pair in self._train for text in enumerate(pair)}
        found: dict[str, PairTexts] = {}
        for split in ("validation", "test", "unseen"):
            count, key = self._counts[split], f"{split.replace('unseen', 'test')}_pairs"
            made = self.pairs(split, 0, _ATTEMPTS * count)
            kept = unseen(made, count, lambda pair: enumerate(pair[:2]), seen, key)
            texts = PairTexts.of([pair[:2] for pair in kept])
            found[split] = replace(texts, slots=[pair.slots for pair in kept])
        return found

    @cached_property
    def _train(self) -> Sequence[Pair]:
        return [pair[:2] for pair in self.pairs("train", 0, self._counts["train"])]

    def _form(self, split: str, draws: Draws) -> list[Carrier]:
        known = carriers()
        if split == "unseen":
            if self._easy:
                every = (*known.clauses, *known.labels)
                return [draws.one_of([each for each in every if _WITH_YEAR & {slot.type for slot in each.slots}])]
            return [known.clauses[place] for place in draws.one_of(_apart())]
        share = draws.share()
        if share >= _ALONE + _JOINED:
            return [draws.one_of(known.labels)]
        first = draws.below(len(known.clauses))
        if share < _ALONE or self._easy:
            return [known.clauses[first]]
        return [known.clauses[place] for place in (first, draws.one_of(_seconds(first)))]


def _written(
    chosen: Sequence[Carrier], values: Sequence[Mapping[str, Any]], joiner: Mapping[str, str], language: str
) -> tuple[str, tuple[str, ...]]:
    clauses, slots = [], list[str]()
    for carrier, held in zip(chosen, values, strict=True):
        clauses.append("")
        for part in carrier.texts[language]:
            if isinstance(part, Slot):
                slots.append(show(part.type, held[part.key], language))
            clauses[-1] += slots[-1] if isinstance(part, Slot) else part
    text = joiner.get(language, "").join(clauses)
    return text[0].upper() + text[1:] + ".", tuple(slots)


@cache
def _apart() -> list[tuple[int, int]]:
    """The ordered pairs of clauses, by number, that training never joins."""
    texts = [str(clause.texts["en"]) for clause in carriers().clauses]
    drawn_by = {pair: f"{texts[pair[0]]}\n{texts[pair[1]]}".encode() for pair in permutations(range(len(texts)), 2)}
    return [pair for pair, text in drawn_by.items() if hashlib.sha256(text).digest()[0] % _KEPT_APART == 0]


@cache
def _seconds(first: int) -> list[int]:
    """The clauses that training may join to the clause `first`."""
    return [second for second in range(len(carriers().clauses)) if second != first and (first, second) not in _apart()]
