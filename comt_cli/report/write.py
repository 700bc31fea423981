"""From run directories to the files of a table."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from comt_cli.errors import StorageError
from comt_cli.files import write_text
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.schema import DIRECTION
from comt_cli.recipe.shared_runs import link_runs
from comt_cli.report import format, words
from comt_cli.report.csv_tables import records, runs_csv, table_csv
from comt_cli.report.latex import latex
from comt_cli.report.markdown import markdown
from comt_cli.report.table import Table, build_table
from comt_cli.report.terminal import print_table


def place(results: Path, scale: str, paper: str, name: str) -> tuple[Path, str]:
    """Folder and stem of the files of a table or figure.

    Slashes within a name become dashes, so that a recipe, which may come from anywhere, cannot name a folder outside
    `results`.
    """
    return results / scale / paper.replace("/", "-"), name.replace("/", "-")


@dataclass(frozen=True)
class ReportFiles:
    """What a table is written as: `<results>/<scale>/<paper>/<table>.*` and the runs behind it."""

    csv: Path
    runs_csv: Path
    markdown: Path
    latex: Path

    @classmethod
    def of(cls, results: Path, table: Table) -> ReportFiles:
        """The paths."""
        folder, name = place(results, table.scale, table.paper, table.name)
        return cls(folder / f"{name}.csv", folder / f"{name}-runs.csv", folder / f"{name}.md", folder / f"{name}.tex")


@dataclass(frozen=True)
class Report:
    """A table and where it was written; `files` is None where nothing was, and `unwritten` then says why."""

    table: Table
    files: ReportFiles | None
    unwritten: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The table as plain data: its cells as in the CSV, its remarks, the paths."""
        table = self.table
        files = self.files
        return {
            "title": table.title,
            "paper": table.paper,
            "table": table.name,
            "recipe": table.recipe_file,
            "scale": table.scale,
            "metric": table.metric,
            "direction": DIRECTION[table.metric],
            "baseline": table.baseline,
            "seeds": list(table.seeds),
            "cells": records(table),
            "verdict": words.verdict(table),
            "footnotes": list(table.footnotes),
            "notes": list(table.notes),
            "files": {key: str(path) for key, path in vars(files).items()} if files else None,
            "unwritten": self.unwritten,
        }


def write_report(
    loaded: LoadedRecipe,
    specs: Sequence[RunSpec],
    runs: Path,
    results: Path,
    overrides: Sequence[str] = (),
    *,
    overwrite: bool = False,
) -> Report:
    """Make the table of a plan from the run directories below `runs` and write it below `results`.

    Where no run has ended, nothing is written: an empty table must not take the place of one that says something. Nor
    must one of fewer seeds, rows or columns, or of changed settings, take the place of one that cost more, unless
    `overwrite`. `overrides` are the `--set` arguments behind `specs`; the table names them.

    Raises:
        StorageError: a file cannot be written. Every file is whole: the old one or the new.
    """
    with contextlib.suppress(StorageError):  # runs that may only be read keep the links they have
        link_runs(specs, runs)
    table = build_table(loaded, specs, runs, overrides)
    if not any(run.result for entry in table.entries.values() for run in entry.cell.runs):
        unwritten = (
            f"No run with these settings has ended yet at scale {table.scale}: nothing was written. "
            "--set, --scale and --seeds, as they were given to the training, show others."
        )
        return Report(table, None, unwritten)
    files = ReportFiles.of(results, table)
    lost = None if overwrite else _would_be_lost(files.csv, table, changed=bool(overrides))
    if lost is not None:
        way_out = "Nothing was written: --results DIR writes this table elsewhere, --overwrite in its place."
        return Report(table, None, f"{files.csv} {lost}. {way_out}")
    try:
        files.csv.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {files.csv.parent}: {error.strerror}") from error
    write_text(files.csv, table_csv(table))
    write_text(files.runs_csv, runs_csv(table.runs()))
    write_text(files.markdown, markdown(table))
    write_text(files.latex, latex(table))
    return Report(table, files)


def _would_be_lost(path: Path, table: Table, *, changed: bool) -> str | None:
    """What the table at `path` holds that `table` has not: finished runs of a cell, where these are fewer; or, where
    settings were `changed` on the command line, other runs. None if nothing would be lost.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        return f"cannot be read ({error})"
    for line in csv.DictReader(io.StringIO(text)):
        there = set((line.get("run_ids") or "").split())
        entry = table.entries.get((line.get("row") or "", line.get("column") or ""))
        here = {run.spec.id for run in entry.cell.runs if run.result is not None} if entry else set()
        cell = f"{line.get('row')} at {line.get('column')}"
        if len(there) > len(here):
            return f"has {format.plural(len(there), 'finished run')} of {cell}, and this table {len(here)}"
        if changed and there - here:
            return f"has runs of {cell} with other settings"
    return None


def print_report(report: Report, file: IO[str] | None = None) -> None:
    """Print the table (to standard output if `file` is None), then where it was written."""
    print_table(report.table, file)
    if report.unwritten is not None:
        print(report.unwritten, file=file)
    for path in vars(report.files).values() if report.files else ():
        print(f"wrote {path}", file=file)
