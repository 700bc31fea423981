"""The logs of runs: their quantities against steps or time, and their thinning to the points of a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.sums import added

if TYPE_CHECKING:
    from comt_cli.report.collect import Run

POINTS = 50
"""At most so many points has a curve: each is the mean of as many logged values in a row."""

Log = Sequence[Mapping[str, Any]]


def quantities(log: Log) -> list[str]:
    """The quantities of a log that have curves: the training loss, and what is measured on validation data."""
    return list(dict.fromkeys(key for line in log for key in line if key == "loss" or key.startswith("validation_")))


def logged(log: Log, key: str) -> list[tuple[int, float]]:
    """Step and value of every line that has one; not of chosen or averaged weights, which are no step of training."""
    lines = (line for line in log if not line.get("chosen"))
    return [(line["step"], line[key]) for line in lines if isinstance(line.get(key), int | float)]


def width_for(values: int) -> int:
    """The number of values that a point is the mean of, so that there are at most `POINTS`."""
    return max(1, -(-values // POINTS))


def window_means(values: Sequence[tuple[int, float]], width: int) -> list[tuple[int, float]]:
    """The mean of every `width` values in a row, at the step of the last one; the last window may be shorter."""
    groups = [values[begin : begin + width] for begin in range(0, len(values), width)]
    return [(group[-1][0], added(value for _, value in group) / len(group)) for group in groups]


def curve(run: Run, quantity: str) -> list[tuple[float, float]]:
    """The logged values of a quantity, each behind the time that was used by then: that of training alone, without
    evaluations, and between two steps whose time is logged on the straight line between them."""
    import numpy as np

    values = logged(run.directory.metrics(), quantity)
    timings = [(0, 0.0), *((line["step"], line["seconds"]) for line in run.directory.timings() if "seconds" in line)]
    steps, seconds = zip(*timings, strict=True)
    return [(float(np.interp(step, steps, seconds)), value) for step, value in values if step <= steps[-1]]
