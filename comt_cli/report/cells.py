"""The cells of a table: every row under every column relative to its baseline and the paper, from the frame of runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.merge import OF_TEST
from comt_cli.report import format
from comt_cli.report.caption import notes
from comt_cli.report.collect import ENDED, Cell, Run, curve
from comt_cli.report.frame import GRID, Record, TableInfo, cells_of, frame_of
from comt_cli.report.statistics import (
    Paired,
    Verdict,
    corrected,
    detectable,
    difference,
    judge,
    p_value,
    paired_difference,
    published_direction,
    summarise,
)
from comt_cli.report.words import circumstances, other_settings, tried_values
from comt_cli.runs.directory import FEW, PYTORCH, RunState
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.tasks.base import DifferenceUnit

if TYPE_CHECKING:
    import pandas as pd


def cells_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """One record per cell, columns outermost: the table's CSV, with the objects behind its values.

    `_cell`, `_metric`; `_ours` (`Summary`), `_apart` (`Paired`, the difference to the baseline), `_detectable`,
    `_equal_time`, `_verdict`; `_paper_apart` and `_direction` of the paper's difference, 0 if it has none; `_best` for
    bold type; `_remarks`, the footnotes of the cell; `_costs` of a training step (`costs.with_costs`).

    `attrs` have the `table`, and of these runs: `specs`, by column the baseline's (the first row's, if the baseline was
    not selected), `seeds`, the text `trained`, notes, devices, commits and data hashes.
    """
    info, cells, every = runs.attrs["table"], cells_of(runs), list(runs["_run"])
    found = [_record(info, cell, cells.get((info.baseline, column))) for (_, column), cell in cells.items()]
    adjusted = corrected({n: (each["_verdict"], each["_apart"], each["_metric"].difference)
                          for n, each in enumerate(found)})  # fmt: skip
    costs = dict(zip(zip(runs["row"], runs["column"], strict=True), runs["_costs"], strict=True)
                 if "_costs" in runs else ())  # fmt: skip
    for number, record in enumerate(found):
        record |= {"p_value_holm": adjusted.get(number)}
        record |= {"recipe": info.loaded.origin, "changed_settings": shlex.join(info.changed)}
        record |= {"_costs": costs.get((record["row"], record["column"])), "_best": _is_best(record, found)}
    specs = {}
    for (row, column), cell in cells.items():
        if row == info.baseline or column not in specs:
            specs[column] = cell.runs[0].spec
    seeds = tuple(sorted({run.spec.seed for run in every}))
    frame = frame_of(found)
    frame.attrs = {
        **runs.attrs,
        "specs": specs,
        "seeds": seeds,
        "trained": _of_table(specs, cells, seeds, info),
        "notes": (*_table_notes(every, info), *runs.attrs["notes"]),
        "devices": _distinct(every, "device"),
        "commits": _distinct(every, "git_commit"),
        "contents": list(dict.fromkeys(run.content for run in every if run.result and run.content)),
    }
    return frame


def _distinct(runs: Iterable[Run], key: str) -> list[str]:
    return sorted({str(run.result[key]) for run in runs if run.result and run.result.get(key) is not None})


def _record(info: TableInfo, cell: Cell, base: Cell | None) -> Record:
    row, column, task, own = cell.row, cell.column, info.task, info.recipe.rows[cell.row]
    key, metric, compared = info.keys[column], info.metrics[column], info.compared.get(column)
    unit, is_baseline = metric.difference, row == info.baseline
    values, theirs = cell.values(key), base.values(key) if base else {}
    ours = summarise(list(values.values()))
    apart = None if is_baseline else paired_difference(values, theirs, unit)
    paper, paper_base = (
        each.paper.get(compared) if compared else None for each in (own, info.recipe.rows[info.baseline])
    )
    is_collapsed = metric.collapsed(paper)
    has_apart = not (is_baseline or is_collapsed or metric.collapsed(paper_base))
    paper_apart = difference(paper, paper_base, unit) if has_apart else None
    lost, base_lost = (bool(each and not each.is_open and each.having(RunState.diverged)) for each in (cell, base))
    verdict = Verdict.baseline if is_baseline else judge(
        apart, metric, has_values=bool(values), has_baseline=bool(theirs), diverged=lost, baseline_diverged=base_lost,
        paper=paper, paper_baseline=paper_base,
    )  # fmt: skip
    found = None if apart is None else detectable(apart, unit)
    equal_time = None if apart is None or base is None else at_equal_time(cell, base, key, unit)
    beside = None if metric.beside is None else summarise(list(cell.values(metric.beside).values()))
    note = own.notes.get(info.scale) if values and not info.changed else None  # on runs with the recipe's settings
    point = dict.fromkeys(cell.runs[0].spec.point) | dict(cell.point or {}) if cell.points else {}
    per_second = task.unit.per_second
    record = {
        "row": row,
        "column": column,
        "metric": key,
        "scale": info.scale,
        "mean": ours and ours.mean,
        "stderr": ours and ours.stderr,
        **({"median": ours and ours.median} if task.shows_median else {}),
        "n": ours.n if ours else 0,
        "seeds": " ".join(map(str, values)),
        "state": cell.state,
        **{f"{GRID}{name}": value for name, value in point.items()},
        **({} if metric.beside is None else {metric.beside: beside and beside.mean}),
        "baseline": info.baseline,
        "paper_column": compared,
        "paper": paper,
        **_paired(apart, f"difference_{unit.name}", "interval_"),
        "p_value": None if apart is None else p_value(apart, unit),
        "p_value_holm": None,
        "detectable_low": found and found[0],
        "detectable_high": found and found[1],
        # most runs are evaluated at their end only
        **(_paired(equal_time, f"equal_time_{unit.name}", "equal_time_") if equal_time else {}),
        f"paper_difference_{unit.name}": paper_apart,
        **({} if own.published is None else {"published_percent": own.published.percent}),
        "verdict": verdict.value,
        **({} if note is None else {"note": note}),
        "extra_parameters_percent": cell.average("extra_parameters_percent"),
        "paper_increase": own.paper_increase.get(compared) if compared else None,
        per_second: cell.average(per_second),
        "devices": "; ".join(_distinct(cell.runs, "device")),
        "git_commits": "; ".join(_distinct(cell.runs, "git_commit")),
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
        "_paper_collapsed": is_collapsed,
        "_diverged": lost,
        "_direction": 0 if is_baseline else published_direction(paper, paper_base, metric),
    }
    return {**record, "_remarks": tuple(_cell_notes(cell, record, info))}


def _paired(apart: Paired | None, mean: str, ends: str) -> dict[str, float | None]:
    numbers = (None, None, None) if apart is None else (apart.mean, apart.low, apart.high)
    return dict(zip((mean, f"{ends}low", f"{ends}high"), numbers, strict=True))


def _is_best(record: Record, cells: Sequence[Record]) -> bool:
    """Whether a cell has the best mean of its column and its difference to the baseline is a resolved improvement. Only
    cells with a value for every seed compete, and the baseline must be one of them."""
    sign = 1 if record["_metric"].better == "higher" else -1
    whole = {each["row"]: sign * each["mean"] for each in cells
             if each["column"] == record["column"] and each["n"] == len(each["_cell"].runs)}  # fmt: skip
    apart: Paired | None = record["_apart"]
    is_better = apart is not None and apart.excludes() and sign * apart.mean > 0
    is_compared = {record["row"], record["baseline"]} <= whole.keys()
    return is_better and is_compared and whole[record["row"]] == max(whole.values())


def at_equal_time(cell: Cell, baseline: Cell, metric: str, unit: DifferenceUnit) -> Paired | None:
    """The difference to the baseline over common seeds after the training time of the fastest run: the metric on
    validation data, linearly interpolated between two evaluations, in logarithms if differences are ratios.

    None if a seed diverged or has not ended, if a log has no evaluation before and after that time, or if the table
    shows the best or averaged weights, which logs do not have.
    """
    every = [run for each in (cell, baseline) for run in each.runs]
    if cell.is_open or baseline.is_open or any(run.state is not RunState.done for run in every):
        return None
    trains = [run.spec.settings.train for run in every]
    # Without evaluations during training, logs have the end only.
    if any(each.evaluate_every is None or each.select == "best" or each.averaged_steps for each in trains):
        return None
    prefix = next((each for each in OF_TEST if metric.startswith(each)), "")
    key = f"validation_{metric.removeprefix(prefix)}"
    sides = [{run.spec.seed: curve(run, key) for run in each.runs}
             for each in (cell, baseline)]  # fmt: skip
    seeds = sides[0].keys() & sides[1].keys()
    curves = [side[seed] for side in sides for seed in seeds]
    if not curves or not all(curves):
        return None
    used = min(points[-1][0] for points in curves)
    if any(used < points[0][0] for points in curves):
        return None
    ours, theirs = ({seed: read_at(side[seed], used, logarithms=unit.is_relative) for seed in seeds} for side in sides)
    return paired_difference(ours, theirs, unit)


def read_at(points: Sequence[tuple[float, float]], used: float, *, logarithms: bool) -> float:
    """The value of a curve at a time not before its first point, linearly interpolated in values or their logarithms;
    after its last point the last value."""
    import numpy as np

    times, values = zip(*points, strict=True)
    if logarithms:
        return math.exp(np.interp(used, times, np.log(values)))
    return float(np.interp(used, times, values))


def _of_table(specs: Mapping[str, RunSpec], cells: Mapping[tuple[str, str], Cell], seeds: Collection[int],
             info: TableInfo) -> str:  # fmt: skip
    """The runs of a table, column by column if they differ: every row was trained like those of `specs`."""
    columns: dict[str, list[str]] = {}
    for column, spec in specs.items():
        parameters = cells[spec.row, column].average("parameters")
        size = [] if parameters is None else [f"{format.short_count(parameters)} parameters"]
        columns.setdefault(info.task.network_and_data(spec.settings, size), []).append(column)
    several = len(columns) > 1
    trained = "; ".join(f"{format.listing(names)}: {what}" if several else what for what, names in columns.items())
    return f"{trained}; {circumstances(seeds, info.scale, info.changed)}"


def _cell_notes(cell: Cell, record: Mapping[str, Any], info: TableInfo) -> list[str]:
    key = record["metric"]
    values, done = cell.values(key), {run.spec.seed: run for run in cell.having(RunState.done)}
    lost = []
    for run in cell.having(RunState.diverged):
        result = run.result or {}
        loss = result.get("last_finite_loss")
        ending = "" if loss is None else f", last finite loss {loss:.2f}"
        lost.append(f"seed {run.spec.seed} at step {result.get('diverged_at', '?')}{ending}")
    reasons = {seed: run.reported("missing", key) for seed, run in done.items() if seed not in values}
    remarks = {seed: run.reported("remark", key) for seed, run in done.items()}
    return notes(
        "cell_notes",
        cell=cell,
        ended=len(cell.having(*ENDED)),
        point="" if cell.point is None else point_in_words(cell.point),
        values=values,
        lost=lost,
        absent=[f"seed {run.spec.seed} is {run.state}" for run in cell.runs if run.state not in ENDED],
        missing=[f"seed {seed} has none{f' ({why})' if why else ''}" for seed, why in reasons.items()],
        remarks=[f"seed {seed} {remark}" for seed, remark in remarks.items() if remark is not None],
        apart=record["_apart"],
        metric=record["_metric"],
        paper=record["paper"],
        published=info.recipe.rows[cell.row].published,
        note=record.get("note"),
    )


def _table_notes(runs: Sequence[Run], info: TableInfo) -> list[str]:
    """The differences of a table from its whole recipe, the values of a grid, rows with other settings, and facts that
    make numbers weak or not comparable: few samples, several signatures of an evaluation, libraries for products
    (`kernels.products`) or numerical versions (`NUMERICS`)."""
    grid, rows = info.grid, list(info.recipe.rows)
    specs = sorted((run.spec for run in runs), key=lambda spec: rows.index(spec.row))
    keys = dict.fromkeys(info.keys[run.spec.column] for run in runs)
    signed: dict[str, dict[str, None]] = {}
    for run in runs:
        if (signature := run.reported("signatures", key := info.keys[run.spec.column])) is not None:
            signed.setdefault(key, {})[signature] = None
    done = [run.result for run in runs if run.result]
    return notes(
        "table_notes",
        info=info,
        recipe=info.recipe,
        rows={spec.row for spec in specs},
        columns={spec.column for spec in specs},
        grid=grid,
        tried=grid and tried_values(grid),
        judged=[key for key in keys if grid and not grid.seeds and not key.startswith(OF_TEST)],
        others=[*other_settings(specs, info.baseline)],
        scored=dict.fromkeys(filter(None, (run.scored_on(info.keys[run.spec.column]) for run in runs))),
        few=FEW,
        data=dict.fromkeys(str(result["data_note"]) for result in done if result.get("data_note")),
        signed=signed,
        libraries=sorted({str(result.get("products") or PYTORCH) for result in done}),  # older results are PyTorch's
        versions=sorted({str(result.get("numerics") or "unknown") for result in done}),
    )
