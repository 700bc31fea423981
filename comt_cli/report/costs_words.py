"""Differences against what training steps cost: the numbers of the figure, and its caption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.report import format
from comt_cli.report.caption import Caption
from comt_cli.report.costs import Costs, RowCosts
from comt_cli.report.statistics import Paired
from comt_cli.report.trained import of_table
from comt_cli.report.words import costs_rule

if TYPE_CHECKING:
    import pandas as pd

    from comt_cli.report.table import Table

LEAST = 3
"""Rows beside the baseline below which a figure says no more than the table."""


def costs_frame(table: Table) -> pd.DataFrame | None:
    """One line for each row with a difference to the baseline and a measured step, and for the baseline, at a step of 1
    and a difference of 0; `on_front` says that no other row of its column is better and no slower. None where fewer
    than `LEAST` rows have both. Times are of compiled steps where all rows have one.
    """
    costs = table.costs
    if costs is None:
        return None
    lines: list[dict[str, Any]] = []
    for (row, column), entry in table.entries.items():
        found = costs.of.get((row, column))
        step, error = (None, None) if found is None else _time(costs, found)
        apart = Paired(0.0, None, None, 0) if row == table.baseline else entry.difference
        if step is None or error is None or apart is None:  # without an interval a time says nothing
            continue
        where = {"row": row, "column": column, "step": step, "error": error}
        lines.append({**where, "difference": apart.mean, "low": apart.low, "high": apart.high})
    if sum(line["row"] != table.baseline for line in lines) < LEAST:
        return None
    sign = {column: 1 if table.metric(column).better == "lower" else -1 for column in table.columns}
    for column in table.columns:
        here = [line for line in lines if line["column"] == column]
        places = [(line["step"], sign[column] * line["difference"]) for line in here]
        for line, is_on in zip(here, front(places), strict=True):
            line["on_front"] = is_on
    import pandas as pd

    return pd.DataFrame(lines).astype({"error": float, "low": float, "high": float})


def _time(costs: Costs, of: RowCosts) -> tuple[float | None, float | None]:
    return (of.compiled, of.compiled_error) if costs.are_compiled else (of.step, of.step_error)


def front(places: Sequence[tuple[float, float]]) -> list[bool]:
    """For each (time, loss) whether none of the others has less loss in no more time."""
    return [not any(other[0] <= time and other[1] < loss for other in places) for time, loss in places]


def how(table: Table) -> str:
    """What the times of the figure are of."""
    compiled = table.costs is not None and table.costs.are_compiled
    return "of a compiled training step" if compiled else "of a training step"


def costs_caption(table: Table, frame: pd.DataFrame) -> Caption:
    """What the figure shows, how to read it, and which rows nothing beats."""
    assert table.costs is not None
    several = len(table.columns) > 1
    best = frame.loc[frame["on_front"], ["row", "column"]].itertuples(index=False)
    names = [f"{row} at {column}" if several else str(row) for row, column in best]
    lower = all(table.metric(column).better == "lower" for column in table.columns)
    return Caption(
        title=f"{table.title}: differences against the time {how(table)}",
        trained=of_table(table),
        reading=(
            costs_rule(table.costs, table.baseline),
            "All rows have as many steps: this is no comparison at equal time, which would give the slower ones fewer",
            "Bars are 95 % intervals of differences and 90 % intervals of times"
            + ("; below and to the left is better" if lower else ""),
        ),
        findings=(
            f"No other row is both better and as quick, by means and whatever their intervals: {format.listing(names)}",
        ),
    )
