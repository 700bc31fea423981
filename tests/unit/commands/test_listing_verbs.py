"""`comt runs`, `status` and `recipes`: lists that a person can read and a program can parse, and copies of recipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from comt_cli.runs.known import Standing, known_runs, set_aside
from tests.shelf import Shelf, comt, shelf

__all__ = ["shelf"]


def listed(*arguments: str) -> list[dict]:
    result = comt("runs", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def full(shelf: Shelf) -> Shelf:
    """A run in every state, tries with other settings, another scale, another recipe."""
    shelf.done(shelf.spec("pre-ln", 1), 104.5)
    shelf.done(shelf.spec("pre-ln+comt", 1), 98.25)
    shelf.diverged(shelf.spec("a/b", 1))
    shelf.begun(shelf.spec("pre-ln", 2))
    shelf.failed(shelf.spec("pre-ln+comt", 2))
    shelf.done(shelf.spec("pre-ln", 1, overrides=["train.steps=40", "train.learning_rate=0.01"]), 310.0)
    shelf.done(shelf.spec("pre-ln", 1, scale="small"), 60.0)
    shelf.done(shelf.spec("a/b", 3), 99.0)
    set_aside([shelf.spec("a/b", 3)], shelf.runs)
    return shelf


def test_every_run_is_listed_with_its_state(full: Shelf):
    rows = listed()
    assert {row["id"] for row in rows} == {run.id for run in known_runs(full.runs)}
    assert sorted((row["scale"], row["row"], row["seed"], row["state"]) for row in rows) == [
        ("small", "pre-ln", 1, "done"),
        ("smoke", "a/b", 1, "diverged"),
        ("smoke", "a/b", 3, "replaced"),
        ("smoke", "pre-ln", 1, "done"),
        ("smoke", "pre-ln", 1, "done"),
        ("smoke", "pre-ln", 2, "unfinished"),
        ("smoke", "pre-ln+comt", 1, "done"),
        ("smoke", "pre-ln+comt", 2, "failed"),
    ]
    assert all(Path(row["folder"]).is_dir() and row["bytes"] > 0 and row["column"] == "docs/tiny" for row in rows)


def test_settings_are_those_that_differ_from_the_recipe_as_set_takes_them(full: Shelf):
    settings = {json.dumps(row["settings"]) for row in listed("mine/gates")}
    assert settings == {"{}", '{"train.steps": 40, "train.learning_rate": 0.01}'}  # the warm-up is a share of the steps
    (row,) = listed("mine/gates@learning_rate-0.01+steps-40")
    said = [f"{key}={json.dumps(value)}" for key, value in row["settings"].items()]
    assert full.spec("pre-ln", 1, overrides=said).id == row["id"]


def test_options_select(full: Shelf):
    assert len(listed("mine/gates")) == 8
    assert len(listed("mine/twin")) == len({row["id"] for row in listed("mine/gates") if not row["settings"]})
    assert [len(listed(selector)) for selector in ("mine/gates:pre-ln", "mine/gates:::2")] == [4, 2]
    assert len(listed("--state", "done,failed")) == 5


def test_damaged_runs_are_listed_and_hide_no_other(full: Shelf):
    torn, old, empty = (full.done(full.spec("pre-ln", seed)) for seed in (5, 6, 7))
    torn.result_file.write_text('{"state": "do', encoding="utf-8")
    old.spec_file.write_text('{"paper": "mine", "table": "gates", "row": "pre-ln", "seed": 6}', encoding="utf-8")
    empty.spec_file.write_text("[" * 100_000, encoding="utf-8")
    states = {row["id"]: row["state"] for row in listed()}
    assert [states[each.path.name] for each in (torn, old, empty)] == [Standing.unreadable] * 3
    assert sum(state == "done" for state in states.values()) == 4
    result = comt("runs")
    assert result.exit_code == 0
    assert "was made by another version of comt" in result.stderr


def test_listing_needs_no_torch(full: Shelf):
    code = (
        "import sys; from typer.testing import CliRunner; from comt_cli.tasks import Task\n"
        "Task.identify = lambda self, settings: ('asked-feed', 'c0ffee0123456789')\n"
        "from comt_cli.app import app\n"
        "for line in (['runs'], ['runs', 'mine/gates'], ['rm', 'mine/gates', '--dry-run'], ['status', 'mine/gates']):\n"
        "    assert CliRunner().invoke(app, line).exit_code == 0, line\n"
        "print([name for name in ('torch', 'pandas', 'matplotlib', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def partly(shelf: Shelf) -> Shelf:
    """Of docs/tiny: a row that is done, one of which a seed is, one that diverged and goes on."""
    for seed, value in ((1, 100.0), (2, 102.0)):
        shelf.done(shelf.spec("pre-ln", seed), value)
    shelf.done(shelf.spec("pre-ln+comt", 1), 95.5)
    shelf.diverged(shelf.spec("a/b", 1))
    shelf.begun(shelf.spec("a/b", 2))
    return shelf


def test_options_are_those_of_the_training(shelf: Shelf):
    """Steps that contradict another scale's setup are no problem (the paper's warm-up is 2000 steps)."""
    shelf.done(shelf.spec("pre-ln", 1, overrides=["train.steps=40"]), 300.0)
    assert (
        "mine/gates@steps-40 smoke: 6 runs: 5 missing, 1 done"
        in comt("status", "mine/gates@steps-40", "--seeds", "1").output
    )
    assert "12 runs: 12 missing" in comt("status", "mine/gates").output
    assert "  also mine/gates@steps-40: 1 done" in comt("status", "mine/gates").output
    shelf.done(shelf.spec("pre-ln", 1, scale="small", overrides=["train.steps=40"]))
    assert comt("status").output.splitlines() == [
        "mine/gates@steps-40 small: 6 runs: 5 missing, 1 done",
        "mine/gates@steps-40 smoke: 12 runs: 11 missing, 1 done",
    ]


def test_words_choose_recipes(shelf: Shelf):
    def chosen(*words: str) -> list[dict]:
        return json.loads(comt("recipes", *words, "--json").stdout)

    every = chosen()
    for words, those in (
        (("train-resnet",), [r for r in every if r["command"] == "train-resnet"]),
        (("gates of", "MINE"), [r for r in every if r["name"] in ("mine/gates", "mine/twin")]),
        (("sandwich-ln",), [r for r in every if "sandwich-ln" in r["methods"]]),
    ):
        assert those
        assert chosen(*words) == those
