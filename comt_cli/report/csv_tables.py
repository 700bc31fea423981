"""A table as CSV: one line per row and column (tidy), and one line per run. Read back by the overview."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from comt_cli.report import format
from comt_cli.report.collect import Cell, Run
from comt_cli.report.entry import Entry
from comt_cli.report.table import Table

GRID = "grid."
"""How the columns begin that have the values of a sweep's keys."""


def records(table: Table) -> list[dict[str, Any]]:
    """One dictionary per row and column, columns outermost; None where there is no number.

    Keys name what their numbers are: `difference_percent`, `difference_points`, `tokens_per_second`. A table whose
    columns show different metrics has the keys of all.
    """
    found = [_record(table, table.entries[row, column]) for column in table.columns for row in table.rows]
    keys = dict.fromkeys(key for record in found for key in record)
    return [{key: record.get(key) for key in keys} for record in found]


def _record(table: Table, entry: Entry) -> dict[str, Any]:
    cell, ours, difference = entry.cell, entry.ours, entry.difference
    key, metric = table.metrics[cell.column], table.metric(cell.column)
    unit = metric.difference.name
    return {
        "row": cell.row,
        "column": cell.column,
        "metric": key,
        "scale": table.scale,
        "mean": ours.mean if ours else None,
        "stderr": ours.stderr if ours else None,
        **({"median": ours.median if ours else None} if table.task.shows_median else {}),
        "n": ours.n if ours else 0,
        "seeds": " ".join(str(seed) for seed in cell.values(key)),
        "state": cell.state,
        **_grid({} if cell.choice is None else dict.fromkeys(cell.runs[0].spec.point) | dict(cell.choice.point or {})),
        **({} if metric.beside is None else {metric.beside: entry.beside}),
        "baseline": table.baseline,
        "paper_column": entry.paper_column,
        "paper": entry.paper,
        f"difference_{unit}": difference.mean if difference else None,
        "interval_low": difference.low if difference else None,
        "interval_high": difference.high if difference else None,
        "p_value": entry.p_value,
        "p_value_holm": entry.adjusted,
        "detectable_low": entry.detectable[0] if entry.detectable else None,
        "detectable_high": entry.detectable[1] if entry.detectable else None,
        **_equal_time(entry, unit),
        f"paper_difference_{unit}": entry.paper_difference,
        **({} if entry.published is None else {"published_percent": entry.published}),
        "verdict": entry.verdict.value,
        **({} if entry.note is None else {"note": entry.note}),
        "extra_parameters_percent": entry.extra_parameters_percent,
        "paper_increase": entry.paper_increase,
        table.task.unit.per_second: entry.speed,
        "devices": _distinct(cell, "device"),
        "git_commits": _distinct(cell, "git_commit"),
        "data_contents": " ".join(dict.fromkeys(run.content for run in cell.runs if run.result and run.content)),
        "run_ids": " ".join(run.spec.id for run in cell.runs if run.result is not None and not cell.is_open),
        "recipe": table.recipe_origin,
        "changed_settings": shlex.join(table.overrides),
    }


def _equal_time(entry: Entry, unit: str) -> dict[str, Any]:
    """Only where there is one: most runs are evaluated at their end alone."""
    apart = entry.equal_time
    if apart is None:
        return {}
    return {f"equal_time_{unit}": apart.mean, "equal_time_low": apart.low, "equal_time_high": apart.high}


def _grid(point: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{GRID}{key}": value for key, value in point.items()}


def _distinct(cell: Cell, key: str) -> str:
    results = [run.result for run in cell.runs if run.result is not None]
    return "; ".join(sorted({str(result[key]) for result in results if result.get(key) is not None}))


def table_csv(table: Table) -> str:
    """The tidy table."""
    return csv_text(records(table))


def runs_csv(runs: Iterable[Run], recipe: str, without: tuple[str, ...] = ()) -> str:
    """Every planned run of a recipe, what it was trained on, and what its `result.json` says; in progress, the step it
    reached. `recipe` is the file (`LoadedRecipe.origin`). Results whose names begin as one of `without` are left out.
    """
    found = [_run_record(run, recipe) for run in runs]
    keys = [key for key in dict.fromkeys(key for record in found for key in record) if not key.startswith(without)]
    return csv_text([{key: record.get(key) for key in keys} for record in found])


def _run_record(run: Run, recipe: str) -> dict[str, Any]:
    spec, result = run.spec, run.result
    who = {"row": spec.row, "column": spec.column, "seed": spec.seed, "id": spec.id, "state": run.state.value}
    tried = {**_grid(spec.point), "chosen": run.chosen} if spec.point else {}
    if result is None and run.progress is not None:
        result = {"step": run.progress.step, "steps": run.progress.steps}
    where: dict[str, Any] = {"recipe": recipe, "command": spec.command, "scale": spec.scale}
    where |= {"data_content": run.content if run.result else None}
    task, train = spec.task, spec.settings.train
    shown = list(task.result_keys)
    shown += (["chosen_step"] if train.select == "best" else []) + (["averaged_steps"] if train.averaged_steps else [])
    shown += [key for key in task.metrics if key not in shown and key in (result or {})]
    return {**who, **tried, **where, **task.columns(spec.settings), **{key: (result or {}).get(key) for key in shown}}


def csv_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """At least one line as CSV under its keys; see `format.machine` for the numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(lines[0])
    writer.writerows([format.machine(value) for value in line.values()] for line in lines)
    return text.getvalue()
