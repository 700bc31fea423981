"""Learning curves of a recipe's rows: means over seeds, and the paired differences to the baseline, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.report import format
from comt_cli.report.caption import Caption
from comt_cli.report.collect import Run
from comt_cli.report.logs import logged, quantities, width_for, window_means
from comt_cli.report.statistics import paired_difference, summarise
from comt_cli.report.trained import of_runs
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.tasks.base import POINTS

if TYPE_CHECKING:
    import pandas as pd

Cells = Mapping[tuple[str, str], Sequence[Run]]
"""The runs of every row and column, one a seed."""
BEGINNING = 0.1
"""The share of training that the axes need not show whole: the losses of its first steps are far above all others."""


@dataclass(frozen=True)
class Curves:
    """The curves of one quantity.

    Attributes:
        quantity: its key in the logs: `loss` is that of training batches.
        unit: what is counted on the x-axis: the task's unit, as `tokens`.
        points: a line for every row, column and step: `column`, `row`, `step`, the count, `mean`, `least` and
            `greatest` over `n` seeds; then of rows beside the baseline `difference`, the mean over the `pairs` of equal
            seeds, and `low` and `high`, its 95 % interval (`statistics.paired_difference`, the tables' own).
        drawn: the runs that have points; `missing`: those that have none.
    """

    quantity: str
    unit: str
    baseline: str
    points: list[dict[str, Any]]
    drawn: list[Run]
    missing: list[Run]

    def frame(self) -> pd.DataFrame:
        """`points` as a data frame."""
        import pandas as pd

        numbers = dict.fromkeys(("difference", "low", "high"), float)
        return pd.DataFrame(self.points).astype(numbers)


def read_curves(cells: Cells, runs: Path, baseline: str, quantity: str) -> tuple[Curves, list[str]]:
    """The curves of `quantity` from the logs below the folder `runs`, and which quantities there are.

    A point is the mean of as many logged values in a row as leave the longest log of a column at most 50 points, so all
    runs of a column have their points at the same steps. Rows are paired at every step by seed.

    Raises:
        UserError: a log is damaged; says which, and where.
    """
    every = [run for each in cells.values() for run in each]
    logs = {run.spec.id: RunDirectory.of(runs, run.spec).metrics() for run in every}
    drawn = [run for run in every if logged(logs[run.spec.id], quantity)]
    known = list(dict.fromkeys(key for log in logs.values() for key in quantities(log)))
    unit = every[0].spec.task.unit.name
    points: list[dict[str, Any]] = []
    for column in dict.fromkeys(column for _, column in cells):
        rows = {row: each for (row, at), each in cells.items() if at == column}
        width = width_for(max(len(logged(logs[run.spec.id], quantity)) for each in rows.values() for run in each))
        seeds = {
            row: {run.spec.seed: dict(_means(run, logged(logs[run.spec.id], quantity), width)) for run in each}
            for row, each in rows.items()
        }
        counts = {line["step"]: line[unit] for each in rows.values() for run in each
                  for line in logs[run.spec.id] if unit in line}  # fmt: skip
        for row, curves in seeds.items():
            others = {} if row == baseline else seeds.get(baseline, {})
            points += [
                {"column": column, "row": row, "step": step, unit: counts.get(step), **line}
                for step, line in _points(curves, others)
            ]
    return Curves(quantity, unit, baseline, points, drawn, [run for run in every if run not in drawn]), known


def _means(run: Run, values: Sequence[tuple[int, float]], width: int) -> list[tuple[int, float]]:
    """`window_means`, without the last window where it is not whole: only runs that are done have the same one."""
    whole = len(values) if run.state is RunState.done else len(values) - len(values) % width
    return window_means(values[:whole], width)


def _points(
    curves: Mapping[int, Mapping[int, float]], others: Mapping[int, Mapping[int, float]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    for step in sorted({step for curve in curves.values() for step in curve}):
        ours = {seed: curve[step] for seed, curve in curves.items() if step in curve}
        summary = summarise(list(ours.values()))
        assert summary is not None
        line: dict[str, Any] = {"mean": summary.mean, "least": min(ours.values()), "greatest": max(ours.values())}
        theirs = {seed: curve[step] for seed, curve in others.items() if step in curve}
        paired = paired_difference(ours, theirs, POINTS)  # of losses in nats, not of ratios
        line |= {"n": summary.n, "difference": paired and paired.mean, "low": paired and paired.low}
        yield step, line | {"high": paired and paired.high, "pairs": paired.n if paired else 0}


def resolved_since(points: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], bool] | None:
    """Of a row's points the first from which on every interval lies on one side of zero, the same one, and whether that
    is below zero; None where the last point has none such."""
    found = None
    for point in reversed(points):
        low, high = point["low"], point["high"]
        if low is None or not (low > 0 or high < 0) or (found is not None and found[1] != (high < 0)):
            break
        found = point, bool(high < 0)
    return found


def curves_caption(curves: Curves, title: str, overrides: Sequence[str]) -> Caption:
    """What the figure shows, how to read it, and from when on differences are resolved."""
    said = curves.quantity.replace("_", " ")
    said = "training loss" if said == "loss" else said
    return Caption(
        title=f"{title}: {said} while training",
        trained=of_runs([run.spec for run in curves.drawn], overrides),
        reading=(
            "Left: means over seeds, each point of a fiftieth of the training or less; bands span the seeds",
            f"Right: differences to {curves.baseline} at equal steps, paired by seed; bands are 95 % intervals of "
            "Student's t, which single seeds have not",
            f"Values of the first {BEGINNING:.0%} of training may lie beyond the axes",
        ),
        findings=tuple(findings(curves)),
    )


def findings(curves: Curves) -> Iterator[str]:
    """For every row beside the baseline, from when on its difference is resolved. Then what is not drawn."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for point in curves.points:
        if point["row"] != curves.baseline:
            rows.setdefault((point["column"], point["row"]), []).append(point)
    several = len({column for column, _ in rows}) > 1
    for (column, row), points in rows.items():
        where = f"{row} at {column}" if several else row
        yield f"{where}: {_finding(curves, row, column, points)}"
    seeds: dict[str, list[int]] = {}
    for run in curves.missing:
        where = f"{run.spec.row} at {run.spec.column}" if several else run.spec.row
        seeds.setdefault(where, []).append(run.spec.seed)
    if seeds:
        listed = "; ".join(f"{at}, seeds {format.seeds(each)}" for at, each in seeds.items())
        yield f"Not drawn, without a log: {listed}"


def _finding(curves: Curves, row: str, column: str, points: Sequence[Mapping[str, Any]]) -> str:
    """Of one row. Where a seed diverged nothing is resolved, as in tables: those that did not are the lucky ones."""
    runs = [run for run in curves.drawn if run.spec.column == column and run.spec.row in (row, curves.baseline)]
    if lost := [f"{run.spec.row} with seed {run.spec.seed}" for run in runs if run.state is RunState.diverged]:
        return f"not compared, since {format.listing(lost)} diverged"
    most = max(point["pairs"] for point in points)
    if most < 2:
        return "one seed, so no interval" if most else f"no run of {curves.baseline} with the same seed"
    paired = [point for point in points if point["pairs"] == most]
    last = paired[-1]
    until = "to the end" if all(run.state is RunState.done for run in runs) else f"to step {last['step']:,}, so far"
    since = resolved_since(paired)
    if since is None:
        return "not resolved at the end" if until == "to the end" else f"not resolved at step {last['step']:,}, so far"
    start, is_below = since
    count = start[curves.unit]
    when = f"step {start['step']:,}" + ("" if count is None else f", {format.short_count(count)} {curves.unit}")
    return f"resolved as {'lower' if is_below else 'higher'} from {when} {until}"
