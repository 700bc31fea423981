"""Columns for the lm-evaluation-harness tasks that the runs of a table were evaluated on. Standard errors and paired
differences are over n seeds and m items, by B resamples; all seeds of a row and of the baseline answered the same
items."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from comt_cli.report import format
from comt_cli.report.caption import in_markdown, pipes, prose
from comt_cli.report.exhibits import Exhibit
from comt_cli.report.frame import Record, TableInfo, cells_of, frame_of
from comt_cli.report.statistics import ALPHA, Paired, Summary, told
from comt_cli.runs.directory import RunState
from comt_cli.runs.evaluations import Result, label_of, results_of
from comt_cli.tasks.base import PERCENT, POINTS, SCORE_POINTS, DifferenceUnit

if TYPE_CHECKING:
    import pandas as pd


Statistic = Callable[..., Any]
"""From means over items, an array [..., n] for each side, to one number per seed, [..., n]."""


class Evaluations(Exhibit):
    """Rows by tasks: mean over seeds, standard error over seeds and items, and the difference to the baseline."""

    name = "tasks"

    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One line for each task, metric and cell; shares (accuracies) are in per cent. Empty without evaluations.
        Results for other items, or from another version of the harness, are another task."""
        info: TableInfo = runs.attrs["table"]
        cells, lines = cells_of(runs), list[Record]()
        lost = {of for of, cell in cells.items() if cell.having(RunState.diverged)}
        same: dict[tuple[str, str, str, str], dict[str, dict[int, Result]]] = {}
        for (row, column), cell in cells.items():
            for run in cell.having(RunState.done):
                for result in results_of(run.directory.path):
                    of = column, label_of(result), result["items"], result["lm_eval"]
                    same.setdefault(of, {}).setdefault(row, {})[run.spec.seed] = result
        alike = Counter(of[:2] for of in same)
        for (column, label, items, version), rows in same.items():
            task = label if alike[column, label] == 1 else f"{label} ({version}, {items[:6]})"
            alone = {row for row in rows if {(row, column), (info.baseline, column)} & lost}
            for name in next(each for seeds in rows.values() for each in seeds.values())["metrics"]:
                where = {"column": column, "task": task, "lm_eval": version}
                lines += [where | line for line in _lines(name, rows, info.baseline, alone)]
        frame = frame_of(lines)
        frame.attrs = {"title": info.recipe.title, "baseline": info.baseline}
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        one_seed = bool((frame[["n", "pairs"]] == 1).any(axis=None))
        return [prose("tasks", frame.attrs, versions=sorted({*frame["lm_eval"]}), one_seed=one_seed)]

    def page(self, frame: pd.DataFrame) -> str:
        tables = [in_markdown(*self.sentences(frame)), *map(pipes, grids(frame))]
        return "\n\n".join([f"# {in_markdown(frame.attrs['title'])}: tasks", *tables]) + "\n"


def grids(frame: pd.DataFrame) -> Iterator[list[list[str]]]:
    """For each column of the recipe one line per row: for each task and metric the value and the difference."""
    for column, here in frame.groupby("column", sort=False):
        made = {row: [row] for row in here["row"]}
        head = ["method" if frame["column"].nunique() == 1 else f"{column}: method"]
        for (task, metric), own in here.groupby(["task", "metric"], sort=False):
            head += [f"{task} {metric}", f"vs {frame.attrs['baseline']}, {own['sign'].iloc[0]} [95 %]"]
            lines = {each["row"]: each for each in own.to_dict("records")}
            for row, texts in made.items():
                texts.extend(_texts(lines[row]) if row in lines else ["-", "-"])
        yield [head, *made.values()]


def _texts(line: Record) -> list[str]:
    apart = [line[key] for key in ("difference", "low", "high", "pairs")]
    value = format.summary(Summary(line["mean"], line["stderr"], line["n"]))
    return [value, "-" if apart[0] is None else format.difference(Paired(*apart))]


