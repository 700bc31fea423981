"""`comt runs`: every run there is, as a list that a person can read and a program can parse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.runs.known import Standing, known_runs
from comt_cli.runs.shared import set_aside
from tests.shelf import Shelf, shelf

__all__ = ["shelf"]


def comt(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


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
    (row,) = listed("mine/gates", "--set", "train.steps=40")
    said = [f"{key}={json.dumps(value)}" for key, value in row["settings"].items()]
    assert full.spec("pre-ln", 1, overrides=said).id == row["id"]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("mine/gates",), 8),
        (("mine/twin",), 3),  # its runs too, under its names
        (("--rows", "pre-ln"), 4),
        (("--seeds", "2"), 2),
        (("--state", "done,failed"), 5),
        (("--set", "train.steps=40"), 1),
        (("--set", "train.warmup_steps=0.1"), 8),
        (("--set", "train.learning_rate=0.5"), 0),
    ],
)
def test_options_select(full: Shelf, options, count):
    if options == ("mine/twin",):
        count = len({row["id"] for row in listed("mine/gates") if not row["settings"]})
    assert len(listed(*options)) == count


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
