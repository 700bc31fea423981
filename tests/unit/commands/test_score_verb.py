"""`comt score`: files line by line, all that is wrong with them at once, and the paired bootstrap."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.scoring.metrics import compare

REFERENCES = [f"Der Zug {number} fährt um {number % 24}:05 Uhr nach München." for number in range(40)]
HYPOTHESES = [line.replace("fährt", "geht") if number % 3 else line for number, line in enumerate(REFERENCES)]
WORSE = [line.replace("nach", "von") for line in HYPOTHESES]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("hyp", HYPOTHESES), ("ref", REFERENCES), ("worse", WORSE)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def run(*arguments: str):
    result = CliRunner().invoke(app, ["score", *arguments])
    if not isinstance(result.exception, UserError | SystemExit | None):
        raise result.exception
    return result


@pytest.mark.parametrize("marked", ["hyp", "ref", "worse"])
def test_a_byte_order_mark_changes_no_score(folder, marked):
    arguments = ("hyp", "ref", "--against", "worse", "--metric", "bleu,chrf,bleu_tokenised")
    expected = run(*arguments).stdout
    (folder / marked).write_bytes(b"\xef\xbb\xbf" + (folder / marked).read_bytes())
    assert run(*arguments).stdout == expected


def test_json_has_every_digit(folder):
    found = json.loads(run("hyp", "ref", "--json", "--against", "worse", "--metric", "bleu").stdout)
    own, baseline, p_value = compare("bleu", HYPOTHESES, WORSE, REFERENCES)
    assert found == {
        "sentences": 40,
        "bleu": {
            "score": own.value,
            "against": baseline.value,
            "difference": own.value - baseline.value,
            "p_value": p_value,
            "signature": own.signature,
        },
    }


def test_files_of_different_length_are_refused(folder):
    (folder / "short").write_text("one\ntwo\n")
    result = run("short", "ref")
    assert "short has 2, ref has 40" in result.exception.message
    assert result.exception.exit_status == 2


def test_what_cannot_be_scored_is_refused(folder):
    (folder / "latin").write_bytes("grün\n".encode("latin-1"))
    (folder / "empty").touch()
    for arguments, said in (
        (("hyp", "ref", "--metric", "bleu,blue"), "there is no metric 'blue'\n  did you mean bleu?"),
        (("hyp", "latin"), "latin cannot be read: it is not UTF-8 text (line 1)"),
        (("empty", "ref"), "empty is empty"),
        (("hyp", "ref", "--against", "gone"), "there is no file gone"),
    ):
        refused = run(*arguments).exception
        assert (str(refused), refused.exit_status) == (said, 2)
