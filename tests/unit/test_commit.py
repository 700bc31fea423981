"""The commit that a run and a measurement are recorded with."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from comt_cli import commit


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A source tree with a module and a table, committed; `commit` believes that it stands there."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    module, table = tmp_path / "comt_cli" / "commit.py", tmp_path / "results" / "table.csv"
    for file in (module, table):
        file.parent.mkdir(parents=True)
        file.write_text("first\n")
    names = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*names, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(commit, "__file__", str(module))
    monkeypatch.delenv("COMT_COMMIT", raising=False)
    return module, table


def test_changed_source_is_dirty(checkout):
    module, table = checkout
    found = commit.git_commit()
    assert len(found) == 12
    table.write_text("measured anew\n")
    assert commit.git_commit() == found
    module.write_text("changed\n")
    assert commit.git_commit() == f"{found}-dirty"


def test_an_archive_says_of_which_commit_it_is(checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_COMMIT", "abc-dirty")
    assert commit.git_commit() != "abc-dirty"
    shutil.rmtree(tmp_path / ".git")
    assert commit.git_commit() == "abc-dirty"
    monkeypatch.delenv("COMT_COMMIT")
    assert commit.git_commit() is None
