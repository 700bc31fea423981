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
WIDTH, HEIGHT = 640, 260
"""Of a chart, in its own units."""


def logs_file(results: Path, table: Written) -> Path:
    """The file of the thinned logs of a table's runs."""
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
    lines: list[Mapping[str, Any]] = []
    found = False
    for run in {run["id"]: run for run in shown_runs(table)}.values():
        folder = runs / BY_ID / run["id"]
        loss: Any = None
        with contextlib.suppress(*READING_ERRORS):
            loss = parse_json(read_text(folder / "result.json"))["loss"]
        is_behind = loss is None or not run.get("loss") or math.isclose(loss, float(run["loss"]), rel_tol=ROUNDING)
        log = thinned(read_log(folder / "metrics.jsonl")) if is_behind else []
        found = found or bool(log)
        lines += [{"id": run["id"], **line} for line in log] or [line for line in there if line["id"] == run["id"]]
    if found:
        keys = dict.fromkeys(key for line in lines for key in line)
        write_changed(logs_file(results, table), csv_text([{key: line.get(key) for key in keys} for line in lines]))


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
    """One chart for each quantity and column of a table: of each row the points of the mean over its seeds, at every
    step that all of them have, as an SVG has them; the range of steps, and of values on a logarithmic axis."""
    cells: dict[str, dict[str, dict[str, list[Line]]]] = {}
    for run in runs:
        own = [line for line in lines if line["id"] == run["id"]]
        cells.setdefault(run["column"], {}).setdefault(run["row"], {})[run["id"]] = own
    for column, rows in cells.items():
        for key in (key for key in (lines[0] if lines else {}) if key not in ("id", "step")):
            found = {row: _means(logs.values(), key) for row, logs in rows.items()}
            at = sorted({point for curve in found.values() for point in curve})
            if len({step for step, _ in at}) < _FEWEST:
                continue
            (first, last), values = (at[0][0], at[-1][0]), sorted(value for _, value in at)
            across, tall = WIDTH / (last - first), HEIGHT / (math.log(values[-1] / values[0]) or 1.0)
            curves = {
                row: " ".join(f"{across * (step - first):.0f},{tall * math.log(values[-1] / value):.0f}"
                              for step, value in curve)
                for row, curve in found.items() if curve
            }  # fmt: skip
            quantity = key.replace("_", " ")
            yield {"column": column, "quantity": quantity, "steps": (first, last), "curves": curves,
                   "range": (values[0], values[-1])}  # fmt: skip


def _means(logs: Iterable[Sequence[Line]], key: str) -> list[tuple[int, float]]:
    """Step and mean over the seeds that have a log, where all of these have a value and the mean has a logarithm."""
    seeds = [at for log in logs if (at := {int(line["step"]): float(line[key]) for line in log if line.get(key)})]
    steps = sorted(set.intersection(*map(set, seeds))) if seeds else []
    means = [(step, added(at[step] for at in seeds) / len(seeds)) for step in steps]
    return [(step, mean) for step, mean in means if mean > 0]
