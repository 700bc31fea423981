"""Tasks of lm-evaluation-harness that the runs of a table were evaluated on: each is a column beside its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from comt_cli.report import format
from comt_cli.report.caption import in_markdown, pipes, prose
from comt_cli.report.exhibits import Exhibit
from comt_cli.report.frame import Record, TableInfo, cells_of, frame_of
from comt_cli.report.resampling import Statistic, bootstrap_difference, item_error, spread
from comt_cli.report.statistics import Paired
from comt_cli.runs.directory import RunState
from comt_cli.runs.evaluations import TaskMetric, TaskResult, results_of
from comt_cli.tasks.base import PERCENT, POINTS, SCORE_POINTS, DifferenceUnit

if TYPE_CHECKING:
    import pandas as pd

HEADING = "Tasks"
_Of = tuple[str, str]
"""A row and a column."""
_STATISTICS: Mapping[str, Statistic] = {
    "mean": lambda mean: mean,
    "perplexity": lambda mean: np.exp(-mean),
    "weighted_perplexity": lambda mean: np.exp(-mean),
    "bits_per_byte": lambda mean: -mean / np.log(2),
}
"""Of the mean of what items give, by the harness's name of the aggregation. Others have no error."""


class Evaluations(Exhibit):
    """Rows by tasks: mean over seeds, standard error over seeds and items, and the difference to the baseline."""

    name = "tasks"

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One line for each task, metric and cell. Shares (accuracies) are in per cent. Empty without evaluations."""
        info: TableInfo = runs.attrs["table"]
        found = {
            of: {run.spec.seed: [*results_of(run.directory.path)] for run in cell.runs if run.state is RunState.done}
            for of, cell in cells_of(runs).items()
        }
        lost = {of for of, cell in cells_of(runs).items() if cell.having(RunState.diverged)}
        lines, left_out = list[Record](), 0
        for column in info.keys:
            own = {row: seeds for (row, at), seeds in found.items() if at == column}
            every = [result for seeds in own.values() for results in seeds.values() for result in results]
            for label in dict.fromkeys(result.label for result in every):
                same = Counter((each.items, each.lm_eval) for each in every if each.label == label)
                identity, count = same.most_common(1)[0]
                left_out += same.total() - count
                chosen = {row: {seed: each for seed, results in seeds.items() for each in results
                                if each.label == label and (each.items, each.lm_eval) == identity}
                          for row, seeds in own.items()}  # fmt: skip
                without = {row for row, at in lost if at == column}
                lines += _lines(column, chosen, info.baseline, without)
        frame = frame_of(lines)
        frame.attrs = {"title": info.recipe.title, "trained": runs.attrs.get("trained", ""), "left_out": left_out,
                       "baseline": info.baseline}  # fmt: skip
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        versions = sorted(set(frame["lm_eval"]))
        return [prose("tasks", frame.attrs, versions=versions, one_seed=bool((frame["n"] == 1).any()))]

    def page(self, frame: pd.DataFrame) -> str:
        return f"# {in_markdown(frame.attrs['title'])}: tasks\n\n{section(frame)}\n"


def section(frame: pd.DataFrame) -> str:
    """Tables of texts for each column of the recipe, and how to read them, in Markdown."""
    tables = [pipes(grid) for grid in grids(frame)]
    return "\n\n".join([*map(in_markdown, Evaluations().sentences(frame)), *tables])


def grids(frame: pd.DataFrame) -> Iterator[list[list[str]]]:
    """For each column of the recipe a line a row: of each task and metric the value, and the difference."""
    for column, here in frame.groupby("column", sort=False):
        tasks = list(dict.fromkeys(zip(here["task"], here["metric"], strict=True)))
        lines = {(each["row"], each["task"], each["metric"]): each for each in here.to_dict("records")}
        head, rows = (
            ["method" if frame["column"].nunique() == 1 else f"{column}: method"],
            list(dict.fromkeys(here["row"])),
        )
        made = [[row] for row in rows]
        for task, metric in tasks:
            own = [lines.get((row, task, metric)) for row in rows]
            sign = next(each["sign"] for each in own if each is not None)
            head += [f"{task} {metric}", f"vs {frame.attrs['baseline']}, {sign} [95 %]"]
            for texts, each in zip(made, own, strict=True):
                texts.extend(["-", "-"] if each is None else [_value(each), _difference(each)])
        yield [head, *made]


def values_in_words(result: TaskResult) -> list[list[str]]:
    """Of each metric its name, the value as the harness gives it, with the standard error over items, and the number of
    items."""
    found = []
    for name, metric in result.metrics.items():
        _, statistic, _ = _shown([metric], share=False)
        error = item_error(statistic, _weights(metric), _values([metric])[0]) if metric.values and statistic else None
        value = "-" if metric.value is None else f"{metric.value:.4f}"
        found.append([name, value if error is None else f"{value} ± {error:.4f}", f"{result.count:,}"])
    return found


def _lines(
    column: str, chosen: Mapping[str, Mapping[int, TaskResult]], baseline: str, without: set[str]
) -> Iterator[Record]:
    """The lines of a task under a column; `chosen` has the results by row and seed. A row of `without` has a seed that
    diverged: no difference is taken."""
    every = [result for seeds in chosen.values() for result in seeds.values()]
    for name in dict.fromkeys(name for result in every for name in result.metrics):
        of = {row: {seed: each.metrics[name] for seed, each in seeds.items() if name in each.metrics}
              for row, seeds in chosen.items()}  # fmt: skip
        metrics = [metric for seeds in of.values() for metric in seeds.values()]
        unit, statistic, scale = _shown(metrics)
        for row, seeds in of.items():
            values = [metric.value for metric in seeds.values() if metric.value is not None]
            if not values:
                continue
            own, base = ([*seeds.values()], of.get(baseline, {}))
            error, apart = None, None
            if statistic is not None and all(metric.values for metric in own):
                error = spread(statistic, _weights(own[0]), _values(own))[1]
                common = [seed for seed in seeds if seed in base and base[seed].values]
                if row != baseline and common and not {row, baseline} & without:
                    sides = (_values([side[seed] for seed in common]) for side in (seeds, base))
                    apart = bootstrap_difference(statistic, unit, _weights(own[0]), *sides)
            yield {
                "row": row, "column": column, "task": every[0].label, "metric": name, "better": own[0].better,
                "mean": scale * sum(values) / len(values), "stderr": error, "n": len(values), "items": every[0].count,
                "difference": apart and apart.mean, "low": apart and apart.low, "high": apart and apart.high,
                "pairs": apart and apart.n, "unit": unit.name, "sign": unit.sign, "lm_eval": every[0].lm_eval,
                "seeds": " ".join(map(str, seeds)),
            }  # fmt: skip


def _shown(metrics: Sequence[TaskMetric], *, share: bool = True) -> tuple[DifferenceUnit, Statistic | None, float]:
    """The unit of differences, the statistic, and the factor by which values are shown: shares are in per cent."""
    kind = metrics[0].aggregation
    statistic = _STATISTICS.get(kind)
    if kind != "mean":
        return (SCORE_POINTS if statistic is None else PERCENT), statistic, 1.0
    if share and all(0 <= value <= 1 for metric in metrics for value in metric.values):
        return POINTS, lambda mean: 100 * mean, 100.0
    return SCORE_POINTS, statistic, 1.0


def _values(metrics: Sequence[TaskMetric]) -> Any:
    return np.array([metric.values for metric in metrics], dtype=float)


def _weights(metric: TaskMetric) -> Any:
    return np.array(metric.weights or [1.0] * len(metric.values))


def _value(line: Record) -> str:
    value = format.value(line["mean"])
    error = "" if line["stderr"] is None else f" ± {format.value(line['stderr'])}"
    return f"{value}{error} ({line['n']})"


def _difference(line: Record) -> str:
    if line["difference"] is None:
        return "-"
    return format.difference(Paired(line["difference"], line["low"], line["high"], line["pairs"]))
