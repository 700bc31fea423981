"""A table as people read it: lines of finished texts, the same for Markdown, LaTeX and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from comt_cli.report import format
from comt_cli.report.collect import Cell, Progress
from comt_cli.report.entry import Entry
from comt_cli.report.table import Table
from comt_cli.runs.directory import RunState

NOTHING = "-"
UNSETTLED = "?"
"""Behind a ratio of times that were taken in too few rounds for an interval: it may be any other."""
STANDS = "*"
"""Behind a verdict that holds after Holm's correction over the table, too."""

Key = Literal[
    "method",
    "ours",
    "median",
    "beside",
    "difference",
    "detectable",
    "equal_time",
    "paper",
    "paper_difference",
    "published",
    "verdict",
    "parameters",
    "paper_increase",
    "flops",
    "bytes",
    "saved",
    "step",
    "compiled",
    "speed",
]
"""What a column of the printed table holds."""

_ALWAYS: tuple[Key, ...] = ("method", "ours")


@dataclass(frozen=True)
class Line:
    """One row of one column: its texts as `headings` names them; `marks` number footnotes, `best` asks for bold."""

    entry: Entry
    cells: dict[Key, str]
    marks: tuple[int, ...]
    best: bool


def headings(table: Table, column: str | None = None) -> dict[Key, str]:
    """What stands above the texts of a line of `column`, from left to right; of any column where that is None, with the
    units of all.

    A column that would say nothing in any line is left out: those of a paper that prints no number, a difference where
    there is no baseline, speeds of runs that did not record them.
    """
    columns = table.columns if column is None else (column,)
    signs = "/".join(dict.fromkeys(table.unit(name).sign for name in columns))
    has_interval = any(entry.difference and entry.difference.low is not None for entry in table.entries.values())
    interval = " [95 %]" if has_interval else ""
    others = [metric.label for name in table.columns if (metric := table.beside(name)) is not None]
    every: dict[Key, str] = {
        "method": "method",
        "ours": "ours ± s.e. (n)" if table.paper is not None else "mean ± s.e. (n)",
        "median": "median",
        "beside": "/".join(dict.fromkeys(others)),
        "difference": f"vs {table.baseline}, {signs}{interval}",
        "detectable": f"detectable, {signs}",
        "equal_time": f"at equal time, {signs} [95 %]",
        "paper": "paper",
        "paper_difference": f"paper's {signs}",
        "published": "published elsewhere, %",
        "verdict": "verdict",
        "parameters": "parameters",
        "paper_increase": "paper's parameters",
        "flops": "FLOPs, ×",
        "bytes": "bytes, ×",
        "saved": "saved, ×",
        "step": "step, ×",
        "compiled": "compiled step, ×",
        "speed": f"{table.task.unit.name}/s",
    }
    texts = [_cells(table, entry) for entry in table.entries.values()]
    return {
        key: heading
        for key, heading in every.items()
        if key in _ALWAYS or any(cells[key] != NOTHING for cells in texts)
    }


def lines(table: Table, column: str) -> list[Line]:
    """The rows of one column."""
    shown = headings(table)
    lines = []
    for entry in table.column(column):
        cells = _cells(table, entry)
        lines.append(Line(entry, {key: cells[key] for key in shown}, entry.marks, entry.best))
    return lines


