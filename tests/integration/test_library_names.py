"""The examples of the public names, run in the order in which somebody would; and training from a script."""

from __future__ import annotations

import doctest
import multiprocessing.spawn
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal
from tiny_recipe import quick_recipe
from tiny_runs import write_corpus

import comt_cli
from comt_cli import find_runs, list_methods, load, method, train
from comt_cli.errors import UserError
from comt_cli.verbs.train import _no_main_module

ROOT = Path(comt_cli.__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with texts and a recipe of two rows, `mine.yaml`."""
    path = tmp_path_factory.mktemp("library")
    corpus = write_corpus(path / "texts", 40)
    methods = {"pre-ln": "pre-ln", "comt": "comt"}
    (path / "mine.yaml").write_text(quick_recipe("short", corpus, methods, {"steps": 2}), encoding="utf-8")
    return path


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.FAIL_FAST


@pytest.mark.parametrize("example", [method, list_methods, train, find_runs, load], ids=lambda each: each.__name__)
def test_the_examples_run(here, example):
    """The later ones look for what the third has trained."""
    (test,) = doctest.DocTestFinder(recurse=False).find(example, example.__name__, module=False, globs={})
    assert test.examples
    assert doctest.DocTestRunner(optionflags=FLAGS).run(test).failed == 0


def test_the_page_runs(here):
    page = ROOT / "docs" / "library.md"
    assert doctest.testfile(str(page), module_relative=False, optionflags=FLAGS, encoding="utf-8").failed == 0


def test_what_is_trained_again_is_found(here, capsys):
    """By the same settings, in whichever way they are said; and what is wrong is said as the command says it."""
    first = train("mine.yaml", rows=["comt"], columns="tiny", seeds=[1], set={"train.steps": 3})
    assert "were finished before" in capsys.readouterr().err
    again = train(Path("mine.yaml"), rows="comt", seeds=1, set={"train.steps": 3}, results="elsewhere")
    assert_frame_equal(first, again)
    assert Path("elsewhere/smoke/own/mine@steps-3.csv").is_file()
    with pytest.raises(UserError, match=r"--set train.step=3: unknown key; did you mean steps\?"):
        train("mine.yaml", set={"train.step": 3})
    with pytest.raises(UserError, match="there is no row 'komt'"):
        train("mine.yaml", rows="komt")
    with pytest.raises(UserError, match="jobs=0 should be at least 1"):
        train("mine.yaml", jobs=0)
    with pytest.raises(UserError, match="--also komt: method: there is no method"):
        train("mine.yaml", also="komt")
    with pytest.raises(UserError, match="there is no recipe nonesuch"):
        train("nonesuch")
    with pytest.raises(UserError, match="did you mean comt"):
        load("mine.yaml:kommt")


def test_workers_do_not_run_the_users_script(monkeypatch, tmp_path):
    script = sys.modules["__main__"]
    with _no_main_module():
        given = multiprocessing.spawn.get_preparation_data("a-worker")
    assert not {key for key in given if key.startswith("init_main")}
    assert sys.modules["__main__"] is script


@pytest.mark.slow
def test_a_script_needs_no_guard(here):
    """Two runs at once, in processes of their own, of a script that trains when it is imported, in a thread."""
    script = here / "script.py"
    script.write_text(
        "import threading\nfrom comt_cli import train\nprint('begins')\ndef work():\n"
        "    print([*train('mine.yaml', set={'train.steps': 4}, jobs=2, runs='others')['state']])\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n",
        encoding="utf-8",
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout.count("begins") == 1
    assert done.stdout.splitlines()[-1] == "['done', 'done']"
