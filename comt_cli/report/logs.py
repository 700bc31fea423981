"""The logs of runs: their quantities against steps, FLOPs or time, and their thinning to the points of a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from comt_cli.runs.directory import RunDirectory
from comt_cli.sums import added

POINTS = 50
"""At most so many points has a curve: each is the mean of as many logged values in a row."""

Log = Sequence[Mapping[str, Any]]
Budget = Literal["steps", "FLOPs", "time"]


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


def curve(
    directory: RunDirectory, result: Mapping[str, Any], budget: Budget, quantity: str = "loss"
) -> list[tuple[float, float]]:
    """The logged values of a quantity, the training loss if none is named, each behind the budget that was used by
    then. FLOPs are those of the whole run in proportion to its steps; time is that of training alone, without
    evaluations, and between two steps whose time is logged on the straight line between them."""
    values = logged(directory.metrics(), quantity)
    if budget == "steps":
        return [(float(step), value) for step, value in values]
    if budget == "FLOPs":
        flops, steps = result.get("flops"), result.get("steps")
        return [(step * flops / steps, value) for step, value in values] if flops and steps else []
    import numpy as np

    timings = [(0, 0.0), *((line["step"], line["seconds"]) for line in directory.timings() if "seconds" in line)]
    steps, seconds = zip(*timings, strict=True)
    return [(float(np.interp(step, steps, seconds)), value) for step, value in values if step <= steps[-1]]
