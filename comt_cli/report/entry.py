"""One cell of a table: ours, the paper's, the difference and the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from comt_cli.report.collect import Cell
from comt_cli.report.statistics import Paired, Summary
from comt_cli.report.verdict import Verdict, stands


@dataclass(frozen=True)
class Entry:
    """One cell. `difference` and `paper_difference` are in the unit of the column's metric (`Table.unit`); `speed`, in
    the task's units per second, and `extra_parameters_percent`, against the plain network of the same size, are means
    over seeds. `paper_increase` is the paper's parameter increase as it is printed: `1%`, `<1%`; `beside` the mean of
    the metric that is shown beside the column's (`Metric.beside`), over the seeds that are done.

    `published` is the difference in perplexity, in per cent, that another paper prints beside its own baseline; `note`
    what the recipe says of a number of ours.

    `direction` is the sign of the paper's difference, 0 where it shows none; `marks` number the table's footnotes.

    `equal_time` is the difference at equal measured time (`equal_time.at_equal_time`), None without points to read.
    `p_value` and `detectable` are those of the difference (`statistics.p_value`, `statistics.detectable`), `adjusted`
    the p-value after Holm's correction over the table (`verdict.corrected`), None where no verdict rests on it.
    """

    cell: Cell
    ours: Summary | None
    difference: Paired | None
    paper_column: str | None
    paper: float | None
    paper_difference: float | None
    paper_collapsed: bool
    direction: int
    verdict: Verdict
    p_value: float | None
    detectable: tuple[float, float] | None
    equal_time: Paired | None
    extra_parameters_percent: float | None
    paper_increase: str | None
    speed: float | None
    beside: float | None = None
    published: float | None = None
    note: str | None = None
    marks: tuple[int, ...] = ()
    best: bool = False
    adjusted: float | None = None

    @property
    def stands(self) -> bool:
        """Whether its difference is resolved after Holm's correction over the table, too."""
        return stands(self.adjusted)