def _lines(name: str, rows: Mapping[str, Mapping[int, Result]], baseline: str, alone: set[str]) -> Iterator[Record]:
    """The lines of a metric, from results by row and seed. Rows in `alone` have no difference: they, or the baseline,
    have a diverged seed, and the others are a biased selection."""
    import numpy as np

    # By the harness's name of the aggregation its logarithm, but for a constant, of the mean log-likelihood.
    ratios: dict[str, Statistic] = dict.fromkeys(("perplexity", "weighted_perplexity"), np.negative)
    ratios["bits_per_byte"] = lambda mean: np.log(-mean)
    of = {row: {seed: each["metrics"][name] for seed, each in seeds.items()} for row, seeds in rows.items()}
    every = [metric for seeds in of.values() for metric in seeds.values()]
    kind, has_items = every[0]["aggregation"], all(each["values"] and each["value"] is not None for each in every)
    is_share = has_items and kind == "mean" and all(0 <= value <= 1 for each in every for value in each["values"])
    scale, unit = 100.0 if is_share else 1.0, POINTS if is_share else PERCENT if kind in ratios else SCORE_POINTS
    statistic: Statistic = ratios.get(kind, lambda mean: scale * mean)
    has_errors = has_items and (kind == "mean" or kind in ratios)
    weights = np.array(every[0]["weights"] or [1.0] * len(every[0]["values"]))
    for row, seeds in of.items():
        if not (means := [metric["value"] for metric in seeds.values() if metric["value"] is not None]):
            continue
        common = [seed for seed in seeds if seed in of.get(baseline, {})] if row not in {baseline, *alone} else []
        own, *pair = (np.array([of[at][seed]["values"] for seed in some], dtype=float)
                      for at, some in ((row, seeds), (row, common), (baseline, common)))  # fmt: skip
        mean, error = scale * sum(means) / len(means), spread(statistic, weights, own)[1] if has_errors else None
        apart = bootstrap_difference(statistic, unit, weights, *pair) if common and has_errors else None
        yield {
            **{"row": row, "metric": name, "better": every[0]["better"]},
            **{"items": next(iter(rows[row].values()))["count"], "mean": mean, "n": len(means)},
            **{"stderr": mean * error if error and unit.is_relative else error, "seeds": " ".join(map(str, seeds))},
            **{"unit": unit.name, "sign": unit.sign, "pairs": apart and apart.n},
            **{"difference": apart and apart.mean, "low": apart and apart.low, "high": apart and apart.high},
        }


@functools.lru_cache(maxsize=2)  # of a table's seeds, and of a task's items
def _shares(count: int, resamples: int, stream: int) -> Any:
    """Shares of `count` things in resamples [B, count] of count - 1 draws with replacement, so that the variance of a
    mean is s^2 / count, and not too small by 1 / count (McCarthy and Snowden 1985)."""
    import numpy as np

    if count < 2:
        return np.ones((resamples, count))
    drawn = np.random.default_rng([stream, count]).multinomial(count - 1, np.full(count, 1 / count), size=resamples)
    return drawn / (count - 1)


def spread(statistic: Statistic, weights_M: Any, *sides_NM: Any) -> tuple[float, float | None, float]:
    """The mean over seeds of the statistic of sum(values) / sum(weights); its standard error by a bootstrap that draws
    seeds, and items for all of them at once (Owen 2007, Ann. Appl. Stat. 1, 386-411), None for a single item; and half
    the width of its 95 % interval.

    V is the variance of the resamples, and V_s = s^2 / n its part between seeds. The t quantile is the mean of those
    with n - 1 and m - 1 degrees of freedom, weighted by V_s and V - V_s (Cochran 1964, Biometrics 20, 191-195). With
    one seed only items are drawn.
    """
    from scipy.special import stdtrit

    (n, m), whole_N = sides_NM[0].shape, statistic(*(side.sum(1) / weights_M.sum() for side in sides_NM))
    if m < 2:
        return float(whole_N.mean()), None, 0.0
    resamples = max(200, min(1000, 10_000_000 // m))
    items_BM = _shares(m, resamples, 1)
    drawn_BN = statistic(*((items_BM @ side.T) / (items_BM @ weights_M)[:, None] for side in sides_NM))
    variance = float((_shares(n, resamples, 2) * drawn_BN).sum(1).var(ddof=1))
    of_seeds = min(float(whole_N.var(ddof=1)) / n, variance) if n > 1 else 0.0
    by_seeds, by_items = (float(stdtrit(max(count - 1, 1), 1 - ALPHA / 2)) for count in (n, m))
    error = math.sqrt(variance)
    half = (by_seeds * of_seeds + by_items * (variance - of_seeds)) / error if error else 0.0
    return float(whole_N.mean()), error, half


def bootstrap_difference(statistic: Statistic, unit: DifferenceUnit, weights_M: Any, *ours_base_NM: Any) -> Paired:
    """The mean difference of a statistic, a logarithm if the unit is relative, to the baseline's, paired by seed and
    item, and its interval (`spread`), in the form of `paired_difference`. With one seed the interval is over items
    only."""
    mean, error, half = spread(lambda ours, base: statistic(ours) - statistic(base), weights_M, *ours_base_NM)
    low, high = (None if error is None else told(end, unit) for end in (mean - half, mean + half))
    return Paired(told(mean, unit), low, high, len(ours_base_NM[0]))
