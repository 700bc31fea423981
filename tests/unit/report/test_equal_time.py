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
    from conftest import Bench, Shown

STEPS = (10, 20, 30, 40)
BASELINE, OURS = "pre-ln", "pre-ln+comt"


def trained(bench: Bench, steps: tuple[int, ...] = STEPS, train: str = "steps: 40, evaluate_every: 10") -> Bench:
    """Three runs a row of 40 steps whose perplexity falls by 10 an evaluation. Ours is better and takes longer."""
    world = replace(bench, text=bench.text.replace("steps: 200", train))
    for row, factor, step_seconds in ((BASELINE, 1.0, 1.0), (OURS, 0.9, 1.6)):
        for seed in (1, 2, 3):
            values = {n: factor * (100 - n + seed**2) for n in STEPS}
            world.done(row, {seed: values[40]})
            evaluated = [{"step": n, "validation_perplexity": values[n]} for n in steps]
            timings = [{"step": n, "seconds": n * step_seconds} for n in STEPS]
            directory = world.directory(row, seed)
            for file, lines in ((directory.metrics_file, evaluated), (directory.timings_file, timings)):
                file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return world


def shown(bench: Bench) -> Shown:
    return bench.table(rows=f"{BASELINE},{OURS}")


def test_the_slower_is_read_when_the_quicker_had_done_all_its_steps(bench: Bench) -> None:
    table = shown(trained(bench))
    # At 40 seconds it is at step 25: between steps 20 and 30, at the geometric mean.
    ours = {seed: 0.9 * ((80 + seed**2) * (70 + seed**2)) ** 0.5 for seed in (1, 2, 3)}
    expected = paired_difference(ours, {seed: 60.0 + seed**2 for seed in (1, 2, 3)}, PERCENT)
    found = table.at(OURS)
    assert expected is not None
    assert vars(found["_equal_time"]) == pytest.approx(vars(expected))
    assert found["_apart"].mean == pytest.approx(-10)
    assert expected.mean > 0
    assert "at equal time, % \\[95 %\\]" in table.markdown
    assert [line["equal_time_percent"] for line in table.records] == [None, pytest.approx(expected.mean)]


@pytest.mark.parametrize("case", ["the end alone", "diverged", "not evaluated", "best weights"])
def test_without_points_there_is_no_column(bench: Bench, case: str) -> None:
    every = "" if case == "not evaluated" else ", evaluate_every: 10"
    best = ", select: best" if case == "best weights" else ""  # logs have those of the step
    world = trained(bench, (40,) if case == "the end alone" else STEPS, f"steps: 40{every}{best}")
    if case == "diverged":
        world.diverged(OURS, 2)
    table = shown(world)
    assert table.at(OURS)["_equal_time"] is None
    assert not any(key.startswith("equal_time") for key in table.records[0])


@given(st.lists(st.floats(1, 9), min_size=2, max_size=6), st.floats(0, 1), st.booleans())
def test_a_value_between_two_points_lies_between_theirs(values: list[float], share: float, logarithms: bool) -> None:
    points = [(float(time), value) for time, value in enumerate(values, 1)]
    used = 1 + share * (len(values) - 1)
    left = min(int(used), len(values) - 1)
    least, greatest = sorted(values[left - 1 : left + 1])
    assert least - 1e-9 <= read_at(points, used, logarithms=logarithms) <= greatest + 1e-9
    assert read_at(points, len(values), logarithms=logarithms) == pytest.approx(values[-1])
