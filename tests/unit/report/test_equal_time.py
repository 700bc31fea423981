"""The column `at equal time`: read where the quicker had done all its steps, paired as tables are; only if logged."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.report.cells import read_at
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
    assert "at equal time, % \\[95 %\\]" in table.markdown
    assert [line["equal_time_percent"] for line in table.records] == [None, pytest.approx(expected.mean)]


@pytest.mark.parametrize("case", ["the end alone", "diverged", "not evaluated", "best weights"])
def test_without_points_there_is_no_column(evaluated: Bench, bench: Bench, case: str) -> None:
    world = replace(bench) if case == "not evaluated" else evaluated
    if case == "best weights":  # logs have those of the step
        world = replace(evaluated, text=evaluated.text.replace("every: 10", "every: 10, select: best"))
    trained(world, BASELINE, 1.0, 1.0)
    trained(world, OURS, 0.9, 1.6, (40,) if case == "the end alone" else STEPS)
    if case == "diverged":
        world.diverged(OURS, 2)
    table = world.table(rows=f"{BASELINE},{OURS}")
    assert table.at(OURS)["_equal_time"] is None
    assert "equal time" not in table.markdown
    assert not any(key.startswith("equal_time") for key in table.records[0])


@given(st.lists(st.floats(1, 9), min_size=2, max_size=6), st.floats(0, 1), st.booleans())
def test_a_value_between_two_points_lies_between_theirs(values: list[float], share: float, logarithms: bool) -> None:
    points = [(float(time), value) for time, value in enumerate(values, 1)]
    used = 1 + share * (len(values) - 1)
    found = read_at(points, used, logarithms=logarithms)
    left = min(int(used), len(values) - 1)
    assert min(values[left - 1 : left + 1]) - 1e-9 <= found <= max(values[left - 1 : left + 1]) + 1e-9
    assert read_at(points, len(values), logarithms=logarithms) == pytest.approx(values[-1])
