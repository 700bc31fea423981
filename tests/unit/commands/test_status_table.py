"""`comt status RECIPE`: the table as far as it is, with the options of the training that it is about."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from tests.shelf import Shelf, shelf

__all__ = ["shelf"]


def comt(*arguments: str):
    return CliRunner().invoke(app, ["status", *arguments])


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
    options = ("--set", "train.steps=40", "--rows", "pre-ln", "--columns", "docs/tiny", "--seeds", "1")
    assert comt("mine/gates", *options).output.splitlines() == [
        "mine/gates@steps-40 smoke: 1 run: 1 done",
        "          docs/tiny",
        "  pre-ln  300.00",
    ]
    of_suffix = comt("mine/gates@steps-40", *options[2:]).output
    assert of_suffix == comt("mine/gates", *options).output
    assert "12 runs: 12 missing" in comt("mine/gates").output
    assert "  besides, mine/gates@steps-40: 1 done" in comt("mine/gates").output
    shelf.done(shelf.spec("pre-ln", 1, scale="small", overrides=["train.steps=40"]))
    assert comt().output.splitlines() == [
        "mine/gates@steps-40 small: 6 runs: 5 missing, 1 done",
        "mine/gates@steps-40 smoke: 12 runs: 11 missing, 1 done",
    ]


def test_rows_narrow_what_is_shown_and_unknown_ones_are_errors(partly: Shelf):
    assert "3 done" not in comt("--rows", "a/b").output
    assert comt("--rows", "nonesuch").exit_code == 0  # no table has it
    assert isinstance(comt("mine/gates", "--rows", "nonesuch").exception, UserError)


def test_cells_as_json(partly: Shelf):
    (table,) = json.loads(comt("mine/gates", "--json").stdout)
    assert table["metric"] == "perplexity"
    cells = {(cell["row"], cell["column"]): cell for cell in table["cells"]}
    assert cells["pre-ln", "docs/tiny"] == {
        "row": "pre-ln", "column": "docs/tiny", "metric": "perplexity",
        "mean": 101.0, "stderr": 1.0, "runs": {"done": 2},
    }  # fmt: skip
    assert cells["a/b", "docs/tiny"]["mean"] is None
    assert cells["a/b", "docs/tiny"]["runs"] == {"diverged": 1, "unfinished": 1}
