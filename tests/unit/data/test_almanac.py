"""`almanac`: its sentences in four languages, each trap of CLDR and of grammar, and what its splits promise."""

from __future__ import annotations

import datetime
import re
import unicodedata
from functools import cache
from itertools import permutations, product

import pytest
import sacrebleu

from comt_cli.data.draws import Draws
from comt_cli.data.order import uniform_draws
from comt_cli.data.pairs import almanac_values
from comt_cli.data.pairs.almanac_carriers import LANGUAGES, Carrier, Slot, carriers
from comt_cli.data.pairs.almanac_values import UNITS, Limits, draw, format_unit
from comt_cli.data.pairs.corpora.almanac import SEEN_YEARS, UNSEEN_YEARS, Almanac, AlmanacPair, _apart
from comt_cli.data.pairs.nearest import nearest_translations
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.prepare import fingerprint
from comt_cli.errors import UserError

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


def settings(**keys: object) -> PairData:
    return PairData(**{"corpus": "almanac", "vocabulary_size": 1000, "pairs": PAIRS, **keys})


@cache
def sample(source: str, target: str, difficulty: str, split: str = "train") -> list[AlmanacPair]:
    return list(Almanac(settings(source=source, target=target, difficulty=difficulty)).pairs(split, 0, PAIRS))


def texts(difficulty: str) -> dict[str, list[str]]:
    """Every language's sentences of the train split."""
    found = {language: [pair.target for pair in sample("en", language, difficulty)] for language in ("de", "fr", "vi")}
    return {"en": [pair.source for pair in sample("en", "de", difficulty)], **found}


def all_carriers() -> list[Carrier]:
    return [*carriers().clauses, *carriers().labels]


def test_there_are_about_sixty_carriers_with_one_to_three_values() -> None:
    assert len(carriers().clauses) >= 50
    assert len(carriers().labels) >= 15
    assert {len(carrier.slots) for carrier in all_carriers()} == {1, 2, 3}
    known = {*UNITS, *almanac_values._TYPES}
    assert {slot.type for carrier in all_carriers() for slot in carrier.slots} <= known
    for clause in carriers().clauses:
        for text in clause.texts.values():
            assert not str(text[-1]).endswith(".")
            # What begins a sentence is capitalised: a value there must not be changed by that.
            assert isinstance(text[0], str) or text[0].type in ("count", "percent", "ago")
    assert all(str(label.texts["en"][0])[0].isupper() for label in carriers().labels)


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_unit_is_printed_as_its_id(language: str) -> None:
    """Babel 2.18 has no long form of Vietnamese hours: it prints 3 duration-hour (python-babel/babel issue 1217)."""
    units = {unit for units in UNITS.values() for unit in units}
    for unit, number in product(units, (-1, 1, 3, 1234, 12.5)):
        text = format_unit(unit, number, language)
        assert unit not in text
        assert re.search(r"\d", text)
        assert not re.search(r"\b[a-z]+-(meter|hour|minute|day|week|month|year|byte|hertz|gram)\b", text)


@pytest.mark.parametrize("difficulty", ["easy", "full"])
def test_spaces_are_plain_and_single(difficulty: str) -> None:
    for language, sentences in texts(difficulty).items():
        for text in sentences:
            assert not re.search(r"[^\S ]|  | $|^ ", text), (language, text)
            assert unicodedata.is_normalized("NFC", text)
            assert text.endswith(".")
            assert "{" not in text
            assert not text[0].islower()


PREPOSITIONS = {
    "en": "of to from for in at by with on",
    "de": "von vom zu zum zur für in im nach mit aus bei auf um an am",
    "fr": "de du des à au aux pour en par avec d’ l’",
    "vi": "",
}


def test_no_name_of_money_or_country_is_inflected() -> None:
    """German "von 46 Indonesischen Rupiah" and French "aux États-Unis" would have to be guessed."""
    names = {"amount", "price", "country", "countries", "currency", "currencies", "languages"}
    for carrier in all_carriers():
        for language, text in carrier.texts.items():
            for place, part in enumerate(text):
                if isinstance(part, Slot) and part.type in names:
                    assert place, "a name begins the sentence, as its subject"
                    before = str(text[place - 1]).split() or ["a value"]
                    assert before[-1] not in PREPOSITIONS[language].split(), (language, text)
                    if part.type not in ("amount", "price"):
                        assert before[-1].endswith(":")


def test_ends_of_intervals_are_in_order_and_no_day_behind_an_article_is_the_first() -> None:
    limits = Limits(False, SEEN_YEARS)
    for number in range(500):
        numbers = [(number * step * 0.618034) % 1 for step in (1, 2, 3, 5, 7, 11)]
        begin, end = draw("period", Draws(numbers), limits)
        assert begin < end <= datetime.date(SEEN_YEARS[1], 12, 31)
        assert begin.day > 1
        opens, closes = draw("span", Draws(numbers), limits)
        assert opens < closes
        assert draw("date", Draws(numbers), limits).day > 1
    assert not any(re.search(r"\ble 1 [a-zé]", text) for text in texts("full")["fr"])


def test_values_are_plural_and_small_where_easy() -> None:
    for text in texts("easy")["en"]:
        without_times = re.sub(r"\b(19|20)\d\d\b|\d+:\d\d|\d+\.00", "", text)
        assert all(int(number) < 100 for number in re.findall(r"\d+", without_times)), text
        assert not re.search(r"(?<![\d.:,-])1 [a-z]+s\b", text), text
    assert any(re.search(r"\d,\d{3}", text) for text in texts("full")["en"])
    assert any(re.search(r"\d\.\d{3}", text) for text in texts("full")["de"])


