"""Verbs and a recipe with a `grid`: plans count every run, selectors mean the one that the table shows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.campaign.outcomes import TrainingFailed, run_name
from comt_cli.commands import sweep_training
from comt_cli.commands.run_selectors import model_source, run_folders
from comt_cli.errors import UserError
from comt_cli.report.figures.write import run_figure_folder
from comt_cli.runs.plan import RunSpec
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
    return Path(model_source(text, Path("runs"))).resolve().name


def test_a_selector_means_the_run_of_the_chosen_point(gridded: Shelf):
    finish(gridded)
    other, chosen = points(gridded, 2)
    assert meant("mine/gates:pre-ln:docs/tiny:2") == chosen.id
    assert meant(other.id[:8]) == other.id
    folders = run_folders(["mine/gates:pre-ln"], Path("runs"))
    assert {folder.resolve().name for folder in folders} == {points(gridded, seed)[1].id for seed in (1, 2)}


@pytest.mark.parametrize("trained", [1, 2])
def test_while_nothing_is_chosen_a_selector_lists_the_runs_by_their_ids(gridded: Shelf, trained: int):
    every = points(gridded, 1)
    for spec in every[:trained]:
        gridded.done(spec, bits_per_byte=2.0)
    for mean in (model_source, lambda text, runs: run_folders([text], runs)):
        with pytest.raises(UserError) as raised:
            mean("mine/gates:pre-ln:docs/tiny:1", Path("runs"))
        first, *listed = raised.value.message.splitlines()
        assert f"could be any of {trained} run" in first
        assert "of a grid: nothing is chosen before all runs of the cell have ended" in first
        assert {line.split()[0] for line in listed} == {spec.id for spec in every[:trained]}
        assert all(any(f"learning_rate={rate}," in line for rate in (0.0003, 0.001)) for line in listed)
        left = "1,2" if trained == 1 else "2"
        assert raised.value.hint == (
            f"Say which: the beginning of its id.\n  Of its cell --seeds {left} has not ended."
        )
        assert raised.value.exit_status == 2
    assert meant(every[0].id) == every[0].id


def test_what_was_tried_besides_is_not_mistaken_for_the_grids(gridded: Shelf):
    tried = gridded.specs(rows="pre-ln", columns="docs/tiny", seeds="1", overrides=["train.learning_rate=0.5"])[0]
    gridded.done(tried)
    assert meant("mine/gates:pre-ln") == tried.id
    finish(gridded)
    assert meant("mine/gates:pre-ln::1") == points(gridded, 1)[1].id


def test_show_counts_every_run_with_its_point(gridded: Shelf):
    part = ("--columns", "docs/tiny", "--rows", "pre-ln", "--json")
    rows = json.loads(comt("show", "mine/gates", *part))
    alone = json.loads(comt("show", "mine/twin", *part))
    assert len(rows) == 2 * len(alone) == 2 * 2
    assert sum(row["flops"] for row in rows) == 2 * sum(row["flops"] for row in alone)
    assert {row["grid"]["train.learning_rate"] for row in rows} == {3e-4, 1e-3}
    assert not any("grid" in row for row in alone)
    printed = comt("show", "mine/gates", "--columns", "docs/tiny", "--rows", "pre-ln", "--seeds", "1", "--no-cost")
    head, first, second = (line.split() for line in printed.splitlines() if line.startswith(("docs/tiny", "pre-ln")))
    assert (head[2], first[2], second[2]) == ("learning_rate", "0.0003", "0.001")
    assert "2 runs, 2 to do" in printed


def test_show_settings_has_every_value_and_where_it_stands(gridded: Shelf):
    arguments = ("show", "mine/gates", "--settings", "pre-ln,docs/tiny", "--json")
    found = {each["key"]: each for each in json.loads(comt(*arguments))}
    assert found["train.learning_rate"]["value"] == [3e-4, 1e-3]
    assert found["train.learning_rate"]["given_by"] == "recipes/mine/gates.yaml:7"
    fixed = {each["key"]: each for each in json.loads(comt(*arguments, "--set", "train.learning_rate=0.5"))}
    assert fixed["train.learning_rate"]["value"] == 0.5


def test_status_counts_every_run_and_says_which_are_open(gridded: Shelf):
    finish(gridded)
    gridded.done(gridded.specs(rows="a/b", columns="docs/tiny", seeds="1")[0])
    gridded.begun(gridded.specs(rows="a/b", columns="docs/tiny", seeds="2")[1])
    lines = comt("status", "mine/gates", "--columns", "docs/tiny").splitlines()
    assert lines[0] == "mine/gates smoke: 12 runs: 6 missing, 1 unfinished, 5 done"
    assert lines[2].split(None, 1)[1] == "100.00 ± 0.00 (2), learning_rate 0.001"
    assert lines[3].split() == ["pre-ln+comt", "missing"]
    assert lines[4].split(None, 1)[1] == "1 of 4 done, unfinished 50/200, 2 missing"
    assert lines[5] == "  a/b, docs/tiny, learning_rate 0.001, seed 2: unfinished, step 50 of 200, loss 5.000"


def test_runs_are_listed_by_their_points(gridded: Shelf):
    finish(gridded)
    listed = json.loads(comt("runs", "mine/gates", "--json"))
    assert {(row["seed"], row["settings"]["train.learning_rate"]) for row in listed} == {
        (seed, rate) for seed in (1, 2) for rate in (3e-4, 1e-3)
    }
    assert all(row["settings"].keys() == {"train.learning_rate"} for row in listed)


def test_a_recipe_says_how_many_points_it_has(gridded: Shelf):
    assert "smoke: 3 rows x 2 columns x 2 seeds x 2 points of a grid" in comt("recipes", "mine/gates")
    assert "points" not in comt("recipes", "mine/twin")


def test_a_run_is_named_with_its_point(gridded: Shelf):
    assert run_name(points(gridded, 2)[0]) == "pre-ln, docs/tiny, learning_rate 0.0003, seed 2"


def test_figures_of_two_points_lie_in_two_folders(gridded: Shelf):
    first, second = (run_figure_folder(spec, Path("results")).name for spec in points(gridded, 2))
    assert first == "pre-ln-docs-tiny-learning_rate-0.0003-seed2"
    assert second == "pre-ln-docs-tiny-learning_rate-0.001-seed2"


def test_a_best_at_the_edge_is_told_with_the_status_of_what_was_trained(gridded, monkeypatch):
    """Bad input's, 2, says that nothing was started."""
    problems = {("pre-ln", "docs/tiny"): "pre-ln: the best is at the edge"}
    monkeypatch.setattr(sweep_training, "sweeps_among", list)
    monkeypatch.setattr(sweep_training, "_state", lambda planned, runs: SimpleNamespace(problems=problems))
    with pytest.raises(TrainingFailed, match="the best is at the edge") as refused:
        sweep_training.check_edges([gridded], Path("runs"))
    assert refused.value.exit_status == 1
