"""Differences against what training steps cost: the numbers of the figure, and its caption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from comt_cli.report import format
from comt_cli.report.caption import Caption
from comt_cli.report.entry import Entry
from comt_cli.report.trained import of_table
from comt_cli.report.words import costs_rule

if TYPE_CHECKING:
    import pandas as pd

    from comt_cli.report.table import Table

LEAST = 3
"""Rows beside the baseline below which a figure says no more than the table."""


def costs_frame(table: Table) -> pd.DataFrame | None:
    """One line for each row with a difference to the baseline and a measured step; `on_front` says that no other row
    of its column, the baseline included, is both better and no slower. None of fewer than `LEAST` rows.
    """
    found = [
        (entry, costs, apart)
        for key, entry in table.entries.items()
        if (costs := None if table.costs is None else table.costs.of.get(key)) is not None
        and costs.step is not None
        and (apart := entry.difference) is not None
    ]
    if len(found) < LEAST:
        return None
    places = {
        (entry.cell.row, entry.cell.column): (costs.step or 0.0, _loss(table, entry, apart.mean))
        for entry, costs, apart in found
    }
    lines = [
        {
            "row": entry.cell.row,
            "column": entry.cell.column,
            "step": costs.step,
            "error": costs.error,
            "difference": apart.mean,
            "low": apart.low,
            "high": apart.high,
            "on_front": _on_front(entry.cell.row, entry.cell.column, places),
        }
        for entry, costs, apart in found
    ]
    import pandas as pd

    return pd.DataFrame(lines).astype({"error": float, "low": float, "high": float})


def _loss(table: Table, entry: Entry, difference: float) -> float:
    """The difference, less being better."""
    return difference if table.metric(entry.cell.column).better == "lower" else -difference


def _on_front(row: str, column: str, places: Mapping[tuple[str, str], tuple[float, float]]) -> bool:
    """Whether no other row of the column is better and no slower; the baseline is at (1, 0)."""
    step, loss = places[row, column]
    others = [place for key, place in places.items() if key[1] == column and key[0] != row]
    return not any(other[0] <= step and other[1] < loss for other in (*others, (1.0, 0.0)))


def costs_caption(table: Table, frame: pd.DataFrame) -> Caption:
    """What the figure shows, how to read it, and which rows nothing beats."""
    assert table.costs is not None
    front = [f"{row} at {column}" if len(table.columns) > 1 else str(row)
             for row, column in frame.loc[frame["on_front"], ["row", "column"]].itertuples(index=False)]  # fmt: skip
    return Caption(
        title=f"{table.title}: differences against the time of a step",
        trained=of_table(table),
        reading=(
            costs_rule(table.costs, table.baseline),
            "All rows have as many steps: this is no comparison at equal time, which would give the slower ones fewer",
            "Bars are 95 % intervals of differences and 90 % intervals of times; below and to the left is better"
            if all(table.metric(column).better == "lower" for column in table.columns)
            else "Bars are 95 % intervals of differences and 90 % intervals of times",
        ),
        findings=(
            f"No other row is both better and as quick: {format.listing(front)} (means, whatever their intervals)",
        ),
    )
