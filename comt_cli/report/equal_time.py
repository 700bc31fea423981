"""Two cells at equal measured time: the metric of each on validation data when the quicker had done all its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from comt_cli.recipe.grid import OF_TEST
from comt_cli.report.collect import Cell
from comt_cli.report.logs import curve
from comt_cli.report.statistics import Paired, paired_difference
from comt_cli.runs.directory import RunState
from comt_cli.tasks.base import DifferenceUnit


def at_equal_time(cell: Cell, baseline: Cell, metric: str, unit: DifferenceUnit) -> Paired | None:
    """The difference to the baseline over common seeds, when all of them have trained as long as the quickest took.

    Time is that of training as it was measured, without evaluations. Between two evaluations the metric is taken from
    the straight line, in logarithms where differences are ratios. Of a test metric the same one on validation data is
    read.

    None where a seed diverged or has not ended, where a log has no evaluation before and after that time, and where the
    table shows the best or averaged weights: logs have those of the step.
    """
    every = [run for each in (cell, baseline) for run in each.runs]
    if cell.is_open or baseline.is_open or any(run.state is not RunState.done for run in every):
        return None
    trains = [run.spec.settings.train for run in every]
    # Without evaluations between, logs have the end alone.
    if any(each.evaluate_every is None or each.select == "best" or each.averaged_steps for each in trains):
        return None
    prefix = next((each for each in OF_TEST if metric.startswith(each)), "")
    key = f"validation_{metric.removeprefix(prefix)}"
    ours, theirs = (
        {run.spec.seed: curve(run.directory, run.result or {}, "time", key) for run in each.runs}
        for each in (cell, baseline)
    )
    seeds = ours.keys() & theirs.keys()
    curves = [each[seed] for each in (ours, theirs) for seed in seeds]
    if not curves or not all(curves):
        return None
    used = min(points[-1][0] for points in curves)
    if any(used < points[0][0] for points in curves):
        return None
    read = [{seed: read_at(each[seed], used, logarithms=unit.is_relative) for seed in seeds} for each in (ours, theirs)]
    return paired_difference(read[0], read[1], unit)


def read_at(points: Sequence[tuple[float, float]], used: float, *, logarithms: bool) -> float:
    """The value of a curve at a time not before its first point, by the straight line between its neighbours, of the
    values or of their logarithms; after its last point the last value."""
    import numpy as np

    times, values = zip(*points, strict=True)
    if logarithms:
        return math.exp(np.interp(used, times, np.log(values)))
    return float(np.interp(used, times, values))
