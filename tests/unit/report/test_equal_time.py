"""The column `at equal time`: read where the quicker had done all its steps, paired as tables are; only if logged."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.report.equal_time import read_at
from comt_cli.report.statistics import paired_difference
from comt_cli.tasks.base import PERCENT

if TYPE_CHECKING:
    from conftest import Bench

STEPS = (10, 20, 30, 40)
BASELINE, OURS = "pre-ln", "pre-ln+comt"


@pytest.fixture
def evaluated(bench: Bench) -> Bench:
    return replace(bench, text=bench.text.replace("steps: 200", "steps: 40, evaluate_every: 10"))


def trained(bench: Bench, row: str, factor: float, step_seconds: float, steps: tuple[int, ...] = STEPS) -> None:
    """Three runs of 40 steps whose perplexity falls by 10 an evaluation, to `factor` times 60 and the seed."""
    for seed in (1, 2, 3):
        values = {n: factor * (100 - n + seed**2) for n in STEPS}
        bench.done(row, {seed: values[40]})
        directory = bench.directory(row, seed)
        metrics = [{"step": n, "validation_perplexity": values[n]} for n in steps]
        timings = [{"step": n, "seconds": n * step_seconds} for n in STEPS]
        directory.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")
        directory.timings_file.write_text("".join(json.dumps(line) + "\n" for line in timings), encoding="utf-8")


def test_the_slower_is_read_when_the_quicker_had_done_all_its_steps(evaluated: Bench) -> None:
    trained(evaluated, BASELINE, 1.0, 1.0)
    trained(evaluated, OURS, 0.9, 1.6)  # at 40 seconds it is at step 25
    table = evaluated.table(rows=f"{BASELINE},{OURS}")
    # Between steps 20 and 30, at the geometric mean.
    ours = {seed: 0.9 * ((80 + seed**2) * (70 + seed**2)) ** 0.5 for seed in (1, 2, 3)}
    theirs = {seed: 60.0 + seed**2 for seed in (1, 2, 3)}
    expected = paired_difference(ours, theirs, PERCENT)
    found = table.at(OURS)["_equal_time"]
    assert expected is not None
    assert found is not None
    assert vars(found) == pytest.approx(vars(expected))
    at_end = table.at(OURS)["_apart"]
    assert at_end is not None
    assert at_end.mean == pytest.approx(-10)
    assert found.mean > 0
    page = table.markdown
    assert "at equal time, % \\[95 %\\]" in page
    assert "The slower one's learning rate has not fallen to the end by then" in page
    assert [line["equal_time_percent"] for line in table.records] == [None, pytest.approx(expected.mean)]


def test_a_quicker_row_is_compared_with_the_baseline_before_its_end(evaluated: Bench) -> None:
    trained(evaluated, BASELINE, 1.0, 1.0)
    trained(evaluated, OURS, 1.0, 0.5)  # at 20 seconds the baseline is at step 20
    found = evaluated.table(rows=f"{BASELINE},{OURS}").at(OURS)["_equal_time"]
    assert found is not None
    ends = {seed: 60.0 + seed**2 for seed in (1, 2, 3)}
    expected = paired_difference(ends, {seed: 80.0 + seed**2 for seed in ends}, PERCENT)
    assert expected is not None
    assert found.mean == pytest.approx(expected.mean)


@pytest.mark.parametrize("case", ["the end alone", "diverged", "not evaluated"])
def test_without_points_there_is_no_column(evaluated: Bench, bench: Bench, case: str) -> None:
    world = replace(bench) if case == "not evaluated" else evaluated
    trained(world, BASELINE, 1.0, 1.0)
    trained(world, OURS, 0.9, 1.6, (40,) if case == "the end alone" else STEPS)
    if case == "diverged":
        world.diverged(OURS, 2)
    table = world.table(rows=f"{BASELINE},{OURS}")
    assert table.at(OURS)["_equal_time"] is None
    assert "equal time" not in table.markdown
    assert not any(key.startswith("equal_time") for key in table.records[0])


def test_evaluations_between_logged_steps_are_read_too(evaluated: Bench) -> None:
    """Times are logged every so many steps, evaluations at others: their time is on the straight line."""
    trained(evaluated, BASELINE, 1.0, 1.0)
    trained(evaluated, OURS, 0.9, 1.6)
    expected = evaluated.table(rows=f"{BASELINE},{OURS}").at(OURS)["_equal_time"]
    for row, step_seconds in ((BASELINE, 1.0), (OURS, 1.6)):
        for seed in (1, 2, 3):
            timings = [{"step": step, "seconds": step * step_seconds} for step in (1, 16, 32, 40)]
            path = evaluated.directory(row, seed).timings_file
            path.write_text("".join(json.dumps(line) + "\n" for line in timings), encoding="utf-8")
    found = evaluated.table(rows=f"{BASELINE},{OURS}").at(OURS)["_equal_time"]
    assert found is not None
    assert vars(found) == pytest.approx(vars(expected))


def test_tables_of_the_best_weights_have_no_such_column(evaluated: Bench) -> None:
    """Their logs have the weights of the moment."""
    text = evaluated.text.replace("evaluate_every: 10", "evaluate_every: 10, select: best")
    assert text != evaluated.text
    bench = replace(evaluated, text=text)
    trained(bench, BASELINE, 1.0, 1.0)
    trained(bench, OURS, 0.9, 1.6)
    entry = bench.table(rows=f"{BASELINE},{OURS}").at(OURS)
    assert entry["_apart"] is not None
    assert entry["_equal_time"] is None


@given(st.lists(st.floats(1, 9), min_size=2, max_size=6), st.floats(0, 1), st.booleans())
def test_a_value_between_two_points_lies_between_theirs(values: list[float], share: float, logarithms: bool) -> None:
    points = [(float(time), value) for time, value in enumerate(values, 1)]
    used = 1 + share * (len(values) - 1)
    found = read_at(points, used, logarithms=logarithms)
    left = min(int(used), len(values) - 1)
    assert min(values[left - 1 : left + 1]) - 1e-9 <= found <= max(values[left - 1 : left + 1]) + 1e-9
    assert read_at(points, len(values), logarithms=logarithms) == pytest.approx(values[-1])


def test_halfway_between_two_perplexities_is_their_geometric_mean() -> None:
    assert read_at([(1.0, 100.0), (3.0, 25.0)], 2.0, logarithms=True) == pytest.approx(50)
    assert read_at([(1.0, 100.0), (3.0, 25.0)], 2.0, logarithms=False) == pytest.approx(62.5)
