"""A table of a recipe with a `grid`: which point a cell shows, when, and how that is said."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comt_cli.report.collect import Cell, Run, collect
from comt_cli.report.collect import cell_of as cell_made_of
from comt_cli.report.exhibits.table import state
from comt_cli.report.terminal import cell_text
from comt_cli.report.verdict import Verdict
from comt_cli.report.write import write_report
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec

if TYPE_CHECKING:
    from conftest import Bench

RATES = (3e-4, 1e-3, 3e-3)
KEY = "train.learning_rate"
GRID = f"sweep: {{settings: {{{KEY}: [3e-4, 1e-3, 3e-3]}}, metric: bits_per_byte}}\n"


@pytest.fixture
def gridded(bench: Bench) -> Bench:
    """The recipe of every table here, with a grid of three points; nothing of it is trained."""
    bench.text = bench.text.replace("settings:\n  data", f"{GRID}settings:\n  data", 1)
    bench.__post_init__()
    return bench


def finish(bench: Bench, row: str, outcomes: Mapping[float, Mapping[int, tuple[float, float] | None]]) -> None:
    """Runs that ended, by rate and seed, with what decides and what is shown; None diverged."""
    for spec in bench.specs():
        outcome = outcomes.get(spec.point[KEY], {}).get(spec.seed, ())
        if spec.row != row or outcome == ():
            continue
        directory = RunDirectory.of(bench.runs, spec)
        directory.create(spec)
        content: dict[str, Any] = {**bench.result, "state": "diverged", "diverged_at": 120, "bits_per_byte": None}
        if outcome:
            decides, shown = outcome
            content = {**bench.result, "bits_per_byte": decides, "perplexity": shown}
        directory.result_file.write_text(json.dumps(content), encoding="utf-8")


def every_seed(decides: float, shown: float) -> dict[int, tuple[float, float] | None]:
    return {seed: (decides, shown + seed) for seed in (1, 2, 3)}


CLEAR = {3e-4: every_seed(2.5, 90), 1e-3: every_seed(2.0, 100), 3e-3: every_seed(2.25, 80)}
"""The second is the best by what decides (lower is better), and the worst by what is shown."""


def cell_of(bench: Bench, row: str = "pre-ln") -> Cell:
    return collect(bench.specs(), bench.runs, choose_by="bits_per_byte").cells[row, "tiny"]


def test_before_all_have_ended_nothing_is_chosen(gridded: Bench) -> None:
    part = CLEAR | {3e-4: {1: (2.5, 90.0), 2: None}}
    finish(gridded, "pre-ln", part)
    cell = cell_of(gridded)
    assert cell.is_open
    assert cell.values("perplexity") == {}
    assert (cell.state, state(cell, "perplexity")) == ("7 done, 1 diverged, 1 missing",) * 2
    assert cell_text(cell, "perplexity") == "7 of 9 done, 1 diverged, 1 missing"
    shown = gridded.table().at("pre-ln")
    assert (shown["mean"], shown["bits_per_byte"], shown["_best"]) == (None, None, False)
    assert shown["_remarks"] == ("8 of the 9 runs of its grid have ended: nothing is chosen from a part of them.",)
    finish(gridded, "pre-ln+comt", CLEAR)
    other = gridded.table().at("pre-ln+comt")
    assert other["mean"] is not None
    # not `baseline diverged`: that may change
    assert (other["difference_percent"], other["_verdict"]) == (None, Verdict.no_baseline)
    untouched = cell_of(gridded, "post-ln")
    assert cell_text(untouched, "perplexity") == "missing"


@pytest.mark.parametrize(
    ("diverged", "rate", "without"),
    [((1e-3,), 3e-3, 1), ((1e-3, 3e-3), 3e-4, 2), (RATES, 3e-4, 3), ((3e-4,), 1e-3, 1)],
)
def test_a_point_with_a_diverged_run_is_worse_than_any_without(
    gridded: Bench, diverged: tuple[float, ...], rate: float, without: int
) -> None:
    finish(gridded, "pre-ln", {each: CLEAR[each] | ({2: None} if each in diverged else {}) for each in RATES})
    cell = cell_of(gridded)
    assert cell.points == 3
    assert (cell.point, cell.without) == ({KEY: rate}, without)
    said = list(gridded.table().at("pre-ln")["_remarks"])
    if without == 3:
        assert (
            said[0]
            == "Chosen of its grid: learning_rate 0.0003; every point had a run that diverged, or that has no value."
        )
        assert said[1].startswith("1 of 3 seeds diverged (seed 2 at step 120)")
    else:
        lost = f"; {without} of 3 points had a run that diverged, or that has no value"
        assert said == [f"Chosen of its grid: learning_rate {rate}{lost}."]


Outcomes = list[list[tuple[float, float] | None]]
NUMBER = st.floats(1, 9, allow_nan=False)


@given(
    st.integers(1, 4).flatmap(
        lambda seeds: st.lists(
            st.lists(st.one_of(st.none(), st.tuples(NUMBER, NUMBER)), min_size=seeds, max_size=seeds),
            min_size=2,
            max_size=5,
        )
    ),
    st.floats(-1e6, 1e6),
    st.sampled_from(["perplexity", "accuracy"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_choice_is_the_best_and_never_reads_what_is_shown(
    specs_of: Callable[[str], RunSpec], outcomes: Outcomes, shift: float, metric: str
) -> None:
    """Against a second way to say it: no eligible point has a better mean, and none that is as good stands before."""
    spec = specs_of(metric)

    def chosen(shift: float) -> tuple[object, list[Any]]:
        runs = [
            Run(
                spec.model_copy(update={"seed": seed, "point": {KEY: number}}),
                RunState.diverged if outcome is None else RunState.done,
                {} if outcome is None else {metric: outcome[0], "shown": outcome[1] + shift},
            )
            for number, point in enumerate(outcomes)
            for seed, outcome in enumerate(point)
        ]
        cell = cell_made_of("row", "column", runs, metric)
        assert cell.point is not None
        assert {id(run.result) for run in cell.every} == {id(run.result) for run in runs}
        return cell.point[KEY], [run.spec.seed for run in cell.runs]

    shown, seeds = chosen(0.0)
    assert chosen(shift) == (shown, seeds)
    assert seeds == list(range(len(outcomes[0])))
    means = {
        number: math.fsum(outcome[0] for outcome in point if outcome) / len(point)
        for number, point in enumerate(outcomes)
        if None not in point
    }
    if not means:
        assert shown == 0
        return
    best = (max if metric == "accuracy" else min)(means.values())
    assert shown == next(number for number, mean in means.items() if mean == best)


@pytest.fixture
def specs_of(bench: Bench, images: Bench) -> Callable[[str], RunSpec]:
    """A run whose task has the metric: of perplexities the lower is better, of accuracies the higher."""
    return {"perplexity": bench.specs()[0], "accuracy": images.specs()[0]}.__getitem__


@pytest.fixture
def whole(gridded: Bench) -> Bench:
    """Every run has ended. The rows choose different points."""
    finish(gridded, "pre-ln", CLEAR)
    finish(gridded, "post-ln", CLEAR | {1e-3: CLEAR[1e-3] | {3: None}})
    finish(gridded, "pre-ln+comt", {rate: every_seed(2.0 + rate, 95) for rate in RATES})
    finish(gridded, "pre-ln+own", CLEAR)
    return gridded


CHOSEN = {"post-ln": 3e-3, "pre-ln": 1e-3, "pre-ln+comt": 3e-4, "pre-ln+own": 1e-3}


def lines(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_every_file_names_what_was_chosen(whole: Bench) -> None:
    report = write_report(whole.loaded(), whole.specs(), whole.runs, whole.results)
    assert report.files is not None
    table = lines(report.files.csv)
    assert {line["row"]: float(line[f"grid.{KEY}"]) for line in table} == CHOSEN
    assert all(line["n"] == "3" and len(line["run_ids"].split()) == 3 for line in table)
    runs = lines(report.files.runs_csv)
    assert {line["id"] for line in runs} == {spec.id for spec in whole.specs()}
    assert len(runs) == 4 * 3 * 3
    for line in runs:
        assert line["chosen"] == str(float(line[f"grid.{KEY}"]) == CHOSEN[line["row"]])
    ids = {id for line in table for id in line["run_ids"].split()}
    assert ids == {line["id"] for line in runs if line["chosen"] == "True"}
    for path in (report.files.markdown, report.files.latex):
        text = path.read_text(encoding="utf-8").replace("\\", "")
        assert "Chosen of its grid: learning_rate 0.001." in text
        assert "Chosen of its grid: learning_rate 0.003; 1 of 3 points had a run that diverged, or that" in text
        assert "Grid: train.learning_rate 0.0003, 0.001 and 0.003." in text
        assert "The same validation data chose the points and give perplexity" in text
    assert not any("differs from the baseline" in note for note in report.cells.attrs["notes"])


def test_a_choice_that_is_written_is_not_lost_to_one_that_is_open_again(whole: Bench) -> None:
    """Though of all points together more runs have ended than the table has."""
    assert write_report(whole.loaded(), whole.specs(), whole.runs, whole.results).files is not None
    gone = next(spec for spec in whole.specs() if spec.row == "pre-ln")
    RunDirectory.of(whole.runs, gone).result_file.unlink()
    again = write_report(whole.loaded(), whole.specs(), whole.runs, whole.results)
    assert again.unwritten is not None
    assert "has 3 finished runs of pre-ln at tiny, and this table 0" in again.unwritten
