"""Runs by a condition on their settings and numbers, in a data frame and in `comt runs`; and the names of runs."""

from __future__ import annotations

import pytest

from comt_cli import find_runs
from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.verbs.select import model_source
from tests.shelf import Shelf, comt, shelf

__all__ = ["shelf"]


@pytest.fixture
def five(shelf: Shelf) -> Shelf:
    """Two seeds of pre-ln and one of comt that are done, one that is begun, and one of another scale."""
    for row, seed, value in (("pre-ln", 1, 110.0), ("pre-ln", 2, 90.0), ("pre-ln+comt", 1, 80.0)):
        shelf.done(shelf.spec(row, seed), value)
    shelf.begun(shelf.spec("a/b"))
    shelf.done(shelf.spec("pre-ln", scale="small", column=None), 70.0)
    return shelf


def test_a_frame_has_names_settings_and_numbers(five):
    frame = find_runs()
    assert [*frame["row"]] == ["pre-ln", "a/b", "pre-ln", "pre-ln", "pre-ln+comt"]
    (gated,) = find_runs("mine/gates", where="method.name == 'comt'").to_dict("records")
    spec = five.spec("pre-ln+comt")
    assert (gated["recipe"], gated["column"], gated["seed"], gated["state"]) == ("mine/gates", "docs/tiny", 1, "done")
    assert (gated["id"], gated["folder"]) == (spec.id, f"runs/by-id/{spec.id}")
    assert (gated["train.steps"], gated["method.hidden"], gated["perplexity"]) == (200, 2, 80.0)
    names = [*frame.columns]
    assert names.index("folder") < names.index("data.vocabulary") < names.index("perplexity")
    assert [*find_runs(runs="elsewhere").columns][:3] == ["recipe", "row", "column"]


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("train.steps > 100", 5),
        ("perplexity < 100", 3),
        ("not perplexity < 100", 2),  # of what has none nothing holds
        ("perplexity == None and state != 'done'", 1),
        ("70 <= perplexity <= 80 and seed == 1", 2),
        ("row in ['pre-ln', 'a/b'] and scale not in ('small',)", 3),
        ('"q_proj" in method.sites or train.batch_size == 16', 2),
        ("bleu > -1", 0),  # of a task that has no run here
    ],
)
def test_where(five, where, count):
    assert len(find_runs(where=where)) == count
    listed = comt("runs", "--where", where).output
    assert f"{count} run" in listed or (count == 0 and "no such runs" in listed)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("steps > 1", "no run has steps; did you mean train.steps?"),
        ("train.step > 1", "did you mean train.steps?"),
        ("row == pre_ln", "Put text in quotes"),
        ("row = 'pre-ln'", "not an expression"),
        ("row.startswith('pre')", "row.startswith('pre') is not allowed here"),
        ("train.steps + 1 > 2", "train.steps + 1 is not allowed here"),
        ("seed is 1", "is not allowed here"),
        ("row > 3", "'>' not supported"),
        ("-row == 1", "-row is not allowed here"),
        ("", "not an expression"),
        ("(" * 300, "not an expression"),
    ],
)
def test_a_wrong_condition_is_refused(five, where, said):
    with pytest.raises(UserError) as raised:
        find_runs(where=where)
    assert said in str(raised.value)
    result = comt("runs", "--where", where)
    assert result.exception.exit_status == 2


def test_a_name_selects_the_run(five):
    spec = five.spec("pre-ln+comt")
    listed = comt("runs", "mine/gates:pre-ln+comt:docs-tiny:1", "--name", "gated")
    assert listed.output.splitlines()[1].split()[-1] == "name"
    assert listed.output.splitlines()[2].split()[-2:] == [spec.id, "gated"]
    assert model_source("gated", OfRuns()).endswith(f"seed1-{spec.id}")
    assert [*find_runs("gated")["id"]] == [*find_runs(where="name == 'gated'")["id"]] == [spec.id]
    assert comt("runs", spec.id[:6], "--name", "again").exception is None  # another name, by its id
    with pytest.raises(UserError):
        find_runs("gated")
    assert comt("runs", "again", "--name", "").exception is None
    assert find_runs(spec.id)["name"].isna().all()


def test_a_run_that_is_moved_aside_has_no_name(five):
    spec = five.spec("pre-ln+comt")
    comt("runs", spec.id, "--name", "gated")
    folder = five.runs / "by-id" / spec.id
    folder.rename(f"{folder}.replaced-1")
    assert find_runs()["name"].isna().all()


@pytest.mark.parametrize(
    ("selector", "name", "said"),
    [
        ("mine/gates:pre-ln:docs/tiny:1", "baseline", "is called baseline already"),
        ("mine/gates:pre-ln", "other", "--name names one run, but 2 are selected"),
        ("mine/gates:a/b", "mine/gates", "cannot be the name of a run"),
        ("mine/gates:a/b", "table3", "cannot be the name of a run"),
        ("mine/gates:a/b", "runs", "cannot be the name of a run"),
        ("mine/gates:a/b", "facade", "cannot be the name of a run"),
        ("mine/gates:a/b", "a b", "cannot be the name of a run"),
    ],
)
def test_a_name_that_means_something_else_is_refused(five, selector, name, said):
    comt("runs", five.spec("pre-ln", 2).id, "--name", "baseline")
    before = find_runs()["name"].dropna().to_dict()
    result = comt("runs", selector, "--scale", "smoke", "--name", name)
    assert said in str(result.exception)
    assert result.exception.exit_status == 2
    assert find_runs()["name"].dropna().to_dict() == before
