"""What follows a sweep with trials: the table at every row's own best, the table of all rates, and the figure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from comt_cli.commands.planning import Planned
    from comt_cli.report.write import Report


def write_sweep(
    planned: Planned,
    runs: Path,
    results: Path,
    *,
    overwrite: bool = False,
    shown: Planned | None = None,
) -> str | None:
    """Write and print the results of a sweep whose data has its content (`planning.with_contents`); of
    the plan `shown` the rows and columns are printed, or all; all are written.

    `<name>-sweep.*` is the table at every row's own best, written as any other; beside it `<name>-sweep-rates.md` and
    `.csv`, `<name>-sweep-trials.csv` with every trial, and, of a grid of one key, the figure `<name>-sweep-figure.*`.

    Returns:
        Why the table was not written, which was printed; None where it was.

    Raises:
        UserError, StorageError: see `write_report`.
    """
    from comt_cli.report.terminal import say, say_written
    from comt_cli.report.write import print_report

    report, unwritten, rates, written = _write(planned, runs, results, overwrite=overwrite)
    cells = {(spec.row, spec.column) for spec in (shown or planned).specs}
    _print(planned, rates, cells)
    if unwritten is not None:
        say(unwritten, sys.stderr)
    if report is not None:
        say("")
        print_report(report, shown=cells)
    say_written(written)
    return unwritten


def sweep_as_json(
    planned: Planned, runs: Path, results: Path, *, overwrite: bool = False
) -> tuple[dict[str, Any], str | None]:
    """The same as plain data, with the sweep under `sweep`; and why the table was not written."""
    from comt_cli.report.frame import records_of
    from comt_cli.report.terminal import say

    report, unwritten, rates, _ = _write(planned, runs, results, overwrite=overwrite)
    if unwritten is not None:
        say(unwritten, sys.stderr)
    data = {"title": planned.loaded.recipe.title, "scale": planned.scale} if report is None else report.as_json()
    return {**data, "sweep": records_of(rates)}, unwritten


def _write(
    planned: Planned, runs: Path, results: Path, *, overwrite: bool
) -> tuple[Report | None, str | None, pd.DataFrame, list[Path]]:
    """The table at every row's own best, None while nothing is chosen; why it was not written; the frame of rates; and
    the files beside the table, of which there are none while no trial has ended."""
    from comt_cli.files import write_text
    from comt_cli.recipe.grid import OF_TEST
    from comt_cli.report.collect import ENDED
    from comt_cli.report.exhibits.sweep import Rates
    from comt_cli.report.frame import frame_csv
    from comt_cli.report.sweep import read_sweep, sweep_frame, whole_columns
    from comt_cli.report.write import ReportFiles, write_exhibits, write_report

    loaded, scale = planned.loaded, planned.scale
    state = read_sweep(loaded, scale, planned.specs, runs)
    files = ReportFiles.of(results, scale, loaded)
    report: Report | None = None
    written: list[Path] = []
    if own := [spec for specs in whole_columns(state.shown["own"]).values() for spec in specs]:
        report = write_report(loaded, own, runs, results, overwrite=overwrite)
        unwritten, is_kept = report.unwritten, report.files is None
        if report.files is not None:
            written += write_exhibits("table", report.runs, loaded, files)
    else:
        yet = "." if state.problems else " yet: no row has trials that have all ended."
        unwritten, is_kept = f"Nothing is chosen at scale {scale}{yet}", files.csv.exists() and not overwrite
        if is_kept:
            unwritten += f" {files.csv} is kept: --results DIR writes these trials elsewhere, --overwrite in its place."
    frame = sweep_frame(state, runs)
    trials = frame[frame["place"] == "trial"]
    if not is_kept and any(run.state in ENDED for run in trials["_run"]):
        written += write_exhibits("sweep", frame, loaded, files)
        path = files.csv.with_name(f"{files.csv.stem}-trials.csv")
        write_text(path, frame_csv(trials.drop(columns="place"), without=OF_TEST))
        written.append(path)
    return report, unwritten, Rates().frame(frame, loaded), written


def _print(planned: Planned, rates: pd.DataFrame, cells: set[tuple[str, str]]) -> None:
    from comt_cli.report.exhibits.sweep import Rates, texts
    from comt_cli.report.frame import part_of
    from comt_cli.report.terminal import print_texts, say

    shown = [cell in cells for cell in zip(rates["row"], rates["column"], strict=True)]
    head, *lines = texts(part_of(rates, shown))
    say(f"{planned.loaded.recipe.title} ({planned.loaded.name}), sweep at scale {planned.scale}")
    print_texts(head, lines, most=110)
    for sentence in Rates().sentences(rates):  # what was not chosen is why no whole table is, whatever is shown
        say(sentence)
