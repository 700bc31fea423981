"""A table as far as it is: the metric where runs are done, how far the others are, in few enough letters for a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from comt_cli.report import format
from comt_cli.report.collect import Cell, Collection, Run
from comt_cli.report.statistics import summarise
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import point_in_words

_OTHERS = (RunState.diverged, RunState.running, RunState.unfinished, RunState.missing)


def cells_as_json(collection: Collection, metrics: Mapping[str, str]) -> list[dict[str, Any]]:
    """One dictionary a cell, in the order of the table: mean, standard error and number of the runs that are done, and
    how many stand otherwise. `metrics` says by column what a cell shows. With a grid, what was chosen, and all its runs
    are counted."""
    rows = []
    for cell in collection.cells.values():
        done = summarise(list(cell.values(metrics[cell.column]).values()))
        rows.append(
            {
                "row": cell.row,
                "column": cell.column,
                "metric": metrics[cell.column],
                "mean": None if done is None else done.mean,
                "stderr": None if done is None else done.stderr,
                **({} if cell.choice is None else {"grid": cell.choice.point}),
                "runs": {state.value: count for state in RunState if (count := _count(cell, state))},
            }
        )
    return rows


def _count(cell: Cell, state: RunState) -> int:
    return sum(run.state is state for run in cell.every)


def cell_text(cell: Cell, metric: str) -> str:
    """`26.73 ± 0.12 (3)`; of a cell that is not done what there is: `26.51 (2), running 120/480, 3 min to go`."""
    done = summarise(list(cell.values(metric).values()))
    parts = []
    if cell.is_open and cell.having(RunState.done):
        parts.append(f"{len(cell.having(RunState.done))} of {len(cell.runs)} done")
    if done is not None:
        decimals = cell.runs[0].spec.task.metrics[metric].decimals
        parts.append(format.value(done.mean, decimals) if len(cell.runs) == 1 else format.summary(done, decimals))
    for state in _OTHERS:
        runs = cell.having(state)
        if state in (RunState.missing, RunState.diverged) and runs:
            parts.append(state.value if len(runs) == len(cell.runs) else f"{len(runs)} {state}")
        else:
            parts += [_how_far(run) for run in runs]
    if cell.choice is not None and cell.choice.point is not None and done is not None:
        parts.append(point_in_words(cell.choice.point))
    return ", ".join(parts) or "done, without a value"


def _how_far(run: Run) -> str:
    progress, steps = run.progress, run.spec.settings.train.steps
    text = f"{run.state} {progress.step if progress is not None else 0:,}/{steps:,}"
    if run.state is RunState.running and progress is not None and progress.eta_seconds is not None:
        text += f", {format.duration(progress.eta_seconds)} to go"
    return text


def print_progress(
    collection: Collection,
    metrics: Mapping[str, str],
    rows: Sequence[str],
    columns: Sequence[str],
    file: IO[str] | None = None,
) -> None:
    """Print the cells as a grid of `rows` x `columns`."""
    from rich.table import Table
    from rich.text import Text

    from comt_cli.report.terminal import console_for, print_grid

    console = console_for(file)
    grid = Table(box=None, pad_edge=False, show_edge=False)
    grid.add_column("", overflow="fold")
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        cells = (collection.cells.get((row, column)) for column in columns)
        grid.add_row(
            Text(row), *(Text("" if cell is None else cell_text(cell, metrics[cell.column])) for cell in cells)
        )
    print_grid(console, grid, indent="  ")
