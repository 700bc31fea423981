"""A table as people read it: finished texts by row and column, the same for Markdown, LaTeX and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comt_cli.report import format
from comt_cli.report.collect import Cell, Collection, Run
from comt_cli.report.frame import Record, rows_of
from comt_cli.report.statistics import summarise
from comt_cli.report.verdict import stands
from comt_cli.report.words import STANDS, UNSETTLED
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import point_in_words
from comt_cli.tasks.base import Metric

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "-"
LEFT = ("method", "verdict")
"""Columns that are set to the left."""
Texts = dict[str, str]
"""The texts of a cell by key of `_HEADINGS`."""

_HEADINGS = {
    "method": "method",
    "ours": "{whose} ± s.e. (n)",
    "median": "median",
    "beside": "{beside}",
    "difference": "vs {baseline}, {signs}{interval}",
    "detectable": "detectable, {signs}",
    "equal_time": "at equal time, {signs} [95 %]",
    "paper": "paper",
    "paper_difference": "paper's {signs}",
    "published": "published elsewhere, %",
    "verdict": "verdict",
    "parameters": "parameters",
    "paper_increase": "paper's parameters",
    "flops": "FLOPs, ×",
    "bytes": "bytes, ×",
    "saved": "saved, ×",
    "step": "step, ×",
    "compiled": "compiled step, ×",
    "speed": "{unit}/s",
}
"""The columns of texts from left to right, by key, and what is above them."""


def footnotes(cells: pd.DataFrame) -> list[str]:
    """The remarks of all cells in order of appearance, each once; marks in a table count them from 1."""
    return list(dict.fromkeys(text for remarks in cells["_remarks"] for text in remarks))


def texts_of(cells: pd.DataFrame) -> list[Texts]:
    """The texts of every cell, of the keys that say something in any of them."""
    shown, marks = _beside(cells), {text: number for number, text in enumerate(footnotes(cells), start=1)}
    every = [_texts(each, shown.get(each["column"]), marks, cells.attrs["baseline"]) for each in rows_of(cells)]
    keys = [key for key in _HEADINGS if key in ("method", "ours") or any(texts[key] != NOTHING for texts in every)]
    return [{key: texts[key] for key in keys} for texts in every]


def headings(cells: pd.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> list[str]:
    """What is above the texts of `columns` of a table, with the units of all of them."""
    attrs = cells.attrs
    has_interval = any(apart is not None and apart.low is not None for apart in cells["_apart"])
    others = _beside(cells)
    words = {
        "baseline": attrs["baseline"],
        "signs": "/".join(dict.fromkeys(_metric(cells, column).difference.sign for column in columns)),
        "interval": " [95 %]" if has_interval else "",
        "whose": "ours" if attrs["paper"] is not None else "mean",
        "beside": "/".join(dict.fromkeys(others[column].label for column in columns if column in others)),
        "unit": attrs["task"].unit.name,
    }
    return [_HEADINGS[key].format(**words) for key in keys]


def _metric(cells: pd.DataFrame, column: str) -> Metric:
    metric: Metric = cells.attrs["task"].metrics[cells.attrs["metrics"][column]]
    return metric


def _beside(cells: pd.DataFrame) -> dict[str, Metric]:
    """By column the metric that is shown beside its own, where no other column shows it of the same runs."""
    attrs, found = cells.attrs, {}
    for column in dict.fromkeys(cells["column"]):
        key, request = _metric(cells, column).beside, attrs["specs"][column].request
        own = any(attrs["metrics"][name] == key and spec.request == request for name, spec in attrs["specs"].items())
        if key is not None and not own:
            found[column] = attrs["task"].metrics[key]
    return found


def column_name(cells: pd.DataFrame, column: str) -> str:
    """A column's name; where the runs have another text than the recipe's, with the name of that."""
    data, (_, slash, rest) = cells.attrs["specs"][column].settings.data, column.partition("/")
    text = str(getattr(data, "corpus", ""))
    is_other = ":" in text or any(each.startswith("data.corpus=") for each in cells.attrs["overrides"])
    return f"{text}{slash}{rest}" if is_other and slash else column


def groups_of(cells: pd.DataFrame) -> list[list[str]]:
    """The columns, those together that show metrics of the same runs whose differences have one unit."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for column, own in cells.groupby("column", sort=False)["_cell"]:
        runs = (run.spec.request for cell in own for run in cell.every)
        groups.setdefault((_metric(cells, str(column)).difference.sign, *runs), []).append(str(column))
    return list(groups.values())


