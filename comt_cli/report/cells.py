"""The cells of a table: every row under every column against its baseline and the paper, from the frame of runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report import notes
from comt_cli.report.collect import Cell
from comt_cli.report.csv_tables import GRID
from comt_cli.report.equal_time import at_equal_time
from comt_cli.report.frame import Record, cells_of, frame_of, rows_of
from comt_cli.report.statistics import Paired, detectable, difference, p_value, paired_difference, summarise
from comt_cli.report.verdict import Outcome, corrected, judge, published_direction
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.base import Metric

if TYPE_CHECKING:
    import pandas as pd

_OF_PAPER = ("data.", "model.", "train.steps=", "train.batch_size=")
"""How those settings begin that make a run another than the one that the paper's number stands beside."""


def cells_frame(runs: pd.DataFrame, loaded: LoadedRecipe) -> pd.DataFrame:
    """One record a cell, columns outermost: the table's CSV, and beside it as objects what was made of the runs.

    `_cell`, `_metric`; `_ours` (`Summary`), `_apart` (`Paired`, the difference to the baseline), `_detectable`,
    `_equal_time`, `_verdict`; `_paper_apart` and `_direction` of the paper's difference, 0 where it shows none; `_best`
    asks for bold; `_remarks` are the footnotes of the cell; `_costs` those of a training step.
    `attrs` say what the table is (`table_attrs`).
    """
    recipe, cells = loaded.recipe, cells_of(runs)
    scale = str(runs["scale"].iloc[0])
    changed, published = loaded.changed(scale), is_published(runs, loaded)
    found: list[Record] = []
    for column in dict.fromkeys(column for _, column in cells):
        here = [
            _cell(
                loaded,
                cell,
                cells.get((recipe.baseline, column)),
                loaded.compared_column(scale, column) if published else None,
                None if changed else recipe.rows[cell.row].notes.get(scale),  # of runs with the recipe's settings
            )
            for cell in cells.values()
            if cell.column == column
        ]
        best = _best(here, recipe.baseline)
        found += [{**record, "_best": record["row"] in best} for record in here]
    tested = {number: (each["_verdict"], each["_apart"], each["_metric"].difference) for number, each in
              enumerate(found)}  # fmt: skip
    adjusted = corrected(tested)
    costs = {(row, column): each for row, column, each in
             zip(runs["row"], runs["column"], runs["_costs"], strict=True)} if "_costs" in runs else {}  # fmt: skip
    shared = {"recipe": loaded.origin, "changed_settings": shlex.join(changed)}
    frame = frame_of(
        {key: adjusted.get(number) if key == "p_value_holm" else value for key, value in record.items()}
        | shared
        | {"_costs": costs.get((record["row"], record["column"]))}
        for number, record in enumerate(found)
    )
    frame.attrs |= table_attrs(runs, loaded, published=published)
    return frame


def table_attrs(runs: pd.DataFrame, loaded: LoadedRecipe, *, published: bool) -> dict[str, Any]:
    """What is said of a table as a whole: its names and those of its recipe, seeds, notes, devices, commits, data.

    `paper` and `printed_table` are None where no number of a paper is shown; `overrides` are the `--set` arguments.
    """
    recipe, scale = loaded.recipe, str(runs["scale"].iloc[0])
    cells = cells_of(runs)
    rows, columns = (list(dict.fromkeys(name[axis] for name in cells)) for axis in (0, 1))
    metrics = {column: recipe.metric_at(scale, column) for column in columns}
    grid, changed, every = loaded.grids.get(scale), loaded.changed(scale), list(runs["_run"])
    first = {(spec.row, spec.column): spec for spec in runs["_first"]}
    first = {name: first[name] for name in sorted(first, key=lambda name: list(recipe.rows).index(name[0]))}
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
        "seeds": tuple(sorted({run.spec.seed for run in every})),
        "overrides": changed,
        "is_ladder": recipe.ladder,
        "notes": (
            *notes.selection(loaded, rows, columns, scale, changed),
            *(notes.grid(grid, metrics.values()) if grid is not None else ()),
            *notes.other_settings(list(first.values()), recipe.baseline),
            *notes.of_runs(every, metrics),
            *runs.attrs["notes"],
        ),
        "devices": tuple(sorted(distinct(every, "device"))),
        "commits": tuple(sorted(distinct(every, "git_commit"))),
        "contents": tuple(dict.fromkeys(run.content for run in every if run.result and run.content)),
        "costs_devices": runs.attrs.get("costs_devices", ()),
        "costs_commits": runs.attrs.get("costs_commits", ()),
    }


def distinct(runs: Iterable[Any], key: str) -> set[str]:
    """What the results of runs have under a key."""
    return {str(run.result[key]) for run in runs if run.result and run.result.get(key) is not None}


