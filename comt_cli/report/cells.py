"""The cells of a table: every row under every column against its baseline and the paper, from the frame of runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.grid import OF_TEST
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report.collect import Cell, Run
from comt_cli.report.frame import GRID, Record, cells_of, frame_of, part_of, rows_of
from comt_cli.report.logs import curve
from comt_cli.report.statistics import Paired, detectable, difference, p_value, paired_difference, summarise
from comt_cli.report.verdict import Outcome, corrected, judge, published_direction
from comt_cli.report.words import cell_notes, grid_notes, of_table, other_settings, run_notes, selection_notes
from comt_cli.runs.directory import RunState
from comt_cli.tasks.base import DifferenceUnit, Metric

if TYPE_CHECKING:
    import pandas as pd

_OF_PAPER = ("data.", "model.", "train.steps=", "train.batch_size=")
"""Changed settings, by their beginning, with which a run is no longer the one that the paper's number is of."""


def cells_frame(runs: pd.DataFrame, loaded: LoadedRecipe) -> pd.DataFrame:
    """One record a cell, columns outermost: the table's CSV, with the objects that it was computed from.

    `_cell`, `_metric`; `_ours` (`Summary`), `_apart` (`Paired`, the difference to the baseline), `_detectable`,
    `_equal_time`, `_verdict`; `_paper_apart` and `_direction` of the paper's difference, 0 where it shows none; `_best`
    asks for bold; `_remarks` are the footnotes of the cell; `_costs` those of a training step (`costs.with_costs`).
    `attrs` describe the table (`_attrs`).
    """
    cells, scale = cells_of(runs), str(runs["scale"].iloc[0])
    published, changed = is_published(runs, loaded), loaded.changed(scale)
    compared = {column: loaded.compared_column(scale, column) if published else None for _, column in cells}
    found = []
    for (row, column), cell in cells.items():
        note = None if changed else loaded.recipe.rows[row].notes.get(scale)  # on runs with the recipe's settings
        found.append(_record(loaded, cell, cells.get((loaded.recipe.baseline, column)), compared[column], note))
    adjusted = corrected({n: (each["_verdict"], each["_apart"], each["_metric"].difference)
                          for n, each in enumerate(found)})  # fmt: skip
    costs = {(row, column): each for row, column, each in
             zip(runs["row"], runs["column"], runs["_costs"], strict=True)} if "_costs" in runs else {}  # fmt: skip
    for number, record in enumerate(found):
        record |= {"p_value_holm": adjusted.get(number)}
        record |= {"recipe": loaded.origin, "changed_settings": shlex.join(changed)}
        record |= {"_costs": costs.get((record["row"], record["column"])), "_best": _is_best(record, found)}
    frame = frame_of(found)
    frame.attrs |= _attrs(runs, loaded, cells, published=published)
    frame.attrs["trained"] = of_table(frame)
    return frame


def _attrs(
    runs: pd.DataFrame, loaded: LoadedRecipe, cells: Mapping[tuple[str, str], Cell], *, published: bool
) -> dict[str, Any]:
    """The table as a whole: its names and those of its recipe, seeds, notes, devices, commits, data.

    `metrics` and `specs` have by column the key of what it shows and the baseline's run (the first row's, where the
    baseline was not selected). `paper` and `printed_table` are None where no number of a paper is shown; `overrides`
    are the `--set` arguments.
    """
    recipe, scale, every = loaded.recipe, str(runs["scale"].iloc[0]), list(runs["_run"])
    rows, columns = (list(dict.fromkeys(name[axis] for name in cells)) for axis in (0, 1))
    metrics = {column: recipe.metric_at(scale, column) for column in columns}
    grid, changed = loaded.grids.get(scale), loaded.changed(scale)
    first = recipe.baseline if recipe.baseline in rows else rows[0]
    results = [run for run in every if run.result]
    return {
        "title": recipe.title,
        "paper": recipe.paper if published else None,
        "printed_table": recipe.table if published else None,
        "folder": loaded.folder,
        "name": loaded.outputs(scale),
        "recipe_file": loaded.file,
        "origin": loaded.origin,
        "scale": scale,
        "scale_description": recipe.scales[scale].description,
        "baseline": recipe.baseline,
        "task": every[0].spec.task,
        "metrics": metrics,
        "specs": {column: (cells.get((first, column)) or _first(cells, column)).runs[0].spec for column in columns},
        "seeds": tuple(sorted({run.spec.seed for run in every})),
        "overrides": changed,
        "is_ladder": recipe.ladder,
        "notes": (
            *selection_notes(loaded, rows, columns, scale, changed),
            *(grid_notes(grid, metrics.values()) if grid is not None else ()),
            *other_settings(sorted((run.spec for run in every), key=lambda spec: rows.index(spec.row)),
                                  recipe.baseline),
            *run_notes(every, metrics),
            *runs.attrs["notes"],
        ),
        "devices": tuple(sorted(_distinct(every, "device"))),
        "commits": tuple(sorted(_distinct(every, "git_commit"))),
        "contents": tuple(dict.fromkeys(run.content for run in results if run.content)),
        "costs_devices": runs.attrs.get("costs_devices", ()),
        "costs_commits": runs.attrs.get("costs_commits", ()),
    }  # fmt: skip


