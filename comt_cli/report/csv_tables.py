"""A table as CSV: one line per row and column (tidy), and one line per run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from comt_cli.report import format
from comt_cli.report.collect import Cell
from comt_cli.report.table import Entry, Table

RESULT_KEYS = (
    "step",
    "steps",
    "tokens",
    "loss",
    "perplexity",
    "galore_perplexity",
    "train_loss",
    "diverged_at",
    "last_finite_loss",
    "parameters",
    "extra_parameters",
    "extra_parameters_percent",
    "flops",
    "train_seconds",
    "tokens_per_second",
    "mfu",
    "peak_memory_bytes",
    "waiting_share",
    "device",
    "git_commit",
)
"""What is shown of `result.json`."""


def records(table: Table) -> list[dict[str, Any]]:
    """One dictionary per row and column, columns outermost; None where there is no number."""
    return [_record(table, table.entries[row, column]) for column in table.columns for row in table.rows]


def _record(table: Table, entry: Entry) -> dict[str, Any]:
    cell, ours, difference = entry.cell, entry.ours, entry.difference
    return {
        "row": cell.row,
        "column": cell.column,
        "metric": table.metric,
        "scale": table.scale,
        "mean": ours.mean if ours else None,
        "stderr": ours.stderr if ours else None,
        "n": ours.n if ours else 0,
        "seeds": " ".join(str(seed) for seed in cell.values(table.metric)),
        "state": cell.state,
        "paper_column": entry.paper_column,
        "paper": entry.paper,
        "difference_percent": difference.mean if difference else None,
        "interval_low": difference.low if difference else None,
        "interval_high": difference.high if difference else None,
        "paper_difference_percent": entry.paper_difference,
        "verdict": entry.verdict.value,
        "extra_parameters_percent": entry.extra_parameters_percent,
        "tokens_per_second": entry.tokens_per_second,
        "devices": _distinct(cell, "device"),
        "git_commits": _distinct(cell, "git_commit"),
        "run_ids": " ".join(run.spec.id for run in cell.runs if run.result is not None),
        "recipe": table.recipe_file,
    }


def _distinct(cell: Cell, key: str) -> str:
    results = [run.result for run in cell.runs if run.result is not None]
    return "; ".join(sorted({str(result[key]) for result in results if result.get(key) is not None}))


def table_csv(table: Table) -> str:
    """The tidy table."""
    return _csv(records(table))


def runs_csv(table: Table) -> str:
    """Every planned run with what its `result.json` says; of a run in progress the step it reached."""
    lines = []
    for column in table.columns:
        for row in table.rows:
            for run in table.entries[row, column].cell.runs:
                spec = run.spec
                who = {"row": row, "column": column, "seed": spec.seed, "id": spec.id, "state": run.state.value}
                result = run.result
                if result is None and run.progress is not None:
                    result = {"step": run.progress.step, "steps": run.progress.steps}
                lines.append({**who, **{key: (result or {}).get(key) for key in RESULT_KEYS}})
    return _csv(lines)


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(lines[0])
    writer.writerows([format.machine(value) for value in line.values()] for line in lines)
    return text.getvalue()
