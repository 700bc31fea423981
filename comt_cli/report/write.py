"""From run directories to the files of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from comt_cli.errors import StorageError
from comt_cli.files import write_text
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.plan import RunSpec
from comt_cli.report import words
from comt_cli.report.csv_tables import records, runs_csv, table_csv
from comt_cli.report.latex import latex
from comt_cli.report.markdown import markdown
from comt_cli.report.table import Table, build_table
from comt_cli.report.terminal import print_table


@dataclass(frozen=True)
class ReportFiles:
    """What a table is written as: `<results>/<scale>/<paper>/<table>.*` and the runs behind it."""

    csv: Path
    runs_csv: Path
    markdown: Path
    latex: Path

    @classmethod
    def of(cls, results: Path, table: Table) -> ReportFiles:
        """The paths; slashes within a name become dashes, so that a recipe cannot name a folder outside `results`."""
        folder = results / table.scale / table.paper.replace("/", "-")
        name = table.name.replace("/", "-")
        return cls(folder / f"{name}.csv", folder / f"{name}-runs.csv", folder / f"{name}.md", folder / f"{name}.tex")


@dataclass(frozen=True)
class Report:
    """A table and where it was written; `files` is None where no run has ended yet and nothing was written."""

    table: Table
    files: ReportFiles | None

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
            "metric": table.metric.name,
            "direction": table.metric.direction,
            "baseline": table.baseline,
            "seeds": list(table.seeds),
            "cells": records(table),
            "verdict": words.verdict(table),
            "footnotes": list(table.footnotes),
            "notes": list(table.notes),
            "files": {key: str(path) for key, path in vars(files).items()} if files else None,
        }


def write_report(
    loaded: LoadedRecipe, specs: Sequence[RunSpec], runs: Path, results: Path, overrides: Sequence[str] = ()
) -> Report:
    """Make the table of a plan from the run directories below `runs` and write it below `results`.

    Where no run has ended, nothing is written: an empty table must not take the place of one that says something.
    `overrides` are the `--set` arguments behind `specs`; the table names them.

    Raises:
        StorageError: a file cannot be written. Every file is whole: the old one or the new.
    """
    table = build_table(loaded, specs, runs, overrides)
    if not any(run.result for entry in table.entries.values() for run in entry.cell.runs):
        return Report(table, None)
    files = ReportFiles.of(results, table)
    try:
        files.csv.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {files.csv.parent}: {error.strerror}") from error
    write_text(files.csv, table_csv(table))
    write_text(files.runs_csv, runs_csv(table))
    write_text(files.markdown, markdown(table))
    write_text(files.latex, latex(table))
    return Report(table, files)


def print_report(report: Report, file: IO[str] | None = None) -> None:
    """Print the table (to standard output if `file` is None), then where it was written."""
    print_table(report.table, file)
    if report.files is None:
        print("No run has ended yet: nothing was written.", file=file)
    for path in vars(report.files).values() if report.files else ():
        print(f"wrote {path}", file=file)
