"""What the trials of a cell choose: the best mean within the grid, and never one at its edge."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.recipe.grid import LoadedGrid
from comt_cli.recipe.merge import Origin
from comt_cli.report.collect import Cell, Run
from comt_cli.report.exhibits.sweep import tuned_cell
from comt_cli.runs.directory import RunState

KEY = "train.learning_rate"


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
    grid = LoadedGrid(("sweep",), "loss", {KEY: [(value, Origin()) for value in values]}, (0,))
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
