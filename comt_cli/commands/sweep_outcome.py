"""What follows a sweep with trials: the table at every row's own best, the table of all rates, and the figure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comt_cli.commands.planning import Planned
    from comt_cli.report.sweep import SweepState
    from comt_cli.report.sweep_table import SweepEntry
    from comt_cli.report.write import Report, ReportFiles


def write_sweep(
    planned: Planned,
    runs: Path,
    results: Path,
    *,
    overwrite: bool = False,
    shown: Planned | None = None,
) -> tuple[Report | None, str | None]:
    """Write and print the results of a sweep whose data has its content (`planning.with_contents`); of
    the plan `shown` the rows and columns are printed, or all; all are written.

    `<name>-sweep.*` is the table at every row's own best, written as any other; beside it `<name>-sweep-rates.md` and
    `.csv`, `<name>-sweep-trials.csv` with every trial, and, of a grid of one key, the figure `<name>-sweep-figure.*`.

    Returns:
        The table at every row's own best, None while nothing is chosen; why it was not written, which was printed.

    Raises:
        UserError, StorageError: see `write_report`.
    """
    from comt_cli.commands.table_figures import write_costs_figure, write_ladder
    from comt_cli.report.sweep import read_sweep, whole_columns
    from comt_cli.report.sweep_table import sweep_entries
    from comt_cli.report.terminal import say, say_written
    from comt_cli.report.write import ReportFiles, print_report, write_report

    loaded, scale = planned.loaded, planned.scale
    state = read_sweep(loaded, scale, planned.specs, runs)
    report, unwritten = None, None
    if own := [spec for specs in whole_columns(state.shown["own"]).values() for spec in specs]:
        report = write_report(loaded, own, runs, results, overwrite=overwrite)
        unwritten = report.unwritten
    elif state.problems:
        unwritten = f"Nothing is chosen at scale {scale}."
    else:
        unwritten = f"Nothing is chosen at scale {scale} yet: no row has trials that have all ended."
    files = ReportFiles.of(results, scale, loaded)
    is_kept = files.csv.exists() and not overwrite if report is None else report.files is None
    if report is None and is_kept:
        kept = f"{files.csv} is kept: --results DIR writes these trials elsewhere, --overwrite in its place."
        unwritten = f"{unwritten} {kept}"
    entries = sweep_entries(state, runs, None if report is None else report.table)
    cells = {(spec.row, spec.column) for spec in (shown or planned).specs}
    _print(state, [entry for entry in entries if entry.cell in cells])
    if unwritten is not None:
        say(unwritten, sys.stderr)
    if report is not None:
        say("")
        part = report.table.only(*zip(*cells, strict=True))
        print_report(report, shown=part if part.entries else None)
        if report.files is not None:
            say_written(write_ladder(report.table, report.files) + write_costs_figure(report.table, report.files))
    say_written([] if is_kept else _write_beside(state, entries, files))
    return report, unwritten


def _print(state: SweepState, entries: Sequence[SweepEntry]) -> None:
    from rich.table import Table
    from rich.text import Text

    from comt_cli.report.sweep_table import sweep_texts, sweep_words
    from comt_cli.report.terminal import console_for, print_grid, say

    head, *lines = sweep_texts(entries, state)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left")
    for line in lines:
        table.add_row(*map(Text, line))
    console = console_for(None)
    # As wide as it takes: a name that is broken is none.
    needed = table.__rich_measure__(console, console.options.update(max_width=1000)).minimum
    console.width = max(console.width, 110, needed)
    say(f"{state.loaded.recipe.title} ({state.loaded.name}), sweep at scale {state.scale}")
    print_grid(console, table)
    for sentence in sweep_words(entries, state):
        say(sentence)


def _write_beside(state: SweepState, entries: Sequence[SweepEntry], files: ReportFiles) -> list[Path]:
    """The files beside the table; none while no trial has ended."""
    from comt_cli.files import write_text
    from comt_cli.recipe.grid import OF_TEST
    from comt_cli.report.collect import ENDED
    from comt_cli.report.csv_tables import runs_csv
    from comt_cli.report.sweep_figure import sweep_caption, sweep_frame, sweep_key
    from comt_cli.report.sweep_table import sweep_csv, sweep_markdown

    trials = [run for tuned in state.tuned.values() for run in tuned.runs]
    if not any(run.state in ENDED for run in trials):
        return []
    folder, stem = files.csv.parent, files.csv.stem
    texts = {
        f"{stem}-rates.md": sweep_markdown(entries, state),
        f"{stem}-rates.csv": sweep_csv(entries, state),
        f"{stem}-trials.csv": runs_csv(trials, state.loaded.origin, without=OF_TEST),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(folder / name, text)
    written = [folder / name for name in texts]
    if (key := sweep_key(state)) is not None:
        from comt_cli.report import figures

        frame, metric = sweep_frame(state, key), trials[0].spec.task.metrics[state.grid.metric]
        caption = sweep_caption(state, frame, key, metric.label)
        is_lower = metric.better == "lower"
        figure = figures.draw_sweep(frame, key, metric.label, lower=is_lower, decimals=metric.decimals)
        figures.sign(figure, caption.trained)
        written += figures.write_figure(figure, frame, folder, f"{stem}-figure", caption)
    return written


def sweep_as_json(
    planned: Planned, runs: Path, results: Path, *, overwrite: bool = False
) -> tuple[dict[str, Any], str | None]:
    """The table at every row's own best as plain data, with the sweep under `sweep`; and why it was not written."""
    from contextlib import redirect_stdout
    from io import StringIO

    from comt_cli.report.sweep import read_sweep
    from comt_cli.report.sweep_table import sweep_entries, sweep_records

    with redirect_stdout(StringIO()):
        report, unwritten = write_sweep(planned, runs, results, overwrite=overwrite)
    state = read_sweep(planned.loaded, planned.scale, planned.specs, runs)
    data = {"title": planned.loaded.recipe.title, "scale": planned.scale} if report is None else report.as_json()
    entries = sweep_entries(state, runs, None if report is None else report.table)
    return {**data, "sweep": sweep_records(entries, state)}, unwritten
