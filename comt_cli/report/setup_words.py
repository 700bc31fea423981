"""What the runs of a column were, in a sentence: model, data and length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comt_cli.report import format
from comt_cli.report.entry import Entry
from comt_cli.report.table import Table
from comt_cli.words import in_words


def setup(table: Table, columns: Sequence[str]) -> str:
    """Model, data and length of the runs behind columns: the baseline's, since a table's rows share them."""
    column = columns[0]
    reference = table.entries.get((table.baseline, column)) or table.column(column)[0]
    parameters = reference.cell.average("parameters")
    size = f", {format.short_count(parameters)} parameters" if parameters else ""
    seen = [number for entry in table.column(column) for number in _seen(entry, table.task.unit.name)]
    phrase = table.task.describe(table.specs[column].settings, size, _between(seen) if seen else "")
    return f"{phrase}. {beside(table, columns)}".rstrip()


def beside(table: Table, columns: Sequence[str]) -> str:
    """Which of the paper's columns ours are compared with, as a sentence; empty in a table without printed numbers."""
    if table.paper is None:
        return ""
    compared = [in_words(name) for column in columns if (name := table.column(column)[0].paper_column)]
    return f"Paper: {', '.join(dict.fromkeys(compared))}." if compared else "The paper has no such column."


def _seen(entry: Entry, counted: str) -> Iterator[float]:
    for run in entry.cell.runs:
        number = run.number(counted)
        if number is not None and (run.result or {})["state"] == "done":
            yield number


def _between(numbers: Sequence[float]) -> str:
    low, high = format.short_count(min(numbers)), format.short_count(max(numbers))
    return low if low == high else f"{low} to {high}"
