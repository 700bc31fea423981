"""The data frame of runs, one row per run: the only input of every exhibit. `<table>-runs.csv` is this frame.

Columns that begin with `_` are objects for exhibits, such as the run itself, and are not written.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.merge import LoadedGrid
from comt_cli.recipe.schema import Recipe
from comt_cli.report import format
from comt_cli.report.collect import Cell, Run, collect
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task
from comt_cli.tasks.base import Metric

if TYPE_CHECKING:
    import pandas as pd

Record = dict[Any, Any]  # a row of a frame by column
GRID = "grid."  # prefix of the columns with the values of a grid's keys
_OF_PAPER = ("data.", "model.", "train.steps=", "train.batch_size=")
"""Prefixes of changed settings with which a run can no longer be compared with the paper's number."""


@dataclass(frozen=True)
class TableInfo:
    """A recipe at one scale as exhibits need it: `attrs["table"]` of every frame of a table.

    `paper` is None if no number of a paper may be shown. By column, for all of the scale in order: `keys`, the shown
    keys of the task's `metrics`, and `compared`, the paper's column. `changed` are the `--set` arguments.
    """

    loaded: LoadedRecipe
    recipe: Recipe
    task: Task[Any]
    scale: str
    baseline: str
    paper: str | None
    keys: Mapping[str, str]
    metrics: Mapping[str, Metric]
    compared: Mapping[str, str | None]
    grid: LoadedGrid | None
    changed: tuple[str, ...]

    def __deepcopy__(self, _: Any) -> TableInfo:
        """Itself: pandas copies the attributes of a frame with every part of it."""
        return self


def table_info(loaded: LoadedRecipe, specs: Sequence[RunSpec]) -> TableInfo:
    """Resolve a recipe for these runs of one scale. A paper's numbers are not shown for another text (`files:GLOB`),
    size or length."""
    recipe, scale, task = loaded.recipe, specs[0].scale, specs[0].task
    changed, columns = loaded.changed(scale), loaded.recipe.columns_at(scale)
    is_own_text = any(":" in str(getattr(spec.settings.data, "corpus", "")) for spec in specs)
    is_published = loaded.is_published and not is_own_text and not any(each.startswith(_OF_PAPER) for each in changed)
    keys = {column: recipe.metric_at(scale, column) for column in columns}
    return TableInfo(
        loaded=loaded,
        recipe=recipe,
        task=task,
        scale=scale,
        baseline=recipe.baseline,
        paper=recipe.paper if is_published else None,
        keys=keys,
        metrics={column: task.metrics[key] for column, key in keys.items()},
        compared={column: loaded.compared_column(scale, column) for column in columns} if is_published else {},
        grid=loaded.grids.get(scale),
        changed=changed,
    )


def runs_frame(loaded: LoadedRecipe, specs: Sequence[RunSpec], runs: Path) -> pd.DataFrame:
    """Every planned run of a table, columns outermost, from the run directories below `runs`; for a grid all runs,
    first those of the selected configuration. Columns: those of `run_record`, and `_cell`; `attrs` have the `table` and
    `notes` on further runs in the folder. Raises `UserError` if runs of one column were trained on different data."""
    info = table_info(loaded, specs)
    # Runs at values that trials selected are stored with those at other values.
    choose_by = None if info.grid is None else info.grid.metric
    collection = collect(specs, runs, info.keys, choose_by, remarks=not loaded.has_trials(info.scale))
    collection.check_contents()
    rows, columns = list(info.recipe.rows), list(info.keys)
    ordered = sorted(collection.cells.values(), key=lambda cell: (columns.index(cell.column), rows.index(cell.row)))
    frame = frame_of([{**run_record(run, loaded.origin), "_cell": cell} for cell in ordered for run in cell.every])
    frame.attrs = {"table": info, "notes": collection.notes}
    return frame


def frame_of(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Records as a frame of Python values: whole numbers stay whole, and missing values are None."""
    import pandas as pd

    every = list(records)
    keys = list(dict.fromkeys(key for record in every for key in record))
    return pd.DataFrame([[record.get(key) for key in keys] for record in every], columns=keys, dtype=object)


def records_of(frame: pd.DataFrame) -> list[Record]:
    """The rows of a frame, without the columns that are not written."""
    records: list[Record] = frame[[key for key in frame if not str(key).startswith("_")]].to_dict("records")
    return records


def csv_text(records: Sequence[Mapping[str, Any]], digits: int = 8) -> str:
    """Records, at least one, as CSV under its keys; see `format.machine` for the numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(records[0])
    writer.writerows([format.machine(value, digits) for value in record.values()] for record in records)
    return text.getvalue()


def frame_csv(frame: pd.DataFrame, without: tuple[str, ...] = (), digits: int = 8) -> str:
    """The CSV of a frame, without columns that begin with one of `without`."""
    records = ({k: v for k, v in each.items() if not k.startswith(without)} for each in records_of(frame))
    return csv_text([*records], digits)


def cells_of(runs: pd.DataFrame) -> dict[tuple[str, str], Cell]:
    """The cells of a frame of runs by row and column, columns outermost."""
    return {(cell.row, cell.column): cell for cell in runs["_cell"]}


def run_record(run: Run, recipe: str) -> Record:
    """The record of a run of the recipe (`LoadedRecipe.origin`)."""
    spec, result, progress = run.spec, run.result or {}, run.progress
    if run.result is None and progress is not None:
        result = {"step": progress.step, "steps": progress.steps}
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
