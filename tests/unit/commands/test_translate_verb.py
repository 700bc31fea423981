"""`comt translate`: as many lines out as in, whatever they hold, and a file that a kill does not lose."""

from __future__ import annotations

import os
import re
import shutil

import pytest
from toy_translation import toy_model, toy_spec, write_run
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.data.pairs.settings import is_blank
from comt_cli.errors import UserError
from comt_cli.generation import translate as generation
from comt_cli.generation.translate import Translator

LINES = ["a train", "", "seven trains at noon", "Chuyến tàu", " \u200b\u00ad\u2060\u200e ", "x"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = toy_spec()
    write_run(tmp_path / "run", spec, toy_model(spec))
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return tmp_path


def run(*arguments: str, given: str | bytes | None = None):
    command = ["translate", "run", "--device", "cpu", *arguments]
    result = CliRunner().invoke(app, command, input=given)
    if not isinstance(result.exception, UserError | SystemExit | None):
        raise result.exception
    return result


def test_as_many_lines_come_out_as_go_in(folder):
    from_file = run("-i", "in")
    assert from_file.exit_code == 0
    lines = from_file.stdout.removesuffix("\n").split("\n")
    assert len(lines) == len(LINES)
    assert all(not line for line, given in zip(lines, LINES, strict=True) if is_blank(given))
    assert len(set(lines)) > 2
    assert run(given="\n".join(LINES)).stdout == from_file.stdout  # without a last line break
    assert run("-i", "-", given="\r\n".join(LINES)).stdout == from_file.stdout
    assert run("-i", "in", "-o", "out").stdout == ""
    assert (folder / "out").read_text() == from_file.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["in", "out", "run"]
    (folder / "nothing").touch()
    assert run("-i", "nothing").stdout == ""


def test_n_best_and_scores_stand_in_columns(folder):
    rows = [line.split("\t") for line in run("-i", "in", "--n-best", "3", "--scores").stdout.splitlines()]
    assert [row[0] for row in rows] == [str(number) for number in range(1, 7) for _ in range(3)]
    for number, given in enumerate(LINES):
        found = [row[1:] for row in rows[3 * number : 3 * number + 3]]
        if is_blank(given):
            assert found == [["", "", ""]] * 3
        else:
            assert [float(score) for score, *_ in found] == sorted((float(score) for score, *_ in found), reverse=True)
            assert len({text for *_, text in found}) == 3
    for line in run("-i", "in", "--scores", "--alpha", "0").stdout.splitlines():
        assert line.split("\t")[0] == line.split("\t")[1]  # without a penalty the score is the log-probability


class Killed(BaseException):
    pass


def test_a_killed_call_is_continued_and_ends_with_the_same_bytes(folder, monkeypatch):
    monkeypatch.setattr(generation, "POOL", 2)
    options = ["-i", "in", "--n-best", "2", "--scores"]
    expected = run(*options).stdout
    search, left = Translator.search, [1]

    def dying(self, sources, *settings):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return search(self, sources, *settings)

    monkeypatch.setattr(Translator, "search", dying)
    with pytest.raises(Killed):
        run(*options, "-o", "out")
    assert not (folder / "out").exists()
    (part,) = folder.glob("out.part-*")
    assert len(part.read_text().splitlines()) == 2
    left[0] = 2  # of three pools one is done
    (folder / "run").rename(folder / "moved")
    shutil.copytree(folder / "moved", folder / "run")  # other inodes and times, the same weights
    result = run(*options, "-o", "out")
    assert f"{part.name} has 2 of 6 lines" in result.stderr
    assert (folder / "out").read_text() == expected
    assert not part.exists()
    left[0] = 1
    with pytest.raises(Killed):
        run(*options, "-o", "out")
    monkeypatch.setattr(Translator, "search", search)
    run(*options[:-1], "-o", "out")  # other columns: nothing is continued, and nothing lost
    assert part.exists()
    assert (folder / "out").read_text() == run(*options[:-1]).stdout


@pytest.mark.parametrize("name", ["in", "link"])
def test_the_input_is_never_the_output(folder, name):
    (folder / "link").symlink_to("in")
    assert "would overwrite the input" in run("-i", "in", "-o", name).exception.message
    assert (folder / "in").read_text(encoding="utf-8").splitlines() == LINES


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--beam", "0"], "greater than or equal to 1"),
        (["--alpha", "nan"], "less than or equal to 10"),
        (["--n-best", "5"], "--n-best 5 is more than the beam size 4"),
        (["-i", "pipe"], "pipe cannot be read: "),
    ],
)
def test_wrong_input_ends_with_status_2(folder, arguments, said):
    os.mkfifo(folder / "pipe")
    result = run(*arguments)
    status = result.exception.exit_status if isinstance(result.exception, UserError) else result.exit_code
    assert status == 2
    text = re.sub(r"[\s│]+", " ", result.stderr) + getattr(result.exception, "message", "")
    assert re.search(said, text)
