"""Learning curves: the logs of a table's runs, thinned, beside the table; and the lines of a page's charts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from comt_cli.files import parse_json, read_text, write_changed
from comt_cli.report.frame import csv_text
from comt_cli.report.logs import Log, logged, quantities, width_for, window_means
from comt_cli.report.written import Line, Written
from comt_cli.runs.directory import READING_ERRORS
from comt_cli.runs.plan import BY_ID
from comt_cli.sums import added

ROUNDING = 1e-6
"""Relative, of a loss as it is written beside a table: between what the digits there leave out and what two
machines differ by."""
_FEWEST = 3
"""With fewer points a curve is none."""


def logs_file(results: Path, table: Written) -> Path:
    """Where the thinned logs of a table's runs stand."""
    return results / table.scale / table.paper / f"{table.name}-logs.csv"


def shown_runs(table: Written) -> list[Line]:
    """The runs that have curves: all behind a table, but of those with a grid the ones that were chosen."""
    return [run for run in table.runs if run.get("chosen") != "False"]


def write_logs(results: Path, runs: Path, table: Written, there: Sequence[Line]) -> None:
    """Write the thinned logs of the table's runs that are below the folder `runs`; those already written (`there`) of
    runs that are not are kept. A run of the same id that was trained once more, and so ends in other digits, is not
    the table's. Where no log is at hand nothing changes.

    Raises:
        StorageError: the file cannot be written.
    """
    before: dict[str, list[Line]] = {}
    for line in there:
        before.setdefault(line["id"], []).append(line)
    lines: list[Mapping[str, Any]] = []
    found = False
    for run in {run["id"]: run for run in shown_runs(table)}.values():
        folder = runs / BY_ID / run["id"]
        log = thinned(read_log(folder / "metrics.jsonl")) if _is_behind(run, folder) else []
        found = found or bool(log)
        lines += [{"id": run["id"], **line} for line in log] or before.get(run["id"], [])
    if found:
        keys = dict.fromkeys(key for line in lines for key in line)
        write_changed(logs_file(results, table), csv_text([{key: line.get(key) for key in keys} for line in lines]))


def _is_behind(run: Line, folder: Path) -> bool:
    """Whether a folder's run ended with the loss that the table's has, if both have ended with one."""
    with contextlib.suppress(*READING_ERRORS):
        loss = parse_json(read_text(folder / "result.json"))["loss"]
        return not run.get("loss") or math.isclose(loss, float(run["loss"]), rel_tol=ROUNDING)
    return True


def read_log(path: Path) -> Log:
    """The lines of a run's `metrics.jsonl`, as far as they are whole; none where there is no such file."""
    found = []
    with contextlib.suppress(*READING_ERRORS):
        for line in read_text(path).splitlines():
            found.append(dict(parse_json(line)))
    return found


def thinned(log: Log) -> Log:
    """Training loss and what was measured on validation, at most 50 points of each; a point is the mean of as many
    logged values in a row, at the last one's step."""
    found: dict[int, dict[str, Any]] = {}
    for key in quantities(log):
        values = logged(log, key)
        for step, mean in window_means(values, width_for(len(values))):
            found.setdefault(step, {})[key] = f"{mean:.5g}"
    return [{"step": step, **found[step]} for step in sorted(found)]


def charts(lines: Sequence[Line], runs: Iterable[Line]) -> Iterator[dict[str, Any]]:
    """One chart for each quantity and column of a table: its steps, and of each row mean, least and greatest over the
    seeds at every step that all of them have; None at the others."""
    cells: dict[str, dict[str, dict[str, None]]] = {}
    for run in runs:
        cells.setdefault(run["column"], {}).setdefault(run["row"], {})[run["id"]] = None
    logs: dict[str, dict[int, Line]] = {}
    for line in lines:
        logs.setdefault(line["id"], {})[int(line["step"])] = line
    for column, rows in cells.items():
        for key in (key for key in (lines[0] if lines else {}) if key not in ("id", "step")):
            curves = {
                row: seeds
                for row, ids in rows.items()
                if (seeds := [at for run in ids if (at := _numbers(logs.get(run, {}), key))])
            }
            steps = sorted({step for seeds in curves.values() for at in seeds for step in at})
            if len(steps) >= _FEWEST:
                series = [_series(row, seeds, steps) for row, seeds in curves.items()]
                yield {"column": column, "quantity": key.replace("_", " "), "steps": steps, "series": series}


def _numbers(log: Mapping[int, Line], key: str) -> dict[int, float]:
    return {step: float(line[key]) for step, line in log.items() if line.get(key)}


def _series(row: str, seeds: Sequence[Mapping[int, float]], steps: Iterable[int]) -> dict[str, Any]:
    at_steps = [[at[step] for at in seeds] if all(step in at for at in seeds) else [] for step in steps]
    found: dict[str, Any] = {"row": row, "n": len(seeds)}
    found["mean"] = [float(f"{added(values) / len(values):.5g}") if values else None for values in at_steps]
    if len(seeds) > 1:
        found["low"] = [min(values, default=None) for values in at_steps]
        found["high"] = [max(values, default=None) for values in at_steps]
    return found
