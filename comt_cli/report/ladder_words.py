"""What a ladder says: its small table, its sentences, the numbers of its figure and the caption."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from comt_cli.recipe.names import LADDER_SIZES
from comt_cli.report import format
from comt_cli.report.caption import Caption
from comt_cli.report.ladder import NOT_RESOLVED, Line
from comt_cli.report.layout import NOTHING, STANDS
from comt_cli.report.trained import of_table
from comt_cli.report.verdict import stands

if TYPE_CHECKING:
    import pandas as pd

    from comt_cli.report.table import Table

HEADING = "Gain against compute"
FAR = 2
"""Powers of ten beyond the largest size from which on nothing is said of a line."""


def unit(table: Table) -> str:
    """What gains are counted in."""
    return "100 x log ratio" if table.unit(table.columns[0]).is_relative else table.unit(table.columns[0]).spoken


def ladder_texts(table: Table) -> list[list[str]]:
    """The table of the lines as texts, the headings first: the gain at every size, the slope, the verdict."""
    head = ["method", *table.columns, "gain for 10 x compute [95 %]", "verdict"]
    lines = [head]
    for trend in table.trends:
        gains = {rung.column: format.signed(rung.gain) for rung in trend.rungs}
        mark = STANDS if trend.verdict != NOT_RESOLVED and stands(trend.adjusted) else ""
        slope = NOTHING if trend.line is None else _slope(trend.line)
        lines.append(
            [trend.row, *(gains.get(column, NOTHING) for column in table.columns), slope, trend.verdict + mark]
        )
    return lines


def rule(table: Table) -> str:
    """How the lines are made, in a paragraph."""
    marked = any(text.endswith(STANDS) for *_, text in ladder_texts(table)[1:])
    holm = f" {STANDS}: resolved after Holm's correction over the rows, too." if marked else ""
    gains = f"Gains over {table.baseline} in {unit(table)}, paired by seed; above zero is better."
    if len(table.columns) < LADDER_SIZES:
        return f"{gains} A line takes {LADDER_SIZES} sizes."
    return (
        f"{gains} Lines are ordinary least squares of a size's mean gain against log10 of the training FLOPs of the "
        f"baseline there; intervals are of Student's t with {len(table.columns) - 2} degrees of freedom, two fewer "
        f"than there are sizes.{holm}"
    )


def sentences(table: Table) -> Iterator[str]:
    """One for each row: which way its gain goes, by how much, and where a line that falls to zero reaches it."""
    for trend in table.trends:
        if trend.line is None:
            yield f"{trend.row}: {trend.verdict}"
            continue
        said = f"{trend.row}: {trend.verdict}, {_slope(trend.line)} for ten times the compute"
        if trend.verdict.endswith("shrinks"):
            said += f"; {_zero(trend.line, max(rung.flops for rung in trend.rungs))}"
        yield said


def _zero(line: Line, largest: float) -> str:
    """Where a line that falls to zero reaches it, unless that is far from what was trained."""
    zero = -line.intercept / line.slope
    if zero > math.log10(largest) + FAR:
        return f"the line is not zero before {10**FAR} times the largest compute"
    return f"the line is zero at {10**zero:.1e} FLOPs"


def _slope(line: Line) -> str:
    return f"{format.signed(line.slope)} [{format.signed(line.low)}, {format.signed(line.high)}]"


def ladder_frame(table: Table) -> pd.DataFrame:
    """One line for each row and size, with the row's line beside it; a row without any size has one line."""
    import pandas as pd

    lines = []
    for trend in table.trends:
        line, adjusted = trend.line, trend.adjusted
        own = {
            "intercept": line and line.intercept,
            "slope": line and line.slope,
            "slope_low": line and line.low,
            "slope_high": line and line.high,
            "p_value": line and line.p_value,
            "p_value_holm": adjusted,
            "verdict": trend.verdict,
        }
        for rung in trend.rungs or (None,):
            at = {
                "column": rung and rung.column,
                "flops": rung and rung.flops,
                "gain": rung and rung.gain,
                "low": rung and rung.low,
                "high": rung and rung.high,
                "pairs": rung and rung.pairs,
            }
            lines.append({"row": trend.row, **at, **own})
    numbers = [key for key in lines[0] if key not in ("row", "column", "pairs", "verdict")]
    return pd.DataFrame(lines).astype(dict.fromkeys(numbers, float)).astype({"pairs": "Int64"})


def ladder_caption(table: Table) -> Caption:
    """What the figure shows, how to read it, and which way every row goes."""
    return Caption(
        title=f"{table.title}: {HEADING.lower()}",
        trained=of_table(table),
        reading=(
            rule(table),
            "Bars are the 95 % intervals of each size; a dashed line has a slope that is not resolved",
        ),
        findings=tuple(sentences(table)),
    )