def same_runs(table: Table) -> list[list[str]]:
    """The columns of the table, those together that show metrics of the same runs whose differences have one unit."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for column in table.columns:
        requests = tuple(run.spec.request for entry in table.column(column) for run in entry.cell.every)
        groups.setdefault((table.unit(column).sign, *requests), []).append(column)
    return list(groups.values())


def by_metric(table: Table, columns: Sequence[str], texts: Callable[[Line], Mapping[Key, str]]) -> list[list[str]]:
    """Columns of the same runs (`same_runs`) as one table, the headings first: a column a metric, of every row a line
    for each of the `texts` that says something."""
    made = [["method", "", *columns]]
    of = {column: lines(table, column) for column in columns}
    names = headings(table, columns[0])
    for number, row in enumerate(table.rows):
        cells = [texts(of[column][number]) for column in columns]
        told = [key for key in cells[0] if key != "method" and any(each[key] != NOTHING for each in cells)]
        made += [[row if key == "ours" else "", names[key], *(each[key] for each in cells)] for key in told]
    return made


def increases(table: Table, column: str) -> str | None:
    """The extra parameters of a column with the printed ones beside them, as a sentence; None where none is printed.

    For pages that are too narrow for two more columns.
    """
    if not table.has_increases:
        return None
    phrase = "; ".join(_increases(_cells(table, entry) for entry in table.column(column)))
    return f"Extra parameters (the paper's): {phrase}." if phrase else None


def _increases(lines: Iterable[dict[Key, str]]) -> Iterable[str]:
    for cells in lines:
        if (cells["parameters"], cells["paper_increase"]) != (NOTHING, NOTHING):
            yield f"{cells['method']} {cells['parameters']} ({cells['paper_increase']})"


def _cells(table: Table, entry: Entry) -> dict[Key, str]:
    extra, speed = entry.extra_parameters_percent, entry.speed
    decimals, beside = table.metric(entry.cell.column).decimals, table.beside(entry.cell.column)
    return {
        "method": entry.cell.row,
        "ours": format.summary(entry.ours, decimals)
        if entry.ours
        else state(entry.cell, table.metrics[entry.cell.column]),
        "median": _median(table, entry),
        "beside": NOTHING if entry.beside is None or beside is None else format.value(entry.beside, beside.decimals),
        "difference": format.difference(entry.difference) if entry.difference else NOTHING,
        "detectable": NOTHING if entry.detectable is None else ", ".join(map(format.signed, entry.detectable)),
        "equal_time": format.difference(entry.equal_time) if entry.equal_time else NOTHING,
        "paper": NOTHING if entry.paper is None else format.value(entry.paper, decimals),
        "paper_difference": _paper_difference(entry, is_baseline=entry.cell.row == table.baseline),
        "published": NOTHING if entry.published is None else format.signed(entry.published),
        "verdict": f"{entry.verdict.value}{STANDS if entry.stands else ''}",
        "parameters": NOTHING if extra is None else format.increase(extra),
        "paper_increase": _increase(entry.paper_increase),
        **_costs(table, entry),
        "speed": NOTHING if speed is None else format.speed(speed),
    }


def _costs(table: Table, entry: Entry) -> dict[Key, str]:
    """What the row's training step costs, as ratios to the baseline's."""
    costs = None if table.costs is None else table.costs.of.get((entry.cell.row, entry.cell.column))
    if costs is None:
        return dict.fromkeys(("flops", "bytes", "saved", "step", "compiled"), NOTHING)
    return {
        "flops": _ratio(costs.flops),
        "bytes": _ratio(costs.bytes),
        "saved": _ratio(costs.saved),
        "step": _ratio(costs.step, costs.step_error, is_timed=True),
        "compiled": _ratio(costs.compiled, costs.compiled_error, is_timed=True),
    }


def _ratio(ratio: float | None, error: float | None = None, *, is_timed: bool = False) -> str:
    """With its interval, where there is one: `error` is a part of it. Of times without one that is said."""
    if ratio is None:
        return NOTHING
    if is_timed and error is None:
        return f"{ratio:.2f} {UNSETTLED}"
    return f"{ratio:.2f} ± {ratio * error:.2f}" if error else f"{ratio:.2f}"


def _increase(printed: str | None) -> str:
    """`15 %` for `15%`: as our own numbers are set; `<1 %` stays what it is."""
    return NOTHING if printed is None else f"{printed.removesuffix('%')} %"


def _median(table: Table, entry: Entry) -> str:
    """The median over seeds; nothing of one seed, or where the task does not show it."""
    if not table.task.shows_median or entry.ours is None or entry.ours.n == 1:
        return NOTHING
    assert entry.ours.median is not None
    return format.value(entry.ours.median, table.metric(entry.cell.column).decimals)


def _paper_difference(entry: Entry, *, is_baseline: bool) -> str:
    if entry.paper_collapsed and not is_baseline:
        return "collapsed"
    return NOTHING if entry.paper_difference is None else format.signed(entry.paper_difference)


def state(cell: Cell, metric: str) -> str:
    """The text of a cell that has no value: `missing`, `running (step 40 of 200)`, `2 diverged, 1 missing`, or why the
    runs that are done have no number for the metric: `needs Java`.

    Of several runs in progress the one that is furthest is shown.
    """
    reasons = {reason for run in cell.runs if (reason := run.missing(metric)) is not None}
    if reasons:
        return ", ".join(sorted(reasons))
    reached = [run.progress for run in cell.having(RunState.running, RunState.unfinished) if run.progress]
    if not reached:
        return cell.state
    return f"{cell.state} ({steps(max(reached, key=lambda progress: progress.step))})"


def steps(progress: Progress) -> str:
    """`step 40 of 200`."""
    return f"step {progress.step:,} of {progress.steps:,}"
