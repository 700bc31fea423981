"""The table of a sweep: every row at the recipe's values, at the baseline's best and at its own best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report import format
from comt_cli.report.cells import cells_frame
from comt_cli.report.collect import ENDED, Cell
from comt_cli.report.exhibits.base import Exhibit
from comt_cli.report.frame import Record, frame_of, rows_of
from comt_cli.report.markdown import escaped, pipes
from comt_cli.report.statistics import paired_difference, summarise
from comt_cli.report.sweep import PLACES, CellName, Tuned, tuned_cell, whole_columns
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import point_in_words
from comt_cli.tasks.base import Metric

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "-"


class Rates(Exhibit):
    """A cell a line: for each place the values, the mean, its standard error and n, and the difference to the baseline
    there (at its own best where the row is at its own) with its 95 % interval; then what the trials chose, and the
    verdict of the table at every row's own best."""

    name = "rates"
    of: ClassVar[Literal["table", "sweep", "command"]] = "sweep"
    digits: ClassVar[int] = 8

    def frame(self, runs: pd.DataFrame, loaded: LoadedRecipe) -> pd.DataFrame:
        """The numbers of every cell, columns outermost."""
        scale = str(runs["scale"].iloc[0])
        grid, recipe = loaded.grids[scale], loaded.recipe
        cells: dict[str, dict[CellName, Cell]] = {}
        for place, cell in zip(runs["place"], runs["_cell"], strict=True):
            cells.setdefault(place, {})[cell.row, cell.column] = cell
        verdicts = _verdicts(runs, loaded, whole_columns({name: [] for name in cells.get("own", {})}))
        columns = list(dict.fromkeys(column for _, column in cells["trial"]))
        lines: list[Record] = []
        for name in sorted(cells["trial"], key=lambda name: columns.index(name[1])):
            row, column = name
            key = recipe.metric_at(scale, column)
            tuned = tuned_cell(cells["trial"][name], grid)
            metric: Metric = loaded.task.metrics[key]  # type: ignore[assignment]
            line: Record = {"row": row, "column": column, "metric": key}
            for place in PLACES:
                there = cells.get(place, {})
                cell, base = there.get(name), there.get((recipe.baseline, column))
                values = {} if cell is None else cell.values(key)
                ours = summarise(list(values.values()))
                apart = None
                if cell is not None and base is not None and row != recipe.baseline:
                    apart = paired_difference(values, base.values(key), metric.difference)
                point = {} if cell is None else cell.runs[0].spec.point
                line |= {f"{place}.{each}": point.get(each) for each in grid.values}
                line |= {f"{place}.mean": ours and ours.mean, f"{place}.stderr": ours and ours.stderr}
                line |= {f"{place}.n": ours.n if ours else 0}
                line |= {f"{place}.difference_{metric.difference.name}": apart and apart.mean}
                line |= {f"{place}.interval_low": apart and apart.low, f"{place}.interval_high": apart and apart.high}
                line |= {f"_{place}": (cell and cell.state, ours, apart, point)}
            line |= {"trials": len(tuned.runs), "trials_ended": sum(run.state in ENDED for run in tuned.runs)}
            line |= {"trials_diverged": sum(run.state is RunState.diverged for run in tuned.runs)}
            lines.append(line | {"verdict": verdicts.get(name), "problem": tuned.problem, "_tuned": tuned,
                                 "_metric": metric})  # fmt: skip
        frame = frame_of(lines)
        tried = "; ".join(
            f"{key} {format.listing(str(each) for each, _ in given)}" for key, given in grid.values.items()
        )
        frame.attrs = {
            "title": f"{recipe.title}: sweep",
            "baseline": recipe.baseline,
            "tried": f"{tried}. Trials (seeds {format.seeds(grid.seeds)}) choose by their mean {grid.metric} on "
            "validation data.",
            "seeds": runs.attrs["seeds"],
        }  # fmt: skip
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        """How the table is made; then the problems, and where the grid lacks a better value."""
        attrs, lines = frame.attrs, rows_of(frame)
        at_recipe = {point_in_words(each["_recipe"][3]) for each in lines if each["_recipe"][0] is not None}
        return [
            f"The same grid for every row: {attrs['tried']}",
            f"The numbers are of the seeds {format.seeds(attrs['seeds'])}: mean ± standard error (n). The recipe's "
            f"values: {format.listing(sorted(at_recipe))}. The baseline is {attrs['baseline']}; differences to it are "
            "paired by seed, at its own best where a row is at its own.",
            *(f"Not chosen: {each['problem']}." for each in lines if each["problem"] is not None),
            *filter(None, map(lacking, lines)),
        ]

    def page(self, frame: pd.DataFrame) -> str:
        """The sentences and the table."""
        parts = [f"# {escaped(frame.attrs['title'])}", *map(escaped, self.sentences(frame)), pipes(texts(frame))]
        return "\n\n".join(parts) + "\n"