def grid_of(cells: pd.DataFrame, texts: Sequence[Texts], columns: Sequence[str]) -> list[list[str]]:
    """The texts of `columns` (`groups_of`) as a table, the headings first: a line a row; of several columns one a
    column, and of every row a line for each key that says something."""
    here = {name: [each for each, at in zip(texts, cells["column"], strict=True) if at == name] for name in columns}
    first = here[columns[0]]
    heads = headings(cells, list(first[0]), columns)
    if len(columns) == 1:
        return [heads, *([*each.values()] for each in first)]
    made, names = [["method", "", *columns]], dict(zip(first[0], heads, strict=True))
    for line in zip(*here.values(), strict=True):
        keys = [key for key in line[0] if key != "method" and any(each[key] != NOTHING for each in line)]
        for key in keys:
            row = line[0]["method"] if key == keys[0] else ""
            made.append([row, names[key], *(each[key] for each in line)])
    return made


def increases(cells: pd.DataFrame, column: str) -> str | None:
    """The extra parameters of a column with the printed ones beside them, as a sentence, for pages too narrow for two
    more columns; None where none is printed."""
    here = cells[cells["column"] == column]
    if not any(here["paper_increase"]):
        return None
    pairs = zip(here["row"], here["extra_parameters_percent"], here["paper_increase"], strict=True)
    told = [f"{row} {_increase(own)} ({_printed(printed)})" for row, own, printed in pairs
            if own is not None or printed]  # fmt: skip
    return f"Extra parameters (the paper's): {'; '.join(told)}."


def _increase(percent: float | None) -> str:
    return NOTHING if percent is None else format.increase(percent)


def _printed(increase: str | None) -> str:
    """`15 %` for `15%`, as our own numbers are set."""
    return f"{increase.removesuffix('%')} %" if increase else NOTHING


def _texts(record: Record, beside: Metric | None, marks: Mapping[str, int], baseline: str) -> Texts:
    metric: Metric = record["_metric"]
    task, ours, costs = record["_cell"].runs[0].spec.task, record["_ours"], record["_costs"] or {}
    is_collapsed = metric.collapsed(record["paper"]) and record["row"] != baseline
    median = ours.median if task.shows_median and ours is not None and ours.n > 1 else None

    def number(value: float | None, metric: Metric = metric) -> str:
        return _or_nothing(value, lambda it: format.value(it, metric.decimals))

    shown = format.summary(ours, metric.decimals) if ours else state(record["_cell"], record["metric"])
    return {
        "method": record["row"],
        "ours": shown + "".join(f" [{marks[text]}]" for text in record["_remarks"]),
        "median": number(median),
        "beside": NOTHING if beside is None else number(record[str(metric.beside)], beside),
        "difference": _or_nothing(record["_apart"], format.difference),
        "detectable": _or_nothing(record["_detectable"], lambda it: ", ".join(map(format.signed, it))),
        "equal_time": _or_nothing(record["_equal_time"], format.difference),
        "paper": number(record["paper"]),
        "paper_difference": "collapsed" if is_collapsed else _or_nothing(record["_paper_apart"], format.signed),
        "published": _or_nothing(record.get("published_percent"), format.signed),
        "verdict": f"{record['verdict']}{STANDS if stands(record['p_value_holm']) else ''}",
        "parameters": _increase(record["extra_parameters_percent"]),
        "paper_increase": _printed(record["paper_increase"]),
        **{key: _or_nothing(costs.get(key), "{:.2f}".format) for key in ("flops", "bytes", "saved")},
        **{key: _time(costs.get(key), costs.get(f"{key}_error")) for key in ("step", "compiled")},
        "speed": _or_nothing(record[task.unit.per_second], format.speed),
    }


