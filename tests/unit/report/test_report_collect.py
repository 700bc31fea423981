"""Run directories in every state: done, diverged, running, unfinished, torn, foreign, missing."""

from __future__ import annotations

import shutil
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from comt_cli.report.collect import Cell, Collection, collect, tables_with_runs
from comt_cli.runs.directory import RunState

PERPLEXITY = defaultdict(lambda: "perplexity")

if TYPE_CHECKING:
    from conftest import Bench


def cell_of(collection: Collection, row: str) -> Cell:
    return collection.cells[row, "tiny"]


def test_a_locked_run_is_running_with_its_progress(bench: Bench) -> None:
    directory = bench.started("pre-ln", 1)
    with directory.lock():
        cell = cell_of(collect(bench.specs(), bench.runs), "pre-ln")
    (run,) = cell.having(RunState.running)
    assert run.progress is not None
    assert (run.progress.step, run.progress.steps) == (30, 200)
    assert run.progress.loss == pytest.approx(8.7)
    assert run.progress.speed == 1024.0
    assert run.progress.eta_seconds == pytest.approx(170 * 0.5)
    assert cell.state == "1 running, 2 missing"
    assert cell.standing("perplexity") == "1 running, 2 missing (step 30 of 200)"


@pytest.mark.parametrize("content", ['{"state": "do', "[]", "{}", ""])
def test_a_torn_result_is_remarked_on_and_hides_no_other(bench: Bench, content: str) -> None:
    bench.done("pre-ln", {1: 100.0, 2: 110.0})
    bench.directory("pre-ln", 3).result_file.write_text(content)
    collection = collect(bench.specs(), bench.runs, PERPLEXITY)
    assert cell_of(collection, "pre-ln").state == "2 done, 1 unfinished"
    (note,) = collection.notes
    assert "cannot be read" in note or "is not a JSON object" in note or "state is not done" in note


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "12", True])
def test_a_result_without_the_metric_is_remarked_on(bench: Bench, value: object) -> None:
    bench.done("pre-ln", {1: 100.0}, perplexity=value)
    collection = collect(bench.specs(), bench.runs, PERPLEXITY)
    assert cell_of(collection, "pre-ln").values("perplexity") == {}
    (note,) = collection.notes
    assert note.endswith("result.json has no perplexity")


def test_a_run_of_another_table_stands_in_this_one_too(bench: Bench) -> None:
    """Found by its id, before there is a link to it."""
    bench.done("pre-ln", {1: 100.0})
    other = [spec.model_copy(update={"table": "table8", "row": "plain"}) for spec in bench.specs(rows="pre-ln")]
    assert collect(other, bench.runs).cells["plain", "tiny"].values("perplexity") == {1: 100.0}
    assert not (bench.runs / "comt/table8").exists()


def test_finished_runs_that_are_not_shown_are_told(mixed: Bench) -> None:
    mixed.done("pre-ln", {7: 100.0})
    for spec, scale in zip(mixed.specs(), ("smoke", "smoke", "paper"), strict=False):
        mixed.finish(spec.model_copy(update={"data_content": "other", "scale": scale}), 90.0)
    assert collect(mixed.specs(), mixed.runs).notes == (
        "Finished seeds that are not shown: 7 (--seeds 1-3,7 shows them).",
        "Not shown: 2 finished runs of this table with other settings or data (comt runs comt/table9 lists them).",
    )


def test_tables_with_runs(mixed: Bench) -> None:
    names, own, changed = ["comt/table9", "comt/table8"], ("comt/table9", None), ("comt/table9@steps-100", "smoke")
    assert tables_with_runs(mixed.runs, names) == [own]
    mixed.directory("pre-ln", 1, overrides=("train.steps=100",))
    assert tables_with_runs(mixed.runs, names) == tables_with_runs(mixed.runs, names, "smoke") == [own, changed]
    assert tables_with_runs(mixed.runs, names, "paper") == tables_with_runs(mixed.runs, names, is_set=True) == [own]
    shutil.rmtree(mixed.runs / "comt" / "table9")
    assert tables_with_runs(mixed.runs, names) == [changed]
    assert tables_with_runs(mixed.runs, names, is_set=True) == [own]
    assert tables_with_runs(mixed.folder / "nowhere", names) == []
