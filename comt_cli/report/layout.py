"""A table as people read it: finished texts by row and column, the same for Markdown, LaTeX and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from comt_cli.report import format
from comt_cli.report.cells import corpus, footnotes, reference
from comt_cli.report.collect import Cell, Progress
from comt_cli.report.frame import Record, rows_of
from comt_cli.report.verdict import stands
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task
from comt_cli.tasks.base import DifferenceUnit, Metric

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "-"
UNSETTLED = "?"
"""Behind a ratio of times that were taken in too few rounds for an interval: it may be any other."""
STANDS = "*"
"""Behind a verdict that holds after Holm's correction over the table, too."""
LEFT = ("method", "verdict")
"""Columns that are set to the left."""


@dataclass(frozen=True)
class Line:
    """One row under one column: its texts by key; `marks` number footnotes, `best` asks for bold."""

    record: Record
    texts: dict[str, str]
    marks: tuple[int, ...]
    best: bool

    @property
    def marked(self) -> dict[str, str]:
        """The texts, with the numbers of the footnotes."""
        return {**self.texts, "ours": self.texts["ours"] + "".join(f" [{mark}]" for mark in self.marks)}


class Sheet:
    """The texts of a table (`cells.cells_frame`, or a part of one).

    Attributes:
        attrs: those of the frame; `records`: its rows; `lines`: their texts.
        rows, columns: names in table order; `task`: that of the runs.
        footnotes: numbered from 1 by the marks of lines.
        keys: the columns of texts that say something in any line, from left to right.
    """

    def __init__(self, cells: pd.DataFrame) -> None:
        self.attrs: Mapping[Any, Any] = cells.attrs
        self.records = rows_of(cells)
        self.rows, self.columns = (list(dict.fromkeys(each[key] for each in self.records)) for key in ("row", "column"))
        self.task: Task[Any] = self.spec(self.columns[0]).task
        self.footnotes = footnotes(cells)
        numbers = {text: number for number, text in enumerate(self.footnotes, start=1)}
        self.lines = [
            Line(each, self._texts(each), tuple(numbers[text] for text in each["_remarks"]), bool(each["_best"]))
            for each in self.records
        ]
        told = {key for line in self.lines for key, text in line.texts.items() if text != NOTHING}
        self.keys = [key for key in _HEADINGS if key in {*told, "method", "ours"}]

    def under(self, column: str) -> list[Line]:
        """The lines of a column."""
        return [line for line in self.lines if line.record["column"] == column]

    def spec(self, column: str) -> RunSpec:
        """The baseline's run under a column (the first row's, where the baseline was not selected)."""
        spec: RunSpec = reference(self.records, column)["_cell"].runs[0].spec
        return spec

    def metric(self, column: str) -> Metric:
        """What the cells of a column show."""
        metric: Metric = reference(self.records, column)["_metric"]
        return metric

    def metrics(self) -> dict[str, str]:
        """The key of what each column shows."""
        return {column: str(reference(self.records, column)["metric"]) for column in self.columns}

    def unit(self, column: str) -> DifferenceUnit:
        """The unit of a column's differences to the baseline."""
        return self.metric(column).difference

    def signs(self, columns: Sequence[str]) -> str:
        """The units of columns, as headings have them."""
        return "/".join(dict.fromkeys(self.unit(column).sign for column in columns))

    def name(self, column: str) -> str:
        """A column's name; where the runs have another text than the recipe's, with the name of that."""
        text, (_, slash, rest) = corpus(self.spec(column)), column.partition("/")
        is_other = ":" in text or any(each.startswith("data.corpus=") for each in self.attrs["overrides"])
        return f"{text}{slash}{rest}" if is_other and slash else column

    def beside(self, column: str) -> Metric | None:
        """The metric that is shown beside a column's; None, too, where another column shows it of the same runs."""
        key, request = self.metric(column).beside, self.spec(column).request
        others = self.metrics()
        own = any(others[name] == key and self.spec(name).request == request for name in self.columns)
        return None if key is None or own else self.task.metrics[key]

    def headings(self, column: str | None = None) -> dict[str, str]:
        """What is above the texts of `column`; of any column where that is None, with the units of all."""
        columns = self.columns if column is None else [column]
        has_interval = any(each["_apart"] and each["_apart"].low is not None for each in self.records)
        others = [metric.label for each in self.columns if (metric := self.beside(each)) is not None]
        words = {
            "baseline": self.attrs["baseline"],
            "signs": self.signs(columns),
            "interval": " [95 %]" if has_interval else "",
            "whose": "ours" if self.attrs["paper"] is not None else "mean",
            "beside": "/".join(dict.fromkeys(others)),
            "unit": self.task.unit.name,
        }
        return {key: _HEADINGS[key].format(**words) for key in self.keys}

    def same_runs(self) -> list[list[str]]:
        """The columns, those together that show metrics of the same runs whose differences have one unit."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for column in self.columns:
            runs = (run.spec.request for line in self.under(column) for run in line.record["_cell"].every)
            groups.setdefault((self.unit(column).sign, *runs), []).append(column)
        return list(groups.values())

    def by_metric(self, columns: Sequence[str], texts: Callable[[Line], Mapping[str, str]]) -> list[list[str]]:
        """Columns of the same runs (`same_runs`) as one table, the headings first: a column a metric, of every row a
        line for each of the `texts` that says something."""
        made, names = [["method", "", *columns]], self.headings(columns[0])
        for lines in zip(*map(self.under, columns), strict=True):
            cells = [texts(line) for line in lines]
            told = [key for key in cells[0] if key != "method" and any(each[key] != NOTHING for each in cells)]
            row = lines[0].record["row"]
            made += [[row if key == "ours" else "", names[key], *(each[key] for each in cells)] for key in told]
        return made

    def increases(self, column: str) -> str | None:
        """The extra parameters of a column with the printed ones beside them, as a sentence, for pages too narrow for
        two more columns; None where none is printed."""
        if not any(each["paper_increase"] for each in self.records):
            return None
        pairs = [(each.texts["method"], each.texts["parameters"], each.texts["paper_increase"])
                 for each in self.under(column)]  # fmt: skip
        told = [f"{row} {own} ({printed})" for row, own, printed in pairs if (own, printed) != (NOTHING, NOTHING)]
        return f"Extra parameters (the paper's): {'; '.join(told)}." if told else None

    def _texts(self, record: Record) -> dict[str, str]:
        metric: Metric = record["_metric"]
        ours, beside = record["_ours"], self.beside(record["column"])
        printed, apart = record["paper_increase"], record["_paper_apart"]
        is_collapsed = metric.collapsed(record["paper"]) and record["row"] != self.attrs["baseline"]
        median = ours.median if self.task.shows_median and ours is not None and ours.n > 1 else None
        found: dict[str, str | None] = {
            "method": record["row"],
            "ours": format.summary(ours, metric.decimals) if ours else state(record["_cell"], record["metric"]),
            "median": _or_none(median, lambda it: format.value(it, metric.decimals)),
            "beside": None
            if beside is None
            else _or_none(record[str(metric.beside)], lambda it: format.value(it, beside.decimals)),
            "difference": _or_none(record["_apart"], format.difference),
            "detectable": _or_none(record["_detectable"], lambda it: ", ".join(map(format.signed, it))),
            "equal_time": _or_none(record["_equal_time"], format.difference),
            "paper": _or_none(record["paper"], lambda it: format.value(it, metric.decimals)),
            "paper_difference": "collapsed" if is_collapsed else _or_none(apart, format.signed),
            "published": _or_none(record.get("published_percent"), format.signed),
            "verdict": f"{record['verdict']}{STANDS if stands(record['p_value_holm']) else ''}",
            "parameters": _or_none(record["extra_parameters_percent"], format.increase),
            # `15 %` for `15%`, as our own numbers are set
            "paper_increase": _or_none(printed, lambda it: f"{it.removesuffix('%')} %"),
            **_costs(record["_costs"]),
            "speed": _or_none(record[self.task.unit.per_second], format.speed),
        }
        return {key: NOTHING if text is None else text for key, text in found.items()}


_HEADINGS = {
    "method": "method",
    "ours": "{whose} ± s.e. (n)",
    "median": "median",
    "beside": "{beside}",
    "difference": "vs {baseline}, {signs}{interval}",
    "detectable": "detectable, {signs}",
    "equal_time": "at equal time, {signs} [95 %]",
    "paper": "paper",
    "paper_difference": "paper's {signs}",
    "published": "published elsewhere, %",
    "verdict": "verdict",
    "parameters": "parameters",
    "paper_increase": "paper's parameters",
    "flops": "FLOPs, ×",
    "bytes": "bytes, ×",
    "saved": "saved, ×",
    "step": "step, ×",
    "compiled": "compiled step, ×",
    "speed": "{unit}/s",
}
"""The columns of texts from left to right, by key, and what is above them."""


def _or_none(value: Any, text: Callable[[Any], str]) -> str | None:
    return None if value is None else text(value)


def _costs(costs: Any) -> dict[str, str | None]:
    """What the row's training step costs, as ratios to the baseline's."""
    if costs is None:
        return dict.fromkeys(("flops", "bytes", "saved", "step", "compiled"))
    counted = {key: _or_none(getattr(costs, key), lambda it: f"{it:.2f}") for key in ("flops", "bytes", "saved")}
    times = {"step": (costs.step, costs.step_error), "compiled": (costs.compiled, costs.compiled_error)}
    return counted | {key: _time(*found) for key, found in times.items()}


def _time(ratio: float | None, error: float | None) -> str | None:
    """A ratio of times with its interval, of which `error` is a part; that there is none is said."""
    if ratio is None or error is None:
        return _or_none(ratio, lambda it: f"{it:.2f} {UNSETTLED}")
    return f"{ratio:.2f} ± {ratio * error:.2f}" if error else f"{ratio:.2f}"


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