def test_the_slots_are_the_values_of_the_target_in_its_order() -> None:
    for language in ("de", "fr", "vi"):
        for pair in sample("en", language, "full"):
            place = 0
            for slot in pair.slots:
                place = pair.target.index(slot, place) + len(slot)
    reordered = [pair for pair in sample("en", "vi", "full") if "she paid" in pair.source.lower()]
    assert all(pair.slots.index(_ago(pair.slots)) < len(pair.slots) - 1 for pair in reordered)


def _ago(slots: tuple[str, ...]) -> str:
    return next(slot for slot in slots if slot.endswith("trước"))


def test_examples_in_all_languages() -> None:
    for number, expected in EXAMPLES.items():
        assert tuple(texts("full")[language][number] for language in LANGUAGES) == expected


@pytest.mark.parametrize(("source", "target"), [*permutations(LANGUAGES, 2)][::3])
def test_any_two_languages_make_a_pair(source: str, target: str) -> None:
    almanac = Almanac(settings(source=source, target=target))
    for one, english in zip(almanac.pairs("train", 40, 20), sample("en", "de", "full")[40:60], strict=True):
        if "en" in (source, target):
            assert english.source == (one.source if source == "en" else one.target)


def test_a_pair_is_a_function_of_its_number_and_split() -> None:
    almanac = Almanac(settings())
    assert list(almanac.pairs("train", 100, 5)) == sample("en", "de", "full")[100:105]
    assert next(almanac.pairs("train", 2999, 1)) == sample("en", "de", "full")[2999]
    splits = [next(almanac.pairs(split, 0, 1)) for split in ("train", "validation", "test", "unseen")]
    assert len(set(splits)) == 4


@pytest.mark.parametrize("difficulty", ["easy", "full"])
def test_no_text_is_in_two_splits(difficulty: str) -> None:
    almanac = Almanac(settings(difficulty=difficulty, validation_pairs=300, test_pairs=400))
    decoded = almanac.decoded()
    assert {split: len(each) for split, each in decoded.items()} == {"validation": 300, "test": 400, "unseen": 400}
    sources = [[pair.source for pair in almanac.train()], *(each.sources for each in decoded.values())]
    targets = [[pair.target for pair in almanac.train()], *(each.references for each in decoded.values())]
    for sides in (sources, targets):
        sets = [set(side) for side in sides]
        assert sum(map(len, sets[1:])) == 1100
        assert not any(one & other for one in sets[1:] for other in sets if one is not other)


def test_more_pairs_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comt_cli.data.pairs.corpora.almanac._ATTEMPTS", 1)  # of 3000 drawn some are in train
    with pytest.raises(
        UserError, match=r"almanac has 2,9\d\d validation pairs that are in no earlier split, not 3,000"
    ):
        Almanac(settings(difficulty="easy", validation_pairs=PAIRS)).decoded()


def test_training_never_joins_what_the_unseen_join() -> None:
    clauses = carriers().clauses
    apart = {(clauses[first], clauses[second]) for first, second in _apart()}
    assert len(apart) > 200
    almanac, rows = Almanac(settings()), uniform_draws(7, 0, 4000, 5).tolist()
    joined = {split: {tuple(almanac._form(split, Draws(row))) for row in rows} for split in ("train", "unseen")}
    assert joined["unseen"] <= apart
    assert not joined["train"] & apart
    assert {len(form) for form in joined["train"]} == {1, 2}
    assert {form[0] for form in joined["unseen"]} | {form[1] for form in joined["unseen"]} == set(clauses)


@pytest.mark.parametrize("difficulty", ["easy", "full"])
def test_the_years_of_the_unseen_are_later(difficulty: str) -> None:
    seen, unseen = ([_years(pair.source) for pair in sample("en", "de", difficulty, split)] for split in SPLITS)
    assert {year for years in seen for year in years} == set(range(SEEN_YEARS[0], SEEN_YEARS[1] + 1))
    assert {year for years in unseen for year in years} == set(range(UNSEEN_YEARS[0], UNSEEN_YEARS[1] + 1))
    if difficulty == "easy":  # where nothing is joined, each has a year
        assert all(unseen)


SPLITS = ("train", "unseen")


def _years(text: str) -> list[int]:
    """Four digits that are not grouped are a year."""
    return [int(year) for year in re.findall(r"(?<![\d,.])\d{4}(?!\d|,\d)", text)]


@pytest.mark.parametrize(("language", "difficulty"), [("de", "easy"), ("vi", "full")])
def test_copying_is_no_translation_and_memory_is_half_of_one(language: str, difficulty: str) -> None:
    """The numbers of the whole corpus are in almanac.py."""
    pairs = sample("en", language, difficulty)
    train, test = pairs[:-200], pairs[-200:]
    references = [[pair.target for pair in test]]
    copied = sacrebleu.corpus_bleu([pair.source for pair in test], references).score
    assert copied < 6
    sources, targets = ([getattr(pair, side) for pair in train] for side in ("source", "target"))
    nearest = nearest_translations(sources, targets, [pair.source for pair in test])
    assert 25 < sacrebleu.corpus_bleu(nearest, references).score < 80
    assert nearest_translations(sources, targets, sources[:20]) == targets[:20]


def test_another_version_of_cldr_is_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    import babel.core

    before = fingerprint(settings())
    assert fingerprint(settings()) == before
    monkeypatch.setattr(babel.core, "get_cldr_version", lambda: "48")
    assert fingerprint(settings()) != before
