"""Surroundings that are not as a terminal's: a full disk behind the output, ASCII, a launcher's leftovers, no folder.

Each as a process of its own, as a user would start it: an exit status and a line that says what is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def comt(*arguments: str, folder: Path = ROOT, out: object = subprocess.PIPE, **environment: str):
    return subprocess.run(
        [sys.executable, "-m", "comt_cli", *arguments],
        stdout=out,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = done.stderr.decode()
    assert "Traceback" not in text, text
    return text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_output_that_cannot_be_written():
    with Path("/dev/full").open("wb") as full:
        done = comt("recipes", out=full)
    assert done.returncode == 1
    assert said(done) == "comt: cannot write the output: No space left on device\n"


def test_a_reader_that_has_seen_enough():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = comt("recipes", out=writer)
    finally:
        os.close(writer)
    assert (done.returncode, said(done)) == (1, "")


def test_letters_that_the_terminal_lacks_end_nothing(tmp_path):
    recipe = (ROOT / "recipes/comt/table3.yaml").read_text(encoding="utf-8")
    title = recipe.partition("title: ")[2].partition("\n")[0]
    (tmp_path / "one.yaml").write_text(recipe.replace(title, f"{title} \N{PLUS-MINUS SIGN}", 1), encoding="utf-8")
    done = comt("report", "one.yaml", "--scale", "smoke", folder=tmp_path, PYTHONIOENCODING="ascii")
    said(done)
    assert "\\xb1" in (done.stdout + done.stderr).decode("ascii")


@pytest.mark.parametrize(
    ("environment", "wrong"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2, WORLD_SIZE=2, LOCAL_RANK"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "MASTER_ADDR and MASTER_PORT are not as torchrun sets them"),
    ],
    ids=str,
)
def test_what_a_launcher_left_behind_is_told(environment, wrong, tmp_path):
    done = comt("train-lm", "--recipe", "table3.yaml", "--runs", str(tmp_path), **environment)
    assert done.returncode == 2
    assert wrong in said(done)
    assert "env -u RANK -u WORLD_SIZE" in said(done)


def test_a_folder_that_was_removed(tmp_path):
    """Libraries further down die of it with words that help nobody."""
    script = (
        f"import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); "
        f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'comt_cli', 'recipes'])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 2
    assert "the current folder cannot be used" in said(done)
