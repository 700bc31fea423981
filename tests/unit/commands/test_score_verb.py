"""`comt score`: files line by line, all that is wrong with them at once, and the paired bootstrap."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.scoring.metrics import compare, score

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


def test_scores_stand_beside_their_signatures(folder):
    result = run("hyp", "ref", "--metric", "bleu, chrf,bleu_compound")
    assert result.exit_code == 0
    for line, metric in zip(result.stdout.splitlines(), ("bleu", "chrf", "bleu_compound"), strict=True):
        expected = score(metric, HYPOTHESES, REFERENCES)
        assert line.split() == [metric, f"{expected.value:.2f}", expected.signature]
    assert result.stderr == "comt: of 40 sentences: fewer than 100, so a difference may be chance\n"
    for name, lines in (("hyp", HYPOTHESES), ("ref", REFERENCES)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines * 3), encoding="utf-8")
    assert run("hyp", "ref").stderr == "comt: of 120 sentences\n"


@pytest.mark.parametrize("marked", ["hyp", "ref", "worse"])
def test_a_byte_order_mark_changes_no_score(folder, marked):
    arguments = ("hyp", "ref", "--against", "worse", "--metric", "bleu,chrf,bleu_tokenised")
    expected = run(*arguments).stdout
    (folder / marked).write_bytes(b"\xef\xbb\xbf" + (folder / marked).read_bytes())
    assert run(*arguments).stdout == expected


def test_json_has_every_digit(folder):
    found = json.loads(run("hyp", "ref", "--json", "--against", "worse", "--metric", "bleu").stdout)
    expected = compare("bleu", HYPOTHESES, WORSE, REFERENCES)
    assert found == {
        "sentences": 40,
        "bleu": {
            "score": expected.score.value,
            "against": expected.baseline.value,
            "difference": expected.difference,
            "p_value": expected.p_value,
            "signature": expected.score.signature,
        },
    }


def test_the_p_value_of_a_difference(folder):
    result = run("hyp", "ref", "--against", "worse", "--metric", "bleu")
    line = result.stdout
    assert "p is over the sentences of one translation each, not over seeds" in result.stderr
    expected = compare("bleu", HYPOTHESES, WORSE, REFERENCES)
    assert f"{expected.score.value:.2f}  against" in line
    assert f"p = {expected.p_value:.4f}" in line


def test_all_that_is_wrong_comes_at_once(folder):
    (folder / "latin").write_bytes("grün\n".encode("latin-1"))
    (folder / "empty").touch()
    result = run("latin", "empty", "--against", "gone", "--metric", "bleu,blue,ter")
    for part in (
        "there is no metric 'blue': did you mean bleu?",
        "there is no metric 'ter'",
        "latin cannot be read: it is not UTF-8 text (line 1)",
        "empty is empty",
        "there is no file gone",
    ):
        assert part in result.exception.message
    assert result.exception.exit_status == 2


def test_files_of_different_length_are_refused(folder):
    (folder / "short").write_text("one\ntwo\n")
    result = run("short", "ref")
    assert "short has 2, ref has 40" in result.exception.message
    assert result.exception.exit_status == 2


def test_tokenised_text_is_warned_of_where_it_matters(folder):
    (folder / "tokenised").write_text("".join(f"{line[:-1]} .\n" for line in HYPOTHESES))
    assert "40 of 40 lines of tokenised end in a full stop" in run("tokenised", "ref").stderr
    assert "full stop" not in run("tokenised", "ref", "--metric", "bleu_tokenised").stderr


def test_torch_is_not_needed(folder):
    code = (
        "import sys; sys.argv = ['comt', 'score', 'hyp', 'ref', '--metric', 'bleu,bleu_compound,chrf']\n"
        "from comt_cli.app import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, capture_output=True)


def test_of_two_equal_systems_the_p_value_says_nothing(folder):
    result = run("hyp", "ref", "--against", "hyp", "--metric", "bleu")
    assert "+0.00, p = 0.0010" in result.stdout
    assert "the p-value says nothing" in result.stderr


def test_two_runs_side_by_side_are_told_what_to_say(folder):
    result = CliRunner().invoke(app, ["score", "sas/table3:sas", "sas/table3:baseline"])
    assert "sas/table3:sas is a run, which has references of its own\n  --against RUN compares" in str(result.exception)
