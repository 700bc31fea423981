"""Scores are sacreBLEU's own, to the last digit; what is done before it is done as the scripts behind papers do it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from comt_cli.scoring.metrics import compare, score, slot_accuracy, split_compounds

REFERENCES = [
    "Der Zug nach München fährt um 14:05 Uhr, am 3. Mai 2024.",
    'Das "rich-text-format" kostet 1.234,56 €; nicht mehr.',
    "Chuyến tàu khởi hành lúc 7 giờ sáng thứ Hai.",
    "C’est l’été: 35 °C – à l’ombre!",
    "A state-of-the-art, a-b-c test (well-known).",
] * 10
HYPOTHESES = [
    "Der Zug nach München geht um 14:05 Uhr am 3. Mai 2024.",
    'Das "rich text format" kostet 1.234,56 €; nicht viel mehr.',
    "Chuyến tàu khởi hành lúc 8 giờ sáng thứ Ba.",
    "C’est «l’été»: 35 °C – au soleil!",
    "a state-of-the-art a-b-d test (well known).",
] * 10
WORSE = [" ".join(line.split()[:-2]) for line in HYPOTHESES[:30]] + HYPOTHESES[30:]


@pytest.fixture
def files(tmp_path):
    for name, lines in (("hyp", HYPOTHESES), ("ref", REFERENCES), ("worse", WORSE)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def by_hand(files, *arguments: str):
    command = [sys.executable, "-m", "sacrebleu", "ref", *arguments]
    return json.loads(subprocess.run(command, cwd=files, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    ("metric", "arguments"),
    [
        ("bleu", ["-m", "bleu"]),
        ("bleu_tokenised", ["-m", "bleu", "-tok", "none", "-s", "none", "--force"]),
        ("bleu_intl", ["-m", "bleu", "-tok", "intl"]),
        ("bleu_intl_lc", ["-m", "bleu", "-tok", "intl", "-lc"]),
        ("chrf", ["-m", "chrf"]),
    ],
)
def test_a_score_is_that_of_sacrebleu_run_by_hand(files, metric, arguments):
    expected = by_hand(files, "-i", "hyp", *arguments, "-w", "17")
    found = score(metric, HYPOTHESES, REFERENCES)
    assert found.value == expected["score"]
    assert found.signature == expected["signature"]
    assert 10 < found.value < 95


def test_the_paired_bootstrap_is_sacrebleus(files):
    base, system = by_hand(files, "-i", "worse", "hyp", "-tok", "intl", "--paired-bs", "--format", "json", "-w", "9")
    own, baseline, p_value = compare("bleu_intl", HYPOTHESES, WORSE, REFERENCES)
    (name,) = set(base) - {"system"}
    assert own.value == pytest.approx(system[name]["score"], abs=1e-8)
    assert baseline.value == pytest.approx(base[name]["score"], abs=1e-8)
    assert p_value == pytest.approx(system[name]["p_value"], abs=1e-12)
    assert p_value < 0.05
    assert own.value > baseline.value
    assert "bs:1000|seed:12345" in own.signature
    assert compare("bleu", WORSE, WORSE, REFERENCES, samples=50)[2] == 1 / 51  # an oddity of sacreBLEU


COMPOUNDS = {
    "rich-text-format": "rich ##AT##-##AT## text ##AT##-##AT## format",
    "a-b-c": "a ##AT##-##AT## b-c",
    "a-b-c-d ab-cd - -e f-": "a ##AT##-##AT## b-c ##AT##-##AT## d ab ##AT##-##AT## cd - -e f-",
    "--- é-ü": "- ##AT##-##AT## - é ##AT##-##AT## ü",
}


def test_compounds_are_split_as_the_line_of_perl_does():
    assert [split_compounds(text) for text in COMPOUNDS] == list(COMPOUNDS.values())


def test_bleu_compound_is_multi_bleu_of_split_moses_tokens():
    hypotheses, references = ["Das rich-text-format, gut und schön."], ["Das rich-text format, gut und schön."]
    tokens = [
        "Das rich ##AT##-##AT## text ##AT##-##AT## format , gut und schön .",
        "Das rich ##AT##-##AT## text format , gut und schön .",
    ]
    found = score("bleu_compound", hypotheses, references)
    assert found.value == score("bleu_tokenised", tokens[:1], tokens[1:]).value
    assert found.signature.startswith("moses:de|compounds:split|sacremoses:")
    assert "tok:none|smooth:none" in found.signature


def test_sides_of_different_length_have_no_score():
    for pair in (([], []), (["a"], ["a", "b"])):
        with pytest.raises(ValueError, match="hypotheses for"):
            compare("bleu", *pair, pair[1])


def test_the_accuracy_of_values():
    def percent(text: str, *values: str) -> float:
        return slot_accuracy([text], [values]).value

    assert percent("am 3. Mai um 14:05 Uhr", "3. Mai", "14:05") == 100
    assert percent("am 13. Mai um 14:05 Uhr", "3. Mai", "4:05") == 0
    assert percent("3,5 % und 3 €", "3 €", "3,5 %") == 100
    assert percent("3,5", "3") == percent("13", "3") == percent("5.3", "3") == percent("3rd", "3") == 0
    assert percent("Es sind 3.", "3") == percent("(3)", "3") == 100
    assert percent("3 und 4", "3", "3") == 50
    assert percent("3 und 3", "3", "3") == 100
    assert percent("Neu-York ist New York", "York", "New York") == 100  # the longer takes its own
    assert percent("nur New York", "York", "New York") == 50
    assert percent("ĐỨC và Đức", "Đức") == 100
    assert percent("-12 Grad", "12 Grad") == percent("−12 Grad", "12 Grad") == 0
    assert percent("1 234 €", "234 €") == percent("1 234", "1") == 0
    assert percent("am 3 12 Euro", "12 Euro") == percent("2015 lúc 21", "2015") == 100
    found = slot_accuracy(["a 1", "b"], [["1"], ["2", "b"]])
    assert (found.value, found.signature) == (pytest.approx(200 / 3), "slots:3|match:exact")
    for hypotheses, slots in ((["a"], [[]]), (["a"], []), ([], [])):
        with pytest.raises(ValueError, match="lists of values"):
            slot_accuracy(hypotheses, slots)
