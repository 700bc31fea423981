"""What was trained, in one line for titles and captions: network, data, length, seeds. Said from the runs' settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from comt_cli.report import format
from comt_cli.report.cells import reference
from comt_cli.report.frame import Record, rows_of
from comt_cli.runs.plan import RunSpec
from comt_cli.words import in_words

if TYPE_CHECKING:
    import pandas as pd

    from comt_cli.report.layout import Sheet


def of_runs(specs: Iterable[RunSpec], overrides: Sequence[str] = ()) -> str:
    """The runs of a figure: `pre-ln+comt: LLaMA tiny ...; seed 1; scale smoke`. Rows that share their network are named
    together; the method stands in brackets where the row's name does not say it. `overrides` are the `--set` arguments
    behind them."""
    specs = list(specs)
    rows: dict[str, list[str]] = {}
    for spec in specs:
        names = rows.setdefault(spec.task.network_and_data(spec.settings), [])
        if (name := _named(spec)) not in names:
            names.append(name)
    parts = [f"{format.listing(names)}: {what}" for what, names in rows.items()]
    seeds = sorted({spec.seed for spec in specs})
    scales = dict.fromkeys(spec.scale for spec in specs)
    return f"{'; '.join(parts)}; {_seeds(seeds)}; scale {format.listing(scales)}{_changed(overrides)}"


def _named(spec: RunSpec) -> str:
    named = spec.method["name"] in spec.row and spec.method_words == spec.method["name"]
    return spec.row if named else f"{spec.row} ({spec.method_words})"


def of_table(cells: pd.DataFrame) -> str:
    """The runs of a table, column by column where they differ: every row was trained like the baseline."""
    columns: dict[str, list[str]] = {}
    records, attrs = rows_of(cells), cells.attrs
    for column in dict.fromkeys(cells["column"]):
        cell = reference(records, column)["_cell"]
        parameters, spec = cell.average("parameters"), cell.runs[0].spec
        size = [] if parameters is None else [f"{format.short_count(parameters)} parameters"]
        columns.setdefault(spec.task.network_and_data(spec.settings, size), []).append(column)
    several = len(columns) > 1
    trained = "; ".join(f"{format.listing(names)}: {what}" if several else what for what, names in columns.items())
    return f"{trained}; {_seeds(attrs['seeds'])}; scale {attrs['scale']}{_changed(attrs['overrides'])}"


def _changed(overrides: Sequence[str]) -> str:
    """The settings that are not the recipe's: a picture or a table that is copied elsewhere keeps saying so."""
    return f"; with {' '.join(overrides)}" if overrides else ""


def _seeds(seeds: Iterable[int]) -> str:
    numbers = list(seeds)
    return f"seed{'s' if len(numbers) > 1 else ''} {format.seeds(numbers)}"


def setup(sheet: Sheet, columns: Sequence[str]) -> str:
    """Model, data and length of the runs behind columns, in a sentence: the baseline's, since rows share them."""
    lines = sheet.under(columns[0])
    parameters = reference([line.record for line in lines], columns[0])["_cell"].average("parameters")
    size = f", {format.short_count(parameters)} parameters" if parameters else ""
    seen = [number for line in lines for number in _seen(line.record, sheet.task.unit.name)]
    between = list(dict.fromkeys(format.short_count(end) for end in (min(seen), max(seen)))) if seen else []
    phrase = sheet.task.describe(sheet.spec(columns[0]).settings, size, " to ".join(between))
    return f"{phrase}. {papers_columns(sheet, columns)}".rstrip()


def papers_columns(sheet: Sheet, columns: Sequence[str]) -> str:
    """Which of the paper's columns ours are compared with, as a sentence; empty in a table without printed numbers."""
    if sheet.attrs["paper"] is None:
        return ""
    named = (sheet.under(column)[0].record["paper_column"] for column in columns)
    compared = [in_words(name) for name in named if name]
    return f"Paper: {', '.join(dict.fromkeys(compared))}." if compared else "The paper has no such column."


def _seen(record: Record, counted: str) -> Iterator[float]:
    for run in record["_cell"].runs:
        number = run.number(counted)
        if number is not None and (run.result or {})["state"] == "done":
            yield number
