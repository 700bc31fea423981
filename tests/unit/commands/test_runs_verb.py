"""`comt runs`: every run there is, as a list that a person can read and a program can parse."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.runs.known import Standing, known_runs
from comt_cli.runs.shared import link_runs, set_aside
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


def test_a_run_that_is_at_work_says_so(full: Shelf):
    directory = full.begun(full.spec("pre-ln", 2))
    with directory.lock():
        (row,) = listed("--state", "running")
    assert (row["state"], row["step"], row["steps"]) == ("running", 50, 200)


def test_a_selector_chooses_among_a_tables_runs(full: Shelf):
    assert {row["row"] for row in listed("mine/gates:pre-ln+comt")} == {"pre-ln+comt"}
    assert [row["seed"] for row in listed("mine/gates:pre-ln+comt::2", "mine/gates:a/b:docs/tiny:1")] == [1, 2]
    assert listed("mine/gates:pre-ln::7") == []
    for text, says in (
        ("mine/gates:pre-lm", "mine/gates has no row 'pre-lm'\n  did you mean pre-ln?"),
        ("mine/gates::docs/tny", "mine/gates has no column 'docs/tny'"),
        ("mine/gates:pre-ln::x", "the seed 'x' is no whole number"),
    ):
        assert says in str(comt("runs", text).exception)


def test_settings_are_those_that_differ_from_the_recipe_as_set_takes_them(full: Shelf):
    settings = {json.dumps(row["settings"]) for row in listed("mine/gates")}
    assert settings == {"{}", '{"train.steps": 40, "train.learning_rate": 0.01}'}  # the warm-up is a share of the steps
    (row,) = listed("mine/gates", "--set", "train.steps=40")
    said = [f"{key}={json.dumps(value)}" for key, value in row["settings"].items()]
    assert full.spec("pre-ln", 1, overrides=said).id == row["id"]


def test_another_method_and_a_row_of_ones_own_are_told(shelf: Shelf):
    shelf.done(shelf.spec("wide", also={"wide": {"name": "comt", "hidden": 64}}))
    (row,) = listed("mine/gates")
    assert row["settings"] == {"method": "comt"}  # the recipe has no such row
    (row,) = listed("mine/gates", "--also", "wide={name: comt, hidden: 4}")
    assert row["settings"] == {"method.hidden": 64}


def test_runs_whose_recipe_is_gone_differ_from_each_other(full: Shelf):
    Path("recipes/mine/gates.yaml").unlink()
    rows = [row for row in listed("mine/gates", "--scale", "smoke", "--rows", "pre-ln") if row["seed"] == 1]
    assert sorted((row["value"], row["settings"]["train.steps"]) for row in rows) == [(104.5, 200), (310.0, 40)]
    assert all("train.batch_size" not in row["settings"] for row in rows)


def test_a_heading_names_the_data_that_the_column_does_not_and_kernels_that_differ(shelf: Shelf):
    shelf.done(shelf.spec("pre-ln", overrides=["train.kernels=reference"]))
    assert "mine/gates, smoke, docs/tiny, train.kernels=reference, on python-docs\n" in comt("runs").output
    Path("recipes/mine/gates.yaml").unlink()  # what all runs share is said
    heading = " ".join(comt("runs").output.partition("row ")[0].split())
    assert "mine/gates, smoke, docs/tiny, LLaMA tiny (4 layers, 128 wide) on python-docs, 200 steps of" in heading


def test_runs_on_different_data_are_told_apart(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    shelf.done(spec)
    shelf.done(spec.with_content("0123012301230123"))
    assert {row["settings"]["data"] for row in listed()} == {"c0ffee01", "01230123"}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (("mine/gates",), 8),
        (("mine/twin",), 3),  # its runs too, under its names
        (("--rows", "pre-ln"), 4),
        (("--seeds", "2"), 2),
        (("--scale", "small"), 1),
        (("--state", "done,failed"), 5),
        (("--columns", "docs/tiny"), 8),
        (("--set", "train.steps=40"), 1),
        (("--set", "train.warmup_steps=0.1"), 8),
        (("--set", "train.learning_rate=0.5"), 0),
    ],
)
def test_options_select(full: Shelf, options, count):
    if options == ("mine/twin",):
        count = len({row["id"] for row in listed("mine/gates") if not row["settings"]})
    assert len(listed(*options)) == count


def test_a_run_is_listed_by_the_names_of_the_table_that_was_asked_for(full: Shelf):
    twin = full.spec("with-gates", recipe="mine/twin")
    link_runs([twin], full.runs)
    (row,) = [row for row in listed("mine/twin") if row["id"] == twin.id]
    assert (row["recipe"], row["row"], row["column"]) == ("mine/twin", "with-gates", "docs/tiny")
    assert set(row["tables"]) == {"mine/gates", "mine/twin"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--state", "finished"), "there is no state of runs 'finished'"),
        (("--rows", "pre"), "there is no row with runs 'pre'\n  did you mean pre-ln?"),
        (("--set", "train.stps=3"), "unknown key; did you mean steps?"),
        (("mine/nonesuch",), "there is no recipe, and no table with runs, mine/nonesuch"),
    ],
)
def test_what_is_not_there_is_an_error(full: Shelf, options, says):
    result = comt("runs", *options)
    assert isinstance(result.exception, UserError)
    assert says in str(result.exception)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_list_fits_the_terminal_and_keeps_what_is_pasted_whole(full: Shelf, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    output = comt("runs").output
    assert max(map(len, output.splitlines())) <= columns
    assert all(line == line.rstrip() for line in output.splitlines())
    for run in known_runs(full.runs):
        assert re.search(rf"{run.name}$", output, re.MULTILINE) or columns < 80
    if columns == 120:
        assert "mine/gates, smoke, docs/tiny, train.steps=40 train.learning_rate=0.01" in output
        assert re.search(r"^pre-ln +1 +104\.50 ", output, re.MULTILINE)
        assert re.search(r"^a/b +1 +diverged at 120 ", output, re.MULTILINE)
        assert re.search(r"^pre-ln\+comt +2 +failed 50/200 ", output, re.MULTILINE)
        assert re.search(r"^a/b +3 +replaced, 99\.00 .*\.replaced-1$", output, re.MULTILINE)
    assert "8 runs: 4 done, 1 diverged, 1 unfinished, 1 failed, 1 replaced" in " ".join(output.split())


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


def test_where_there_is_nothing_it_says_so(shelf: Shelf):
    assert comt("runs").output == "There are no runs below runs.\n"
    assert listed() == []


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
