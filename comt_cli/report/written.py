"""The contents of a results folder, read from its files only: tables, the runs behind them, and figures."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from comt_cli.errors import UserError
from comt_cli.files import read_csv, read_text
from comt_cli.recipe.schema import NO_SCALES, SCALES
from comt_cli.report.statistics import Paired, Verdict, corrected, published_direction
from comt_cli.tasks import Task, tasks
from comt_cli.tasks.base import Metric

Line = Mapping[str, str]  # a line of a CSV; an empty text is a missing value
_Content = TypeVar("_Content")
_OF_RUNS = {"row", "column", "seed", "id", "state"}
_NUMBERS = {"parameters", "tokens", "images", "examples", "image_size", "loss"}
"""Columns of runs that are read as numbers."""


@dataclass(frozen=True)
class WrittenCell:
    """One row and column of a written table. Differences are in the metric's unit; `comparison` is the metric, the ids
    of the runs and of the baseline's; `adjusted` is the p-value after Holm's correction over the table."""

    row: str
    column: str
    metric: Metric
    baseline: str
    verdict: Verdict
    direction: int
    state: str
    difference: Paired | None
    paper_column: str
    paper: float | None
    paper_difference: float | None
    paper_baseline: float | None
    comparison: tuple[str, str, str]
    adjusted: float | None = None


@dataclass(frozen=True)
class Written:
    """A table (`cells`, `title`) or a figure of a paper (`caption`), with the runs of a task and its pictures.
    `changed_settings` are the `--set` arguments. `beside` are further files by the end of their names: a sweep's
    `rates` and `trials`, the gains against compute (`ladder`) and the costs of steps (`costs`); they are among
    `files`."""

    task: Task[Any]
    scale: str
    paper: str
    name: str
    title: str
    caption: str
    changed_settings: tuple[str, ...]
    cells: tuple[WrittenCell, ...]
    runs: tuple[Line, ...]
    files: tuple[Path, ...]
    beside: Mapping[str, Path]
    pictures: tuple[Path, ...]

    @property
    def path(self) -> str:
        """`evening/comt/table3`."""
        return f"{self.scale}/{self.paper}/{self.name}"


class Reader:
    """Reads the files of a results folder. Damaged files are left out; `damaged` has the reason for each."""

    def __init__(self) -> None:
        self.damaged: dict[Path, str] = {}

    def leave_out(self, path: Path, error: Exception) -> None:
        """Record that a file cannot be read."""
        self.damaged[path] = error.message if isinstance(error, UserError) else f"{path} cannot be read: {error}"

    def text(self, path: Path) -> str:
        """The text of a file; empty if it is missing or damaged."""
        return self._read(path, read_text) or ""

    def lines(self, path: Path) -> list[Line]:
        """The lines of a CSV; none if it is missing or damaged."""
        return self._read(path, read_lines) or []

    def _read(self, path: Path, how: Callable[[Path], _Content]) -> _Content | None:
        with contextlib.suppress(FileNotFoundError):
            try:
                return how(path)
            except (UserError, ValueError) as error:
                self.leave_out(path, error)
        return None


def written_below(results: Path, reader: Reader) -> dict[str, list[Written]]:
    """Every table and figure by scale, first the papers' scales, last those of your own recipes: by paper, tables
    before figures, in order of their numbers. Tables and figures with a damaged file are left out."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        next(results.iterdir(), None)  # Path.glob hides a folder that may not be read since Python 3.13
    own = sorted({runs.parents[1].name for runs in results.glob("*/*/*-runs.csv")} - {*SCALES, *NO_SCALES})
    found: dict[str, list[Written]] = {}
    for scale in (*reversed(SCALES), *own):
        for folder in sorted(path for path in (results / scale).glob("*") if path.is_dir()):
            found.setdefault(scale, []).extend(_below(folder, scale, reader))
    return {scale: written for scale, written in found.items() if written}


def _below(folder: Path, scale: str, reader: Reader) -> list[Written]:
    read = {path.stem: reader.lines(path) for path in folder.glob("*.csv")}
    tables = {name: lines for name, lines in read.items() if lines and {"verdict", "run_ids"} <= lines[0].keys()}
    found = []
    for path in folder.glob("*-runs.csv"):
        name = path.stem.removesuffix("-runs")
        if path not in reader.damaged and (name in tables or (folder / f"{name}.png").exists()):
            try:
                found.append(_written(folder, scale, name, tables, read[path.stem], reader))
            except UserError as error:
                reader.leave_out(path, error)
            except (LookupError, ValueError, ArithmeticError) as error:
                reader.leave_out(folder / f"{name}.csv", error)

    def natural(name: str) -> list[tuple[int, str]]:  # `table10` after `table9`
        return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]

    return sorted(found, key=lambda one: (not one.cells, natural(one.name)))