def _or_nothing(value: Any, text: Callable[[Any], str]) -> str:
    return NOTHING if value is None else text(value)


def _time(ratio: float | None, error: float | None) -> str:
    """A ratio of times with its interval, of which `error` is a part; a mark where there is none."""
    if ratio is None or error is None:
        return _or_nothing(ratio, lambda it: f"{it:.2f} {UNSETTLED}")
    return f"{ratio:.2f} ± {ratio * error:.2f}" if error else f"{ratio:.2f}"


def state(cell: Cell, metric: str) -> str:
    """The text of a cell that has no value: `missing`, `running (step 40 of 200)`, `2 diverged, 1 missing`, or why the
    runs that are done have no number for the metric: `needs Java`. Of several runs in progress the furthest counts."""
    reasons = {reason for run in cell.runs if (reason := run.reported("missing", metric)) is not None}
    if reasons:
        return ", ".join(sorted(reasons))
    begun = cell.having(RunState.running, RunState.unfinished)
    furthest = max((run.progress for run in begun if run.progress), key=lambda each: each.step, default=None)
    if furthest is None:
        return cell.state
    return f"{cell.state} (step {furthest.step:,} of {furthest.steps:,})"


def cells_as_json(collection: Collection, metrics: Mapping[str, str]) -> list[dict[str, Any]]:
    """One dictionary a cell, in the order of the table: mean, standard error and number of the runs that are done, and
    how many are in each state. `metrics` has by column what a cell shows. With a grid, the chosen point, and all its
    runs are counted."""
    rows = []
    for cell in collection.cells.values():
        done = summarise(list(cell.values(metrics[cell.column]).values()))
        states = [run.state for run in cell.every]
        rows.append(
            {
                "row": cell.row,
                "column": cell.column,
                "metric": metrics[cell.column],
                "mean": done and done.mean,
                "stderr": done and done.stderr,
                **({"grid": cell.point} if cell.points else {}),
                "runs": {state.value: count for state in RunState if (count := states.count(state))},
            }
        )
    return rows


def cell_text(cell: Cell, metric: str) -> str:
    """`26.73 ± 0.12 (3)`; of a cell that is not done what there is: `26.51 (2), running 120/480, 3 min to go`."""
    done, parts = summarise(list(cell.values(metric).values())), []
    if cell.is_open and (ended := cell.having(RunState.done)):
        parts.append(f"{len(ended)} of {len(cell.runs)} done")
    if done is not None:
        decimals = cell.runs[0].spec.task.metrics[metric].decimals
        parts.append(format.value(done.mean, decimals) if len(cell.runs) == 1 else format.summary(done, decimals))
    for state in (RunState.diverged, RunState.running, RunState.unfinished, RunState.missing):
        runs = cell.having(state)
        if state in (RunState.running, RunState.unfinished):
            parts += map(_how_far, runs)
        elif runs:
            parts.append(state.value if len(runs) == len(cell.runs) else f"{len(runs)} {state}")
    if cell.point is not None and done is not None:
        parts.append(point_in_words(cell.point))
    return ", ".join(parts) or "done, without a value"


def _how_far(run: Run) -> str:
    progress, steps = run.progress, run.spec.settings.train.steps
    text = f"{run.state} {progress.step if progress is not None else 0:,}/{steps:,}"
    if run.state is RunState.running and progress is not None and progress.eta_seconds is not None:
        text += f", {format.duration(progress.eta_seconds)} to go"
    return text
