"""Verbs and a recipe with a `grid`: plans count every run, selectors mean the one that the table shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.runs.plan import RunSpec
from comt_cli.verbs.select import model_source, run_directories
from tests.shelf import GATES, Shelf, shelf

__all__ = ["shelf"]

GRID = "sweep: {settings: {train.learning_rate: [3e-4, 1e-3]}, metric: bits_per_byte}\n"


@pytest.fixture
def gridded(shelf: Shelf) -> Shelf:
    """`mine/gates` with a grid of two points, and `mine/twin` without one."""
    text = GATES.replace("settings:\n", f"{GRID}settings:\n", 1)
    Path("recipes/mine/gates.yaml").write_text(text, encoding="utf-8")
    return shelf


def comt(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def points(shelf: Shelf, seed: int) -> list[RunSpec]:
    """The run of pre-ln and docs/tiny at each point."""
    found = shelf.specs(rows="pre-ln", columns="docs/tiny", seeds=str(seed))
    assert [spec.point["train.learning_rate"] for spec in found] == [3e-4, 1e-3]
    return found


def finish(shelf: Shelf) -> None:
    """All runs of pre-ln and docs/tiny: the second point is the better one by what decides."""
    for seed in (1, 2):
        for spec, decides, shown in zip(points(shelf, seed), (2.5, 2.0), (90.0, 100.0), strict=True):
            shelf.done(spec, shown, bits_per_byte=decides)


def meant(text: str) -> str:
    return Path(model_source(text, OfRuns())).resolve().name


def test_a_selector_means_the_run_of_the_chosen_point(gridded: Shelf):
    finish(gridded)
    other, chosen = points(gridded, 2)
    assert meant("mine/gates:pre-ln:docs/tiny:2") == chosen.id
    assert meant(other.id[:8]) == other.id
    folders = run_directories(["mine/gates:pre-ln"], OfRuns())
    assert {folder.path.resolve().name for folder in folders} == {points(gridded, seed)[1].id for seed in (1, 2)}


@pytest.mark.parametrize("trained", [1, 2])
def test_while_nothing_is_chosen_a_selector_lists_the_runs_by_their_ids(gridded: Shelf, trained: int):
    every = points(gridded, 1)
    for spec in every[:trained]:
        gridded.done(spec, bits_per_byte=2.0)
    for mean in (model_source, lambda text, runs: run_directories([text], runs)):
        with pytest.raises(UserError) as raised:
            mean("mine/gates:pre-ln:docs/tiny:1", OfRuns())
        first, *listed = raised.value.message.splitlines()
        assert f"could be any of {trained} run" in first
        assert "of a grid: nothing is chosen before all runs of the cell have ended" in first
        assert {line.split()[0] for line in listed} == {spec.id for spec in every[:trained]}
        assert all(any(f"learning_rate={rate}," in line for rate in (0.0003, 0.001)) for line in listed)
        left = "1,2" if trained == 1 else "2"
        assert f"Of its cell --seeds {left} has not ended." in raised.value.hint
        assert raised.value.exit_status == 2
    assert meant(every[0].id) == every[0].id
