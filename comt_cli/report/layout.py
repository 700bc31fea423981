"""A table as people read it: lines of finished texts, the same for Markdown, LaTeX and the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from comt_cli.recipe.run_directory import RunState
from comt_cli.report import format
from comt_cli.report.collect import Cell, Progress
from comt_cli.report.table import Entry, Table

NOTHING = "-"


@dataclass(frozen=True)
class Line:
    """One row of one column; `marks` are the footnotes' numbers, `best` asks for bold.

    `paper_increase` is None throughout a table for which the paper prints no parameter increase: it has no such column.
    """

    method: str
    ours: str
    difference: str
    paper: str
    paper_difference: str
    direction: str
    extra_parameters: str
    paper_increase: str | None
    speed: str
    marks: tuple[int, ...]
    best: bool

    def cells(self) -> tuple[str, ...]:
        """The texts from left to right, as `headings` names them."""
        return (
            self.method,
            self.ours,
            self.difference,
            self.paper,
            self.paper_difference,
            self.direction,
            self.extra_parameters,
            *(() if self.paper_increase is None else (self.paper_increase,)),
            self.speed,
        )


def headings(table: Table) -> tuple[str, ...]:
    """What stands above `Line.cells`."""
    return (
        "method",
        "ours ± s.e. (n)",
        f"vs {table.baseline}, {table.unit.sign} [95 %]",
        "paper",
        f"paper's {table.unit.sign}",
        "direction",
        "parameters",
        *(("paper's",) if table.has_increases else ()),
        f"{table.subject.counted}/s",
    )


def lines(table: Table, column: str) -> list[Line]:
    """The rows of one column."""
    return [
        _line(entry, row == table.baseline, table.has_increases)
        for row, entry in zip(table.rows, table.column(column), strict=True)
    ]


def increases(table: Table, column: str) -> str | None:
    """The extra parameters of a column with the printed ones beside them, as a sentence; None where none is printed.

    For pages that are too narrow for two more columns.
    """
    if not table.has_increases:
        return None
    shown = [
        line for line in lines(table, column) if (line.extra_parameters, line.paper_increase) != (NOTHING, NOTHING)
    ]
    told = "; ".join(f"{line.method} {line.extra_parameters} ({line.paper_increase})" for line in shown)
    return f"Extra parameters (the paper's): {told}." if told else None


def _line(entry: Entry, is_baseline: bool, has_increases: bool) -> Line:
    extra, speed = entry.extra_parameters_percent, entry.speed
    return Line(
        method=entry.cell.row,
        ours=format.summary(entry.ours) if entry.ours else state(entry.cell),
        difference=format.difference(entry.difference) if entry.difference else NOTHING,
        paper=NOTHING if entry.paper is None else format.value(entry.paper),
        paper_difference=_paper_difference(entry, is_baseline),
        direction=entry.verdict.value,
        extra_parameters=NOTHING if extra is None else format.increase(extra),
        paper_increase=_increase(entry.paper_increase) if has_increases else None,
        speed=NOTHING if speed is None else format.speed(speed),
        marks=entry.marks,
        best=entry.best,
    )


def _increase(printed: str | None) -> str:
    """`15 %` for `15%`: as our own numbers are set; `<1 %` stays what it is."""
    return NOTHING if printed is None else f"{printed.removesuffix('%')} %"


def _paper_difference(entry: Entry, is_baseline: bool) -> str:
    if entry.paper_collapsed and not is_baseline:
        return "collapsed"
    return NOTHING if entry.paper_difference is None else format.signed(entry.paper_difference)


def state(cell: Cell) -> str:
    """What stands in a cell that has no value: `missing`, `running (step 40 of 200)`, `2 diverged, 1 missing`.

    Of several runs in progress the one that is furthest is shown.
    """
    reached = [run.progress for run in cell.having(RunState.running, RunState.unfinished) if run.progress]
    if not reached:
        return cell.state
    return f"{cell.state} ({steps(max(reached, key=lambda progress: progress.step))})"


def steps(progress: Progress) -> str:
    """`step 40 of 200`."""
    return f"step {progress.step:,} of {progress.steps:,}"
