"""The data frame of runs, a row a run: the one input of every exhibit. `<table>-runs.csv` is this frame, written down.

Columns that begin with `_` are objects for exhibits, such as the run itself, and are not written.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report import format
from comt_cli.report.collect import Cell, Run, collect
from comt_cli.runs.plan import RunSpec

if TYPE_CHECKING:
    import pandas as pd

Record = dict[str, Any]
"""A row of a frame by column."""
GRID = "grid."
"""How the columns begin that have the values of a grid's keys."""


def runs_frame(loaded: LoadedRecipe, specs: Sequence[RunSpec], runs: Path) -> pd.DataFrame:
    """Every planned run of a table, columns outermost, from the run directories below `runs`. Of a grid all runs, those
    of the chosen point first.

    Columns: `row`, `column`, `seed`, `id`, `state`; with a grid `grid.<key>` and `chosen`; recipe, command, scale, hash
    of the data; the settings and results that the task names (metrics, costs, circumstances); `_run` and `_cell`.
    `attrs["notes"]` has what the folder has beside them.

    Raises:
        UserError: runs of one column were trained on different data.
    """
    scale = specs[0].scale
    metrics = {column: loaded.recipe.metric_at(scale, column) for column in loaded.columns(scale)}
    grid = loaded.grids.get(scale)
    # Beside runs at the values that trials chose lie those at other values.
    remarks = not loaded.has_trials(scale)
    collection = collect(specs, runs, metrics, None if grid is None else grid.metric, remarks=remarks)
    collection.check_contents()
    rows, columns = list(loaded.recipe.rows), list(metrics)
    ordered = sorted(collection.cells.values(), key=lambda cell: (columns.index(cell.column), rows.index(cell.row)))
    frame = frame_of(record for cell in ordered for record in cell_records(cell, loaded.origin))
    frame.attrs["notes"] = collection.notes
    return frame


def frame_of(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Records as a frame of Python's own values: whole numbers stay whole, and what a record lacks is None."""
    import pandas as pd

    every = list(records)
    keys = list(dict.fromkeys(key for record in every for key in record))
    return pd.DataFrame([[record.get(key) for key in keys] for record in every], columns=keys, dtype=object)


def rows_of(frame: pd.DataFrame) -> list[Record]:
    """The rows of a frame, with the objects."""
    keys = [str(key) for key in frame.columns]
    return [dict(zip(keys, values, strict=True)) for values in frame.itertuples(index=False, name=None)]


def records_of(frame: pd.DataFrame) -> list[Record]:
    """The rows of a frame, without the columns that are not written."""
    return [{key: value for key, value in each.items() if not key.startswith("_")} for each in rows_of(frame)]


def part_of(frame: pd.DataFrame, mask: Any) -> pd.DataFrame:
    """The rows of a frame for which `mask` is true, with the attributes of the whole."""
    part: pd.DataFrame = frame[mask]
    part.attrs = dict(frame.attrs)
    return part


def csv_text(records: Sequence[Mapping[str, Any]], digits: int = 8) -> str:
    """At least one record as CSV under its keys; see `format.machine` for the numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(records[0])
    writer.writerows([format.machine(value, digits) for value in record.values()] for record in records)
    return text.getvalue()


def frame_csv(frame: pd.DataFrame, without: tuple[str, ...] = (), digits: int = 8) -> str:
    """What is written of a frame; columns whose names begin as one of `without` are left out."""
    records = records_of(frame)
    return csv_text([{k: v for k, v in each.items() if not k.startswith(without)} for each in records], digits)


def runs_csv(runs: Iterable[Run], recipe: str) -> str:
    """Runs as the CSV beside a figure of them; `recipe` is the file (`LoadedRecipe.origin`)."""
    return frame_csv(frame_of(_record(run, recipe) for run in runs))


def cells_of(runs: pd.DataFrame) -> dict[tuple[str, str], Cell]:
    """The cells of a frame of runs by row and column, columns outermost."""
    return {(cell.row, cell.column): cell for cell in runs["_cell"]}


def cell_records(cell: Cell, recipe: str) -> list[Record]:
    """The records of a cell's runs."""
    return [{**_record(run, recipe), "_cell": cell} for run in cell.every]


def _record(run: Run, recipe: str) -> Record:
    spec, result = run.spec, run.result
    if result is None and run.progress is not None:
        result = {"step": run.progress.step, "steps": run.progress.steps}
    result = result or {}
    tried = {**{f"{GRID}{key}": value for key, value in spec.point.items()}, "chosen": run.chosen}
    task, train = spec.task, spec.settings.train
    shown = list(task.result_keys)
    shown += (["chosen_step"] if train.select == "best" else []) + (["averaged_steps"] if train.averaged_steps else [])
    shown += [key for key in task.metrics if key not in shown and key in result]
    return {
        **{"row": spec.row, "column": spec.column, "seed": spec.seed, "id": spec.id, "state": run.state.value},
        **(tried if spec.point else {}),
        "recipe": recipe,
        "command": spec.command,
        "scale": spec.scale,
        "data_content": run.content if run.result else None,
        **task.columns(spec.settings),
        **{key: result.get(key) for key in shown},
        "_run": run,
    }