def _first(cells: Mapping[tuple[str, str], Cell], column: str) -> Cell:
    return next(cell for (_, each), cell in cells.items() if each == column)


def _distinct(runs: Iterable[Run], key: str) -> set[str]:
    return {str(run.result[key]) for run in runs if run.result and run.result.get(key) is not None}


def is_published(runs: pd.DataFrame, loaded: LoadedRecipe) -> bool:
    """Whether a paper's numbers may be shown with these runs: not where they have a text of one's own (`files:GLOB`),
    or another size or length."""
    changed = loaded.changed(str(runs["scale"].iloc[0]))
    is_own_text = any(":" in str(getattr(run.spec.settings.data, "corpus", "")) for run in runs["_run"])
    return loaded.is_published and not is_own_text and not any(each.startswith(_OF_PAPER) for each in changed)


def _record(loaded: LoadedRecipe, cell: Cell, base: Cell | None, compared: str | None, note: str | None) -> Record:
    recipe, spec = loaded.recipe, cell.runs[0].spec
    row, column, task = cell.row, cell.column, spec.task
    key = recipe.metric_at(spec.scale, column)
    metric: Metric = task.metrics[key]
    unit, is_baseline, own = metric.difference, row == recipe.baseline, recipe.rows[row]
    values, theirs = cell.values(key), base.values(key) if base else {}
    ours = summarise(list(values.values()))
    apart = None if is_baseline else paired_difference(values, theirs, unit)
    paper, paper_base = (each.paper.get(compared) if compared else None for each in (own, recipe.rows[recipe.baseline]))
    has_apart = not (is_baseline or metric.collapsed(paper) or metric.collapsed(paper_base))
    paper_apart = difference(paper, paper_base, unit) if has_apart else None
    verdict = judge(
        is_baseline=is_baseline,
        ours=_outcome(cell, values),
        baseline=_outcome(base, theirs),
        difference=apart,
        paper=paper,
        paper_baseline=paper_base,
        metric=metric,
    )
    found = None if apart is None else detectable(apart, unit)
    equal_time = None if apart is None or base is None else at_equal_time(cell, base, key, unit)
    beside = None if metric.beside is None else summarise(list(cell.values(metric.beside).values()))
    note = note if values else None
    point = dict.fromkeys(spec.point) | dict(cell.point or {}) if cell.points else {}
    return {
        "row": row,
        "column": column,
        "metric": key,
        "scale": spec.scale,
        "mean": ours and ours.mean,
        "stderr": ours and ours.stderr,
        **({"median": ours and ours.median} if task.shows_median else {}),
        "n": ours.n if ours else 0,
        "seeds": " ".join(map(str, values)),
        "state": cell.state,
        **{f"{GRID}{name}": value for name, value in point.items()},
        **({} if metric.beside is None else {metric.beside: beside and beside.mean}),
        "baseline": recipe.baseline,
        "paper_column": compared,
        "paper": paper,
        **_paired(apart, f"difference_{unit.name}", "interval_"),
        "p_value": None if apart is None else p_value(apart, unit),
        "p_value_holm": None,
        "detectable_low": found and found[0],
        "detectable_high": found and found[1],
        # most runs are evaluated at their end alone
        **(_paired(equal_time, f"equal_time_{unit.name}", "equal_time_") if equal_time else {}),
        f"paper_difference_{unit.name}": paper_apart,
        **({} if own.published is None else {"published_percent": own.published.percent}),
        "verdict": verdict.value,
        **({} if note is None else {"note": note}),
        "extra_parameters_percent": cell.average("extra_parameters_percent"),
        "paper_increase": loaded.printed_increase(spec.scale, row, column) if compared else None,
        task.unit.per_second: cell.average(task.unit.per_second),
        "devices": "; ".join(sorted(_distinct(cell.runs, "device"))),
        "git_commits": "; ".join(sorted(_distinct(cell.runs, "git_commit"))),
        "data_contents": " ".join(dict.fromkeys(run.content for run in cell.runs if run.result and run.content)),
        "run_ids": " ".join(run.spec.id for run in cell.runs if run.result is not None and not cell.is_open),
        "_cell": cell,
        "_metric": metric,
        "_ours": ours,
        "_apart": apart,
        "_detectable": found,
        "_equal_time": equal_time,
        "_verdict": verdict,
        "_paper_apart": paper_apart,
        "_direction": 0 if is_baseline else published_direction(paper, paper_base, metric),
        "_remarks": tuple(cell_notes(cell, key, apart, metric, paper, own.published, note)),
    }


