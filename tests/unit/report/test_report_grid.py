"""Which point of a grid a table shows, when, and how that is said; and what the trials of a sweep choose."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comt_cli.files import read_csv
from comt_cli.recipe.merge import LoadedGrid, Origin
from comt_cli.recipe.problems import Document
from comt_cli.report.collect import Cell, Run, cell_of, collect
from comt_cli.report.exhibits.sweep import tuned_cell
from comt_cli.report.statistics import Verdict
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
            content = {**bench.result, "bits_per_byte": outcome[0], "perplexity": outcome[1]}
        directory.result_file.write_text(json.dumps(content), encoding="utf-8")


def every_seed(decides: float, shown: float) -> dict[int, tuple[float, float] | None]:
    return {seed: (decides, shown + seed) for seed in (1, 2, 3)}


CLEAR = {3e-4: every_seed(2.5, 90), 1e-3: every_seed(2.0, 100), 3e-3: every_seed(2.25, 80)}
"""The second is the best by what decides (lower is better), and the worst by what is shown."""


def test_before_all_have_ended_nothing_is_chosen(gridded: Bench) -> None:
    finish(gridded, "pre-ln", CLEAR | {3e-4: {1: (2.5, 90.0), 2: None}})
    cell = collect(gridded.specs(), gridded.runs, choose_by="bits_per_byte").cells["pre-ln", "tiny"]
    assert (cell.is_open, cell.values("perplexity"), cell.state) == (True, {}, "7 done, 1 diverged, 1 missing")
    shown = gridded.table().at("pre-ln")
    assert (shown["mean"], shown["bits_per_byte"], shown["_best"]) == (None, None, False)
    assert "8 of 9 runs of the grid have ended" in shown["_remarks"][0]
    finish(gridded, "pre-ln+comt", CLEAR)
    other = gridded.table().at("pre-ln+comt")
    assert other["mean"] is not None
    # not `baseline diverged`: that may change
    assert (other["difference_percent"], other["_verdict"]) == (None, Verdict.no_baseline)


@pytest.mark.parametrize(("diverged", "rate"), [((1e-3,), 3e-3), ((1e-3, 3e-3), 3e-4), (RATES, 3e-4), ((3e-4,), 1e-3)])
def test_a_point_with_a_diverged_run_is_worse_than_any_without(
    gridded: Bench, diverged: tuple[float, ...], rate: float
) -> None:
    finish(gridded, "pre-ln", {each: CLEAR[each] | ({2: None} if each in diverged else {}) for each in RATES})
    shown = gridded.table().at("pre-ln")
    cell, every = shown["_cell"], f"{len(diverged)} of 3" if len(diverged) < 3 else "every"
    assert (cell.points, cell.point, cell.without) == (3, {KEY: rate}, len(diverged))
    assert f"grid: learning_rate {rate}; {every} configuration" in shown["_remarks"][0]


NUMBER = st.floats(1, 9, allow_nan=False)
OUTCOME = st.one_of(st.none(), st.tuples(NUMBER, NUMBER))


@given(
    st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(OUTCOME, min_size=n, max_size=n), min_size=2, max_size=5)),
    st.floats(-1e6, 1e6),
    st.sampled_from(["perplexity", "accuracy"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_choice_is_the_best_and_never_reads_what_is_shown(
    specs_of: Callable[[str], RunSpec], outcomes: list[list[tuple[float, float] | None]], shift: float, metric: str
) -> None:
    """Against a second way to say it: no eligible point has a better mean, and none that is as good stands before."""
    spec = specs_of(metric)

    def chosen(shift: float) -> tuple[object, list[Any]]:
        runs = [
            Run(
                spec.model_copy(update={"seed": seed, "point": {KEY: number}}),
                RunState.diverged if outcome is None else RunState.done,
                RunDirectory(Path("run")),
                {} if outcome is None else {metric: outcome[0], "shown": outcome[1] + shift},
            )
            for number, point in enumerate(outcomes)
            for seed, outcome in enumerate(point)
        ]
        cell = cell_of("row", "column", runs, metric)
        assert cell.point is not None
        assert {id(run.result) for run in cell.every} == {id(run.result) for run in runs}
        return cell.point[KEY], [run.spec.seed for run in cell.runs]

    shown, seeds = chosen(0.0)
    assert chosen(shift) == (shown, seeds)
    assert seeds == list(range(len(outcomes[0])))
    means = {number: math.fsum(outcome[0] for outcome in point if outcome) / len(point)
             for number, point in enumerate(outcomes) if None not in point}  # fmt: skip
    best = (max if metric == "accuracy" else min)(means.values(), default=None)
    assert shown == next((number for number, mean in means.items() if mean == best), 0)


@pytest.fixture
def specs_of(bench: Bench, images: Bench) -> Callable[[str], RunSpec]:
    """A run whose task has the metric: of perplexities the lower is better, of accuracies the higher."""
    return {"perplexity": bench.specs()[0], "accuracy": images.specs()[0]}.__getitem__


CHOSEN = {"post-ln": 3e-3, "pre-ln": 1e-3, "pre-ln+comt": 3e-4, "pre-ln+own": 1e-3}


def test_every_file_names_what_was_chosen_and_a_choice_that_is_written_is_not_lost(gridded: Bench) -> None:
    finish(gridded, "pre-ln", CLEAR)
    finish(gridded, "post-ln", CLEAR | {1e-3: CLEAR[1e-3] | {3: None}})
    finish(gridded, "pre-ln+comt", {rate: every_seed(2.0 + rate, 95) for rate in RATES})
    finish(gridded, "pre-ln+own", CLEAR)
    report = write_report(gridded.loaded(), gridded.specs(), gridded.runs, gridded.results)
    assert report.csv is not None
    table, runs = read_csv(report.csv), read_csv(report.csv.with_name(f"{report.csv.stem}-runs.csv"))
    assert {line["row"]: float(line[f"grid.{KEY}"]) for line in table} == CHOSEN
    assert all(line["n"] == "3" and len(line["run_ids"].split()) == 3 for line in table)
    assert {line["id"] for line in runs} == {spec.id for spec in gridded.specs()}
    for line in runs:
        assert line["chosen"] == str(float(line[f"grid.{KEY}"]) == CHOSEN[line["row"]])
    assert {id for line in table for id in line["run_ids"].split()} == {
        line["id"] for line in runs if line["chosen"] == "True"
    }
    page = report.csv.with_suffix(".md").read_text(encoding="utf-8").replace("\\", "")
    assert "grid: learning_rate 0.001." in page
    # of all points together more runs have ended than the table has
    gone = next(spec for spec in gridded.specs() if spec.row == "pre-ln")
    RunDirectory.of(gridded.runs, gone).result_file.unlink()
    again = write_report(gridded.loaded(), gridded.specs(), gridded.runs, gridded.results)
    assert "has 3 finished runs of pre-ln at tiny, and this table 0" in (again.unwritten or "")


def test_a_sweep_of_another_key_is_not_written_over(gridded: Bench) -> None:
    for row in CHOSEN:
        finish(gridded, row, CLEAR)
    loaded, specs = gridded.loaded(), gridded.specs()
    with_trials = replace(loaded.grids["smoke"], seeds=(101,))
    for values, said in ((with_trials.values, None), ({"train.weight_decay": []}, f"has a sweep of {KEY}")):
        swept = replace(loaded, grids={"smoke": replace(with_trials, values=values)})
        report = write_report(swept, specs, gridded.runs, gridded.results)
        assert (said or "") in (report.unwritten or "")
        assert (report.csv is None) == (said is not None)


def tuned(values: list[float], losses: list[list[float | None]], better: str = "lower") -> Any:
    """A cell with a trial a seed at every value; a loss of None diverged, one of NaN is not trained."""
    task = SimpleNamespace(metrics={"loss": SimpleNamespace(better=better)})
    runs: Any = []
    for seed in range(len(losses[0])):
        for value, each in zip(values, losses, strict=True):
            spec: Any = SimpleNamespace(point={KEY: value}, seed=seed, task=task, row="gated", column="tiny")
            loss = each[seed]
            if loss is None:
                runs.append(Run(spec, RunState.diverged, None, {"loss": None}))
            elif loss != loss:  # noqa: PLR0124 - NaN
                runs.append(Run(spec, RunState.missing, None))
            else:
                runs.append(Run(spec, RunState.done, None, {"loss": loss}))
    grid = LoadedGrid(("sweep",), "loss", {KEY: [(value, Origin((), Document())) for value in values]}, (0,))
    return tuned_cell(Cell("gated", "tiny", tuple(runs)), grid)


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=8, unique=True),
    st.data(),
    st.sampled_from(["lower", "higher"]),
)
def test_the_best_mean_is_chosen_if_and_only_if_it_lies_within(values, data, better):
    means = data.draw(st.lists(st.floats(1, 9), min_size=len(values), max_size=len(values), unique=True))
    found = tuned(values, [[mean, mean] for mean in means], better)
    best = values[means.index(min(means) if better == "lower" else max(means))]
    assert found.point == {KEY: best}
    if best in (min(values), max(values)):
        assert found.chosen is None
        assert "that was tried; " in found.problem
    else:
        assert found.problem is None
        assert found.tried[found.chosen - 1].point == {KEY: best}


def test_the_mean_decides_and_a_point_with_a_diverged_trial_never_does():
    found = tuned([1e-3, 2e-3, 4e-3, 8e-3], [[5, 5], [4, 4], [1, None], [6, 6]])
    assert found.point == {KEY: 2e-3}
    assert found.chosen == 2
    assert tuned([1, 2, 3, 4], [[5, 5], [1, 6], [3, 3], [5, 5]]).point == {KEY: 3}


@given(st.permutations([1.0, 2.0, 3.0, 4.0, 5.0]))
def test_between_equal_means_the_middle_of_the_grid_decides_whatever_its_order(values):
    found = tuned(values, [[7], [7], [7], [7], [7]])
    assert found.point == {KEY: 3.0}
    assert found.problem is None


def test_nothing_is_chosen_from_a_part_of_the_trials():
    found = tuned([1, 2, 3], [[5, 5], [4, float("nan")], [6, 6]])
    assert (found.best, found.chosen, found.problem) == (None, None, None)


@pytest.mark.parametrize(("losses", "said"), [([[1], [2], [3]], "below 0.001"), ([[3], [2], [1]], "above 0.004")])
def test_a_best_value_at_an_edge_asks_for_others(losses, said):
    assert tuned([1e-3, 2e-3, 4e-3], losses).problem.endswith(f"give {KEY} also values {said}")