def _written(
    folder: Path, scale: str, name: str, tables: Mapping[str, list[Line]], runs: list[Line], reader: Reader
) -> Written:
    lines, first = tables.get(name, []), runs[0] if runs else {}
    # Files from before December 2026 have no command: there the unit of the speeds identifies the task.
    known = (task for task in tasks().values() if first.get("command", task.command) == task.command)
    task = next((task for task in known if task.unit.name in first), None)
    if task is None:
        raise UserError(f"{folder / name}-runs.csv cannot be read: its runs are of an unknown task")
    # The pictures of a table, without those of another table whose name begins with this one's.
    others = tuple(f"{other}-" for other in tables if other.startswith(f"{name}-"))
    pictures = sorted(folder.glob(f"{name}-*.png" if lines else f"{name}.png"))
    stems = {"rates": name, "trials": name, **({"ladder": name, "costs": name.removesuffix("-sweep")} if lines else {})}
    beside = {end: path for end, stem in stems.items() if (path := folder / f"{stem}-{end}.csv").exists()}
    files = [folder / f"{name}{end}" for end in (".md", ".csv", ".tex", ".pdf", "-runs.csv", "-logs.csv")]
    return Written(
        task=task,
        scale=scale,
        paper=folder.name,
        name=name,
        title=reader.text(folder / f"{name}.md").partition("\n")[0].removeprefix("# "),
        caption="" if lines else reader.text(folder / f"{name}.txt"),
        changed_settings=tuple(shlex.split(next((line.get("changed_settings") or "" for line in lines), ""))),
        cells=_cells(lines, task),
        runs=tuple(runs),
        files=tuple(path for path in (*files, *beside.values()) if path.exists()),
        beside=beside,
        pictures=tuple(path for path in pictures if not f"{path.stem}-".startswith(others)),
    )


def _cells(lines: list[Line], task: Task[Any]) -> tuple[WrittenCell, ...]:
    cells = []
    baselines = {line["column"]: line for line in lines if line["verdict"] == Verdict.baseline.value}
    for line in lines:
        baseline: Line = baselines.get(line["column"], {})
        metric = task.metrics[line["metric"]]
        unit = metric.difference.name
        paper, paper_baseline = _number(line["paper"]), _number(baseline.get("paper", ""))
        mean, low, high = (_number(line[key]) for key in (f"difference_{unit}", "interval_low", "interval_high"))
        # over the seeds that both have: a line's `n` counts its own
        n = len({*line["seeds"].split()} & {*baseline.get("seeds", "").split()})
        if baseline and high is not None and n < 2:
            raise ValueError(
                f"{line['row']} at {line['column']} has an interval, and {n} of its seeds the baseline has too"
            )
        cells.append(WrittenCell(
            row=line["row"],
            column=line["column"],
            metric=metric,
            baseline=baseline.get("row") or line.get("baseline") or "the baseline",
            verdict=Verdict(line["verdict"]),
            direction=0 if line is baseline else published_direction(paper, paper_baseline, metric),
            state=line["state"],
            difference=None if mean is None or not baseline else Paired(mean, low, high, n),
            paper_column=line["paper_column"],
            paper=paper,
            paper_difference=_number(line[f"paper_difference_{unit}"]),
            paper_baseline=paper_baseline,
            comparison=(line["metric"], line["run_ids"], baseline.get("run_ids", "")),
        ))  # fmt: skip
    adjusted = corrected({n: (cell.verdict, cell.difference, cell.metric.difference) for n, cell in enumerate(cells)})
    return tuple(replace(cell, adjusted=adjusted.get(number)) for number, cell in enumerate(cells))


def read_lines(path: Path) -> list[Line]:
    """The lines of a CSV; those of runs have all columns that readers need.

    Raises:
        FileNotFoundError: there is no file.
        UserError: it cannot be read, or is damaged.
    """
    try:
        lines: list[Line] = [*read_csv(path)]
        for number, line in enumerate(lines, 2):
            if any(None in pair for pair in line.items()):
                raise ValueError(f"line {number} has another number of fields than the first")
            if path.stem.endswith(("-runs", "-trials")):
                if absent := _OF_RUNS - line.keys():
                    raise ValueError(f"it has no column {min(absent)}")
                numbers = [float(line[key]) for key in _NUMBERS if line.get(key)]
                if not all(map(math.isfinite, [int(line["seed"]), *numbers])):
                    raise ValueError(f"line {number} has a number that is not finite")
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path} cannot be read: {error}", "comt report writes the table again.") from None
    return lines


def _number(text: str) -> float | None:
    return float(text) if text else None