def _paired(apart: Paired | None, mean: str, ends: str) -> dict[str, float | None]:
    numbers = (None, None, None) if apart is None else (apart.mean, apart.low, apart.high)
    return dict(zip((mean, f"{ends}low", f"{ends}high"), numbers, strict=True))


def _outcome(cell: Cell | None, values: Mapping[int, float]) -> Outcome:
    return Outcome(len(values), len(cell.having(RunState.diverged)) if cell and not cell.is_open else 0)


def _is_best(record: Record, cells: Sequence[Record]) -> bool:
    """Whether a cell has the best mean of its column and its difference to the baseline is a resolved improvement.

    Only cells of which every seed has a value compete, and the baseline must be one of them.
    """
    sign = 1 if record["_metric"].better == "higher" else -1
    whole = {each["row"]: sign * each["mean"] for each in cells
             if each["column"] == record["column"] and each["n"] == len(each["_cell"].runs)}  # fmt: skip
    apart: Paired | None = record["_apart"]
    is_better = apart is not None and apart.excludes_zero and sign * apart.mean > 0
    is_compared = {record["row"], record["baseline"]} <= whole.keys()
    return is_better and is_compared and whole[record["row"]] == max(whole.values())


def only(cells: pd.DataFrame, rows: Iterable[str], columns: Iterable[str]) -> pd.DataFrame:
    """The part of a table that was chosen to be shown; its numbers are those of the whole."""
    return part_of(cells, cells["row"].isin({*rows}) & cells["column"].isin({*columns}))


def under_columns(cells: pd.DataFrame) -> dict[str, list[Record]]:
    """The records of a table by column."""
    found: dict[str, list[Record]] = {}
    for record in rows_of(cells):
        found.setdefault(record["column"], []).append(record)
    return found


def at_equal_time(cell: Cell, baseline: Cell, metric: str, unit: DifferenceUnit) -> Paired | None:
    """The difference to the baseline over common seeds, when all of them have trained as long as the quickest took.

    Time is that of training as it was measured, without evaluations. Between two evaluations the metric is taken from
    the straight line, in logarithms where differences are ratios. Of a test metric the same one on validation data is
    read.

    None where a seed diverged or has not ended, where a log has no evaluation before and after that time, and where the
    table shows the best or averaged weights: logs have those of the step.
    """
    every = [run for each in (cell, baseline) for run in each.runs]
    if cell.is_open or baseline.is_open or any(run.state is not RunState.done for run in every):
        return None
    trains = [run.spec.settings.train for run in every]
    # Without evaluations between, logs have the end alone.
    if any(each.evaluate_every is None or each.select == "best" or each.averaged_steps for each in trains):
        return None
    prefix = next((each for each in OF_TEST if metric.startswith(each)), "")
    key = f"validation_{metric.removeprefix(prefix)}"
    ours, theirs = (
        {run.spec.seed: curve(run.directory, run.result or {}, "time", key) for run in each.runs}
        for each in (cell, baseline)
    )
    seeds = ours.keys() & theirs.keys()
    curves = [each[seed] for each in (ours, theirs) for seed in seeds]
    if not curves or not all(curves):
        return None
    used = min(points[-1][0] for points in curves)
    if any(used < points[0][0] for points in curves):
        return None
    read = [{seed: read_at(each[seed], used, logarithms=unit.is_relative) for seed in seeds} for each in (ours, theirs)]
    return paired_difference(read[0], read[1], unit)


def read_at(points: Sequence[tuple[float, float]], used: float, *, logarithms: bool) -> float:
    """The value of a curve at a time not before its first point, by the straight line between its neighbours, of the
    values or of their logarithms; after its last point the last value."""
    import numpy as np

    times, values = zip(*points, strict=True)
    if logarithms:
        return math.exp(np.interp(used, times, np.log(values)))
    return float(np.interp(used, times, values))
