"""`almanac`: its sentences in four languages, each trap of CLDR and of grammar, and what its splits promise."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import product

import pytest

from comt_cli.data.pairs.almanac_values import LANGUAGES, UNITS, format_unit
from comt_cli.data.pairs.corpora.almanac import SEEN_YEARS, UNSEEN_YEARS, Almanac
from comt_cli.data.pairs.settings import PairData

PAIRS = 3000
EXAMPLES = {  # of the train split, for every language pair from English
    0: (
        "Accepted currencies: Moroccan Dirham and Euro.",
        "Akzeptierte Währungen: Marokkanischer Dirham und Euro.",
        "Devises acceptées : dirham marocain et euro.",
        "Các loại tiền được chấp nhận: Dirham Ma-rốc và Euro.",
    ),
    5: (
        "The wind reaches 97.2 meters per second at a temperature of -8.6 degrees Celsius, but add 71 kilograms of "
        "sugar after 45 minutes.",
        "Der Wind erreicht 97,2 Meter pro Sekunde bei einer Temperatur von -8,6 Grad Celsius, aber geben Sie nach 45 "
        "Minuten 71 Kilogramm Zucker hinzu.",
        "Le vent atteint 97,2 mètres par seconde par une température de -8,6 degrés Celsius, mais ajoutez 71 "
        "kilogrammes de sucre après 45 minutes.",
        "Gió đạt 97,2 mét/giây ở nhiệt độ -8,6 độ C, nhưng hãy thêm 71 kilôgam đường sau 45 phút.",
    ),
}


def settings(**keys):
    return PairData(**{"corpus": "almanac", "vocabulary_size": 1000, "pairs": PAIRS, **keys})


@cache
def sample(source, target, difficulty, split="train"):
    return list(Almanac(settings(source=source, target=target, difficulty=difficulty)).pairs(split, 0, PAIRS))


def texts(difficulty):
    """Every language's sentences of the train split."""
    found = {language: [pair.target for pair in sample("en", language, difficulty)] for language in ("de", "fr", "vi")}
    return {"en": [pair.source for pair in sample("en", "de", difficulty)], **found}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_unit_is_printed_as_its_id(language):
    """Babel 2.18 has no long form of Vietnamese hours: it prints 3 duration-hour (python-babel/babel issue 1217)."""
    units = {unit for units in UNITS.values() for unit in units}
    for unit, number in product(units, (-1, 1, 3, 1234, 12.5)):
        text = format_unit(unit, number, language)
        assert unit not in text
        assert re.search(r"\d", text)
        assert not re.search(r"\b[a-z]+-(meter|hour|minute|day|week|month|year|byte|hertz|gram)\b", text)


@pytest.mark.parametrize("difficulty", ["easy", "full"])
def test_spaces_are_plain_and_single(difficulty):
    for language, sentences in texts(difficulty).items():
        for text in sentences:
            assert not re.search(r"[^\S ]|  | $|^ ", text), (language, text)
            assert unicodedata.is_normalized("NFC", text)
            assert text.endswith(".")
            assert "{" not in text
            assert not text[0].islower()


def test_the_slots_are_the_values_of_the_target_in_its_order():
    for language in ("de", "fr", "vi"):
        for pair in sample("en", language, "full"):
            place = 0
            for slot in pair.slots:
                place = pair.target.index(slot, place) + len(slot)


def test_examples_in_all_languages():
    for number, expected in EXAMPLES.items():
        assert tuple(texts("full")[language][number] for language in LANGUAGES) == expected


@pytest.mark.parametrize("difficulty", ["easy", "full"])
def test_no_text_is_in_two_splits(difficulty):
    almanac = Almanac(settings(difficulty=difficulty, validation_pairs=300, test_pairs=400))
    decoded = almanac.decoded()
    assert {split: len(each) for split, each in decoded.items()} == {"validation": 300, "test": 400, "unseen": 400}
    sources = [[source for source, _ in almanac.train()], *(each.sources for each in decoded.values())]
    targets = [[target for _, target in almanac.train()], *(each.references for each in decoded.values())]
    for sides in (sources, targets):
        sets = [set(side) for side in sides]
        assert sum(map(len, sets[1:])) == 1100
        assert not any(one & other for one in sets[1:] for other in sets if one is not other)


@pytest.mark.parametrize("difficulty", ["easy", "full"])
def test_the_years_of_the_unseen_are_later(difficulty):
    pairs = (sample("en", "de", difficulty, split) for split in ("train", "unseen"))
    # Four digits that are not grouped are a year.
    seen, unseen = (
        [[int(year) for year in re.findall(r"(?<![\d,.])\d{4}(?!\d|,\d)", pair.source)] for pair in each]
        for each in pairs
    )
    assert {year for years in seen for year in years} == set(range(SEEN_YEARS[0], SEEN_YEARS[1] + 1))
    assert {year for years in unseen for year in years} == set(range(UNSEEN_YEARS[0], UNSEEN_YEARS[1] + 1))
    if difficulty == "easy":  # where nothing is joined, each has a year
        assert all(unseen)