def _verdicts(runs: pd.DataFrame, loaded: LoadedRecipe, whole: Mapping[CellName, Any]) -> dict[CellName, str]:
    """Those of the table at every row's own best."""
    is_own = [place == "own" and (row, column) in whole
              for place, row, column in zip(runs["place"], runs["row"], runs["column"], strict=True)]  # fmt: skip
    if not any(is_own):
        return {}
    own = runs[is_own]
    own.attrs = dict(runs.attrs)
    cells = cells_frame(own, loaded)
    return {(row, column): verdict for row, column, verdict in
            zip(cells["row"], cells["column"], cells["verdict"], strict=True)}  # fmt: skip


def texts(frame: pd.DataFrame) -> list[list[str]]:
    """The table as texts, the headings first."""
    lines, baseline = rows_of(frame), frame.attrs["baseline"]
    several = frame["column"].nunique() > 1
    signs = "/".join(dict.fromkeys(each["_metric"].difference.sign for each in lines))
    head = ["method", *(["column"] if several else [])]
    for said in PLACES.values():
        head += [f"at {said}", f"vs {baseline}, {signs} [95 %]"]
    made = [[*head, "best of the trials", "trials (n)", "verdict at own best"]]
    for each in lines:
        cells = [each["row"], *([each["column"]] if several else [])]
        for place in PLACES:
            state, ours, apart, _ = each[f"_{place}"]
            cells.append(format.summary(ours, each["_metric"].decimals) if ours else state or NOTHING)
            cells.append(NOTHING if apart is None else format.difference(apart))
        made.append([*cells, _best(each["_tuned"]), _trials(each), each["verdict"] or NOTHING])
    return made


def _best(tuned: Tuned) -> str:
    if tuned.point is None:
        return "none" if tuned.problem else NOTHING
    return point_in_words(tuned.point) + (", at the edge" if tuned.problem else "")


def _trials(line: Record) -> str:
    """`10`, or `4 of 10`; and how many diverged."""
    every, ended, lost = (line[f"trials{end}"] for end in ("", "_ended", "_diverged"))
    count = str(every) if ended == every else f"{ended} of {every}"
    return f"{count}, {lost} diverged" if lost else count


def lacking(line: Record) -> str | None:
    """That the recipe's values are none of the grid's, and better than the best of them."""
    (_, ours, _, point), (_, own, _, _), metric = line["_recipe"], line["_own"], line["_metric"]
    better = 1 if metric.better == "higher" else -1
    if not point or ours is None or own is None or better * (ours.mean - own.mean) <= 0:
        return None
    if any(each.point == point for each in line["_tuned"].tried):
        return None
    apart = f"{format.value(ours.mean, metric.decimals)} against {format.value(own.mean, metric.decimals)}"
    named = f"{line['row']} at {line['column']}"
    return (
        f"The recipe's {point_in_words(point)} is not in the grid, and better for {named} than its own best: {apart}."
    )


def shown(frame: pd.DataFrame, cells: set[CellName]) -> pd.DataFrame:
    """The lines of some cells."""
    part = frame[[cell in cells for cell in zip(frame["row"], frame["column"], strict=True)]]
    part.attrs = dict(frame.attrs)
    return part