def is_published(runs: pd.DataFrame, loaded: LoadedRecipe) -> bool:
    """Whether a paper's numbers may stand beside these runs: not where they have a text of one's own (`files:GLOB`), or
    another size or length."""
    changed = loaded.changed(str(runs["scale"].iloc[0]))
    return (
        loaded.is_published
        and not any(each.startswith(_OF_PAPER) for each in changed)
        and not any(":" in corpus(run.spec) for run in runs["_run"])
    )


def corpus(spec: RunSpec) -> str:
    """The text that a run is trained on, where its task has such a setting."""
    return str(getattr(spec.settings.data, "corpus", ""))


def _cell(loaded: LoadedRecipe, cell: Cell, base: Cell | None, compared: str | None, note: str | None) -> Record:
    recipe, spec = loaded.recipe, cell.runs[0].spec
    row, column, scale, task = cell.row, cell.column, spec.scale, spec.task
    key = recipe.metric_at(scale, column)
    metric: Metric = task.metrics[key]
    unit, is_baseline = metric.difference, row == recipe.baseline
    values, theirs = cell.values(key), base.values(key) if base else {}
    ours = summarise(list(values.values()))
    apart = None if is_baseline else paired_difference(values, theirs, unit)
    paper = recipe.rows[row].paper.get(compared) if compared else None
    paper_base = recipe.rows[recipe.baseline].paper.get(compared) if compared else None
    either_collapsed = metric.collapsed(paper) or metric.collapsed(paper_base)
    paper_apart = None if is_baseline or either_collapsed else difference(paper, paper_base, unit)
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
    published, note = recipe.rows[row].published, note if values else None
    point = {} if cell.choice is None else dict.fromkeys(spec.point) | dict(cell.choice.point or {})
    return {
        "row": row,
        "column": column,
        "metric": key,
        "scale": scale,
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
        **({} if published is None else {"published_percent": published.percent}),
        "verdict": verdict.value,
        **({} if note is None else {"note": note}),
        "extra_parameters_percent": cell.average("extra_parameters_percent"),
        "paper_increase": loaded.printed_increase(scale, row, column) if compared else None,
        task.unit.per_second: cell.average(task.unit.per_second),
        "devices": "; ".join(sorted(distinct(cell.runs, "device"))),
        "git_commits": "; ".join(sorted(distinct(cell.runs, "git_commit"))),
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
        "_remarks": tuple(notes.of_cell(cell, key, apart, metric, paper, published, note)),
    }


def _paired(apart: Paired | None, mean: str, ends: str) -> dict[str, float | None]:
    told = (None, None, None) if apart is None else (apart.mean, apart.low, apart.high)
    return dict(zip((mean, f"{ends}low", f"{ends}high"), told, strict=True))


def _outcome(cell: Cell | None, values: Mapping[int, float]) -> Outcome:
    return Outcome(len(values), len(cell.having(RunState.diverged)) if cell and not cell.is_open else 0)


def _best(cells: Sequence[Record], baseline: str) -> set[str]:
    """The row in bold, with those that are the same runs: the best mean, where its difference to the baseline is
    resolved and an improvement.

    Only cells of which every seed has a value compete, and the baseline must be one of them.
    """
    better = 1 if cells[0]["_metric"].better == "higher" else -1
    whole = [each for each in cells if each["_ours"] is not None and each["n"] == len(each["_cell"].runs)]
    means = {each["row"]: better * each["mean"] for each in whole}
    if baseline not in means:
        return set()
    return {
        each["row"]
        for each in whole
        if means[each["row"]] == max(means.values())
        and each["_apart"] is not None
        and each["_apart"].excludes_zero
        and better * each["_apart"].mean > 0
    }


def only(cells: pd.DataFrame, rows: Iterable[str], columns: Iterable[str]) -> pd.DataFrame:
    """The part of a table that was chosen to be shown; its numbers are those of the whole."""
    chosen = cells[cells["row"].isin({*rows}) & cells["column"].isin({*columns})]
    chosen.attrs = dict(cells.attrs)
    return chosen


def footnotes(cells: pd.DataFrame) -> list[str]:
    """The remarks of all cells in order of appearance, each once."""
    return list(dict.fromkeys(text for remarks in cells["_remarks"] for text in remarks))


def reference(cells: Sequence[Record], column: str) -> Record:
    """The baseline's cell under a column, or the first row's where the baseline was not selected."""
    here = [each for each in cells if each["column"] == column]
    return next((each for each in here if each["row"] == each["baseline"]), here[0])


def under_columns(cells: pd.DataFrame) -> dict[str, list[Record]]:
    """The records of a table by column."""
    found: dict[str, list[Record]] = {}
    for record in rows_of(cells):
        found.setdefault(record["column"], []).append(record)
    return found
