"""What was trained, in one line for titles and captions: network, data, length, seeds. Said from the runs' settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from comt_cli.report import format
from comt_cli.report.table import Table
from comt_cli.runs.plan import RunSpec


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


def of_table(table: Table) -> str:
    """The runs of a table, column by column where they differ: every row was trained like the baseline."""
    columns: dict[str, list[str]] = {}
    for column in table.columns:
        reference = table.entries.get((table.baseline, column)) or table.column(column)[0]
        parameters = reference.cell.average("parameters")
        size = [] if parameters is None else [f"{format.short_count(parameters)} parameters"]
        columns.setdefault(table.task.network_and_data(table.specs[column].settings, size), []).append(column)
    if len(columns) == 1:
        (trained,) = columns
    else:
        trained = "; ".join(f"{format.listing(names)}: {what}" for what, names in columns.items())
    return f"{trained}; {_seeds(table.seeds)}; scale {table.scale}{_changed(table.overrides)}"


def _changed(overrides: Sequence[str]) -> str:
    """The settings that are not the recipe's: a picture or a table that is copied elsewhere keeps saying so."""
    return f"; with {' '.join(overrides)}" if overrides else ""


def _seeds(seeds: Iterable[int]) -> str:
    numbers = list(seeds)
    return f"seed{'s' if len(numbers) > 1 else ''} {format.seeds(numbers)}"
